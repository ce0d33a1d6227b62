"""Helpers of a host's tests import that host, so doctests must not be looked for in them."""

from pathlib import Path

collect_ignore = [
    path.name for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")
]
collect_ignore += ["on_cpu", "without_cuda"]
