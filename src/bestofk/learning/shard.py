"""FSDP2: weights, gradients and optimiser shared out over the processes; and the whole model back.

torch's `fully_shard`, applied here and not by a launcher, so that CPU and GPU take one path.
Layers are gathered one at a time while they compute. Sampling cannot work so (every token would
gather every layer, and ranks draw different numbers of tokens): for the time of the rollouts the
weights are gathered into a plain copy of the model, which is emptied again afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def share_out(scorer: nn.Module) -> None:
    """Share the weights out over all processes, in place, each layer gathered as a unit.

    Which modules are layers the model says itself, by class.
    """
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
    names = set(getattr(scorer, "_no_split_modules", None) or ())
    for layer in [module for module in scorer.modules() if type(module).__name__ in names]:
        fully_shard(layer, mesh=mesh)
    fully_shard(scorer, mesh=mesh)


def settle(scorer: nn.Module) -> None:
    """Every weight back to its shard: the last forward pass left the outermost gathered."""
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be shared out; all processes ask together."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor shared out as another one is; every process brings all of it."""
    own = tensor.to(like.device, like.dtype, copy=True)  # out of a file's memory
    if isinstance(like, DTensor):
        return distribute_tensor(own, like.device_mesh, like.placements, src_data_rank=None)
    return own


def hollow(model: Any) -> Any:
    """A copy of the model's modules and buffers, with weights that take no memory."""
    weights = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
               for p in model.parameters()}  # fmt: skip
    return copy.deepcopy(model, dict(weights))


@contextmanager
def filled(copied: nn.Module, scorer: nn.Module, model: nn.Module) -> Iterator[None]:
    """While inside, the hollow copy has the model's weights, all of them; all processes enter."""
    settle(scorer)
    empty = [dict(module._parameters) for module in copied.modules()]
    built: dict[int, nn.Parameter] = {}
    try:
        for mine, theirs in zip(copied.modules(), model.modules(), strict=True):
            for name, p in theirs._parameters.items():
                if p is not None:
                    if id(p) not in built:
                        built[id(p)] = nn.Parameter(whole(p), p.requires_grad)
                    mine._parameters[name] = built[id(p)]
        yield
    finally:
        for mine, before in zip(copied.modules(), empty, strict=True):
            mine._parameters.update(before)
