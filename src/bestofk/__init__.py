"""bestofk: train language models for the way they are deployed: draw k samples, keep the best.

import bestofk as bk
bk.evaluate("samples.jsonl")                                   # pass@k with intervals
bk.compare("base.jsonl", "trained.jsonl").verdict
run = bk.train("Qwen/Qwen3-0.6B", "train.jsonl", my_reward, "max@8")
"""

from typing import TYPE_CHECKING, Any

from bestofk.objectives import advantages, max_at_k, objective, pass_at_k

if TYPE_CHECKING:
    from bestofk.api import compare, evaluate, read, report, signal, train
    from bestofk.conformance import conformance

__version__ = "0.1.0"
__all__ = [
    "advantages",
    "compare",
    "conformance",
    "evaluate",
    "max_at_k",
    "objective",
    "pass_at_k",
    "read",
    "report",
    "signal",
    "train",
]

_FROM_API = {"compare", "evaluate", "read", "report", "signal", "train"}


def __getattr__(name: str) -> Any:
    if name == "conformance":
        from bestofk.conformance import conformance

        return conformance
    if name in _FROM_API:
        from bestofk import api

        return getattr(api, name)
    raise AttributeError(f"module 'bestofk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
