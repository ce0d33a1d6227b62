"""The numbers that a policy is computed in, as one value, and the product that gives its logits."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Precision:
    """The name of a dtype, as `torch` has it."""

    weights: str
    """Of both factors of a product, and so of keys and values."""

    @property
    def reduced(self) -> bool:
        """Whether products round their inputs."""
        return self.weights != "float32"

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, keys and values."""
        import torch

        kind: torch.dtype = getattr(torch, self.weights)
        return kind

    def autocast(self, device: str, *, cached: bool = True) -> torch.autocast:
        """While inside, products on the device ("cpu", "cuda") are computed in it.

        Args:
            cached: casts of weights are kept until the end.
        """
        import torch

        return torch.autocast(
            device, dtype=torch.bfloat16, enabled=self.reduced, cache_enabled=cached
        )


PRECISIONS = {"fp32": Precision("float32"), "bf16": Precision("bfloat16")}


def float32_product(x: Tensor, weight: Tensor) -> Tensor:
    """x (N, H) times weight (V, H), transposed: sums in float32 that are not rounded to bfloat16.

    Sampler and learner round logits differently otherwise, by up to .06 at a logit of 16.
    """
    import torch

    if x.dtype == torch.float32:
        return torch.nn.functional.linear(x, weight)
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return torch.nn.functional.linear(x.float(), weight.float())


def warn_where_bf16_is_slow(model: Any) -> None:
    """One sentence, once, where a model computes in bf16 on a processor without fast products."""
    if next(model.parameters()).device.type == "cpu":
        _probe_bf16()


@functools.cache
def _probe_bf16() -> None:
    """PyTorch says it with two dozen lines of C++ frames at the first such product, and takes the
    slow way without a word from then on: let it say so here, where nobody hears."""
    import torch

    square = torch.ones(1, 32, 32, dtype=torch.bfloat16)
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        torch.bmm(square, square)
        torch.mm(square[0], square[0])
    if complaints:
        warnings.warn(
            "bf16 is slow on this CPU, which has no instructions for it; fp32 is faster here",
            RuntimeWarning,
            stacklevel=4,
        )
