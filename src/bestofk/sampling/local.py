"""The sampler for a model in this process: the group engine on CUDA, transformers elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bestofk.sampling.decode import ModelSampler

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from bestofk.sampling.sampler import Sampler


def local_sampler(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_rows: int = 2048,
    precision: str | None = None,
    copied: bool = False,
) -> Sampler:
    """The group engine where the model is on CUDA, else transformers' own passes.

    For the arguments see `GroupSampler`; precision is by default that of the weights.
    """
    weight = next(model.parameters())
    if not weight.is_cuda or weight.dtype is torch.float16:
        return ModelSampler(model, tokenizer, max_rows=max_rows, precision=precision or "fp32")
    from bestofk.sampling.engine.group_sampler import GroupSampler

    own = "bf16" if weight.dtype is torch.bfloat16 else "fp32"
    return GroupSampler(
        model, tokenizer, max_rows=max_rows, precision=precision or own, copied=copied
    )
