"""Which rows of verl's batch are one rollout.

An agent loop may return a rollout as several rows. verl's V1 trainer keeps each row under the key
`{uid}_{session}_{part}` and makes one sample of a session for its own `grpo` alone; any other
estimator gets every row as a sample of its own. Here the keys go where the uids go.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from typing import Any, NamedTuple

import numpy as np

V1 = "verl.trainer.ppo.v1.utils"
TRAINER = "verl.trainer.ppo.v1.trainer_base"
FUNCTION = "compute_advantage_for_multi_trajectories"


class Row(NamedTuple):
    """A row of the batch: the prompt it answers, the rollout it is of, which part of it."""

    uid: str
    rollout: str
    part: int = 0


def by_rollout(compute: Callable[..., Any], estimator: str) -> Callable[..., Any]:
    """verl's function, with a Row for every uid where it calls this estimator."""

    @functools.wraps(compute)
    def with_rollouts(data: Any, batch_keys: Sequence[str], adv_estimator: Any, **rest: Any) -> Any:
        uids = data.non_tensor_batch["uid"]
        if adv_estimator == estimator:
            rows = np.empty(len(uids), dtype=object)
            for i, (uid, key) in enumerate(zip(uids, batch_keys, strict=True)):
                rollout, _, part = key.rpartition("_")
                rows[i] = Row(str(uid), rollout, int(part))
            data.non_tensor_batch["uid"] = rows
        try:
            return compute(data, batch_keys=batch_keys, adv_estimator=adv_estimator, **rest)
        finally:
            data.non_tensor_batch["uid"] = uids

    return with_rollouts


def name_rollouts(estimator: str) -> None:
    """Wrap verl's function now, or as soon as its module is imported.

    Importing it here would settle verl's choice of hardware before other plug-ins were heard.
    """

    def wrap(module: Any) -> None:
        setattr(module, FUNCTION, by_rollout(getattr(module, FUNCTION), estimator))

    if V1 not in sys.modules:
        sys.meta_path.insert(0, _WhenImported(V1, wrap))
    for name in (V1, TRAINER):
        if name in sys.modules:
            wrap(sys.modules[name])


class _WhenImported(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: Any) -> None:
                execute(module)
                self.then(module)

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec
