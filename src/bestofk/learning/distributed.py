"""Several processes: what the learner must know of the others, FSDP2, and a state that fits all.

They are those of torch's default process group; with one process collectives are the identity.

FSDP2 is torch's `fully_shard`, applied here and not by a launcher, so that CPU and GPU take one
path. Layers are gathered one at a time while they compute. Sampling cannot work so (every token
would gather every layer, and ranks draw different numbers of tokens): for the time of the rollouts
the weights are gathered into a plain copy of the model, which is emptied again afterwards.

A learner's state is whole tensors by name: what one process wrote several can read, shared out or
not, and the other way round.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import Optimizer

from bestofk.model_facts import base_model, decoder_layers


def is_shared() -> bool:
    """Whether several processes work together."""
    return dist.is_initialized() and dist.get_world_size() > 1


def is_first() -> bool:
    """Whether this process does what one of them does for all."""
    return not is_shared() or dist.get_rank() == 0


def gather(value: Any) -> list[Any]:
    """The values of all processes, by rank, on every process."""
    if not is_shared():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def largest_count(count: int) -> int:
    """The largest count of any rank: forward passes are collective, so all make as many."""
    return max(1, *gather(count)) if is_shared() else count


def mean(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each value's mean over ranks."""
    return {name: float(np.mean([each[name] for each in ranks])) for name in ranks[0]}


def total(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each sum's total over ranks; the loss is a mean, and what ends in _max a maximum.

    NaN of any rank stays.
    """
    totals = {}
    for name in ranks[0]:
        join = np.max if name.endswith("_max") else np.mean if name == "loss" else np.sum
        totals[name] = float(join([each[name] for each in ranks]))
    return totals


def accumulate(scorer: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Gradients meet once, after the last micro-batch."""
    if isinstance(scorer, FSDPModule):
        scorer.set_requires_gradient_sync(last)
    return scorer.no_sync() if isinstance(scorer, DDP) and not last else nullcontext()


def shard(scorer: Any) -> None:
    """Share the weights out over all processes, in place, each layer gathered as a unit."""
    device = next(scorer.parameters()).device
    gpu = device.type == "cuda"
    if not dist.is_initialized():
        # One process that nobody launched: a group of its own.
        dist.init_process_group(
            "nccl" if gpu else "gloo",
            store=dist.HashStore(),
            rank=0,
            world_size=1,
            device_id=device if gpu else None,
        )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in decoder_layers(base_model(scorer.model)):
        fully_shard(layer, mesh=mesh)
    fully_shard(scorer, mesh=mesh)


def reshard(scorer: nn.Module) -> None:
    """Every weight back to its shard: the last forward pass left the outermost gathered."""
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def unsharded(tensor: Tensor) -> Tensor:
    """All of a tensor that may be shared out; all processes ask together."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor shared out as another one is; every process brings all of it."""
    own = tensor.to(like.device, like.dtype, copy=True)  # out of a file's memory
    if isinstance(like, DTensor):
        return distribute_tensor(own, like.device_mesh, like.placements, src_data_rank=None)
    return own


def meta_copy(model: Any) -> Any:
    """A copy of the model's modules and buffers, with weights that take no memory."""
    weights = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
               for p in model.parameters()}  # fmt: skip
    return copy.deepcopy(model, dict(weights))


@contextmanager
def with_weights(copied: nn.Module, scorer: nn.Module, model: nn.Module) -> Iterator[None]:
    """While inside, the hollow copy has the model's weights, all of them; all processes enter."""
    reshard(scorer)
    empty = [dict(module._parameters) for module in copied.modules()]
    built: dict[int, nn.Parameter] = {}
    try:
        for mine, theirs in zip(copied.modules(), model.modules(), strict=True):
            for name, p in theirs._parameters.items():
                if p is not None:
                    if id(p) not in built:
                        built[id(p)] = nn.Parameter(unsharded(p), p.requires_grad)
                    mine._parameters[name] = built[id(p)]
        yield
    finally:
        for mine, before in zip(copied.modules(), empty, strict=True):
            mine._parameters.update(before)


Moments = Mapping[str, Mapping[str, Tensor]]


def state_of(
    model: nn.Module, optimiser: Optimizer, *, keep: bool
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Trained weights, and what the optimiser remembers of each, by the weight's name.

    Args:
        keep: False on processes that take part in the gathering and have no use for its result.
    """
    remembered = optimiser.state
    weights: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    for name, parameter in trained(model).items():
        result = {what: _own(value, keep) for what, value in remembered[parameter].items()}
        weight = _own(parameter, keep)
        if keep:
            weights[name] = weight
        if keep and result:
            moments[name] = result
    return weights, moments


def load_state(
    model: nn.Module, optimiser: Optimizer, weights: Mapping[str, Tensor], moments: Moments
) -> None:
    """The opposite of `state_of`; every process brings all of the state.

    Raises:
        ValueError: the state is not this model's.
    """
    own = trained(model)
    differ = sorted(
        name
        for name in own.keys() | weights.keys() | moments.keys()
        if name not in own or name not in weights or own[name].shape != weights[name].shape
    )
    if differ:
        raise ValueError(
            f"the state is of another model: {len(differ)} parameters differ, first {differ[0]!r}"
        )
    remembered = optimiser.state
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(sharded_like(weights[name], parameter))
            remembered[parameter] = {
                what: (
                    sharded_like(value, parameter)
                    if value.dim()
                    else value.to(parameter.device, copy=True)
                )
                for what, value in moments.get(name, {}).items()
            }


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _own(value: Tensor, keep: bool) -> Tensor:
    gathered = unsharded(value)
    return gathered.cpu() if keep else gathered
