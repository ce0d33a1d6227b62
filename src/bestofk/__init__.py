"""bestofk: train language models for the way they are deployed: draw k samples, keep the best.

import bestofk as bk
bk.evaluate("samples.jsonl")                                   # pass@k with intervals
bk.compare("base.jsonl", "trained.jsonl").verdict
run = bk.train("Qwen/Qwen3-0.6B", "train.jsonl", my_reward, "max@8")
bk.best_of(run.model, problems, k=8, verifier=my_reward)       # draw up to 8, keep the best
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestofk.api import compare, evaluate, read, report, signal, train
    from bestofk.deploy import best_of
    from bestofk.estimator_checks import conformance
    from bestofk.objectives import advantages, max_at_k, objective, pass_at_k

__version__ = "0.1.0"
__all__ = [
    "advantages",
    "best_of",
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

# a public name's module is imported when the name is first used: `bestofk --help` needs none
_MODULES = dict.fromkeys(["advantages", "max_at_k", "objective", "pass_at_k"], "objectives")
_MODULES |= dict.fromkeys(["compare", "evaluate", "read", "report", "signal", "train"], "api")
_MODULES |= {"conformance": "estimator_checks", "best_of": "deploy"}


def __getattr__(name: str) -> Any:
    if name in ("evaluation", "models", "objectives", "rewards", "tasks"):
        return importlib.import_module(f"bestofk.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'bestofk' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bestofk.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
