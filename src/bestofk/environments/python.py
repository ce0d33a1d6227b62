"""A Python tool in the sandbox: `task.environment = "python"`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from bestofk.rewards.sandboxed import LazySandbox


class Python:
    """The model may run Python; the task's verifier judges its last message.

    Variables are kept within a trajectory: each call runs the earlier ones again in a fresh
    process, so nothing of a trajectory is left for another.
    """

    _sandbox: ClassVar[LazySandbox] = LazySandbox(
        paths=(str(Path(__file__).parent / "guest"),), preload=("run_cells",)
    )

    at_once: ClassVar[int] = len(os.sched_getaffinity(0))
    """Workers of the sandbox: no call waits for one while its time runs."""

    def reset(self, **row: Any) -> None:
        self._cells: list[str] = []

    def python(self, code: str) -> str:
        """Run Python code. Shows what it prints and the value of its last line; variables are kept.

        Args:
            code: The code to run.
        """
        if not isinstance(code, str):
            raise TypeError("code is text")
        outcome = self._sandbox.get().call("run_cells:run_cells", [[*self._cells, code]])
        if outcome.status != "ok":
            raise RuntimeError(f"{outcome.status}: {outcome.detail}"[:500])
        self._cells.append(code)
        return str(outcome.value).strip() or "(no output)"
