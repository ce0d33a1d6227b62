"""The exact off-policy advantages as one operator of PyTorch.

torch.compile would unroll the O(n) steps of their recurrence and compile for a minute; an operator
is called as it stands, without a graph break. Imported only while PyTorch compiles.
"""

from __future__ import annotations

from typing import Any

import torch

from bestofk.procedures.importance import exact


@torch.library.custom_op("bestofk::exact_off_policy", mutates_args=())
def operator(
    rewards: torch.Tensor, log_ratio: torch.Tensor, k: int, baseline: str, self_normalise: bool
) -> torch.Tensor:
    """`importance.exact` without checks."""
    result: torch.Tensor = exact(
        rewards, log_ratio, k, baseline=baseline, self_normalise=self_normalise, check=False
    )
    return result.contiguous()


@operator.register_fake
def _(rewards: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(rewards, memory_format=torch.contiguous_format)
