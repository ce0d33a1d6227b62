"""Several processes: the few places where the learner has to know that it is not alone.

Without an accelerator, or with one process, everything here is the identity.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel as DDP


def _many(accelerator: Any) -> bool:
    return accelerator is not None and accelerator.num_processes > 1


def most(accelerator: Any, count: int) -> int:
    """The largest count of any rank: forward passes are collective, so all make as many."""
    if not _many(accelerator):
        return count
    return int(accelerator.gather(torch.tensor([max(count, 1)], device=accelerator.device)).max())


def mean(accelerator: Any, values: dict[str, float]) -> dict[str, float]:
    """Each value's mean over ranks."""
    if not _many(accelerator):
        return values
    return _reduce(accelerator, values, "mean")


def total(accelerator: Any, values: dict[str, float]) -> dict[str, float]:
    """Each sum's total over ranks; the loss is a mean, and what ends in _max a maximum."""
    if not _many(accelerator):
        return values
    summed = _reduce(accelerator, values, "sum")
    summed["loss"] /= accelerator.num_processes
    names = sorted(name for name in values if name.endswith("_max"))
    here = torch.tensor([[values[name] for name in names]], device=accelerator.device)
    largest = accelerator.gather(here).amax(dim=0).tolist()
    return summed | dict(zip(names, largest))


def _reduce(accelerator: Any, values: dict[str, float], how: str) -> dict[str, float]:
    names = sorted(values)
    packed = torch.tensor([values[name] for name in names], device=accelerator.device)
    reduced = accelerator.reduce(packed, reduction=how)
    return dict(zip(names, reduced.tolist()))


def accumulate(scorer: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Gradients meet once, after the last micro-batch."""
    if isinstance(scorer, FSDPModule):
        scorer.set_requires_gradient_sync(last)
    return scorer.no_sync() if isinstance(scorer, DDP) and not last else nullcontext()
