"""Several processes: the few places where the learner has to know that it is not alone.

Without an accelerator, or with one process, everything here is the identity.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


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
    """Each sum's total over ranks; the loss is a mean and `ratio_max` a maximum."""
    if not _many(accelerator):
        return values
    summed = _reduce(accelerator, values, "sum")
    summed["loss"] /= accelerator.num_processes
    if "ratio_max" in values:
        largest = torch.tensor([values["ratio_max"]], device=accelerator.device)
        summed["ratio_max"] = float(accelerator.gather(largest).max())
    return summed


def _reduce(accelerator: Any, values: dict[str, float], how: str) -> dict[str, float]:
    names = sorted(values)
    packed = torch.tensor([values[name] for name in names], device=accelerator.device)
    reduced = accelerator.reduce(packed, reduction=how)
    return dict(zip(names, reduced.tolist()))


def accumulate(accelerator: Any, scorer: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Gradients meet once, after the last micro-batch."""
    return nullcontext() if not _many(accelerator) or last else accelerator.no_sync(scorer)


def backward(accelerator: Any, loss: Tensor) -> None:
    if accelerator is None:
        loss.backward()
    else:
        accelerator.backward(loss)


def state(
    accelerator: Any, scorer: nn.Module, optimiser: Optimizer
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trained weights by name and the optimiser's state, whole; on rank 0 alone with FSDP."""
    if _many(accelerator):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(
            full_state_dict=True, cpu_offload=True, ignore_frozen_params=True
        )
        model, inner = get_state_dict(scorer, _inner(optimiser), options=options)
        return {name.removeprefix("model."): value for name, value in model.items()}, dict(inner)
    named = {name: p.detach() for name, p in _model(scorer).named_parameters() if p.requires_grad}
    return named, _inner(optimiser).state_dict()


def load_state(
    accelerator: Any,
    scorer: nn.Module,
    optimiser: Optimizer,
    model: dict[str, Any],
    inner: dict[str, Any],
) -> None:
    """The opposite of `state`; refuses weights that are not this model's."""
    if _many(accelerator):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        set_state_dict(
            scorer,
            _inner(optimiser),
            model_state_dict={f"model.{name}": value for name, value in model.items()},
            optim_state_dict=inner,
            options=StateDictOptions(
                full_state_dict=True,
                ignore_frozen_params=True,
                strict=False,
                broadcast_from_rank0=True,
            ),
        )
        return
    own = {name: p for name, p in _model(scorer).named_parameters() if p.requires_grad}
    differ = sorted(
        name
        for name in own.keys() | model.keys()
        if name not in own or name not in model or own[name].shape != model[name].shape
    )
    if differ:
        raise ValueError(
            f"the state is of another model: {len(differ)} parameters differ, first {differ[0]!r}"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(model[name])
    _inner(optimiser).load_state_dict(inner)


def _inner(optimiser: Any) -> Optimizer:
    return getattr(optimiser, "optimizer", optimiser)


def _model(scorer: Any) -> nn.Module:
    return getattr(scorer, "module", scorer).model
