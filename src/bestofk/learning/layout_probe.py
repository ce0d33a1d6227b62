"""Before a model is trained: does it see the past only, and does packing change its log-probs?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bestofk.learning.layout import BUILD, Batch, Row
from bestofk.types import Group

LIMIT = 2e-4
"""Mean |log-prob difference| of packed and padded rows that float32 does not explain."""
NOISE = 3.0
"""In bfloat16, packed rows may be this many times as far from float32 as padded ones."""
GROUPS, ROWS = 2, 3
"""Groups and rows of each that are compared, at most."""


@torch.no_grad()
def check_causal(model: Any) -> None:
    """Raise an error for a model whose log-probs depend on later tokens.

    Raises:
        ValueError: it is an encoder, or an encoder-decoder.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} is an encoder-decoder; bestofk trains decoders (causal language models)"
        )
    parameter = next(model.parameters())
    if parameter.device.type == "meta":
        return
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(1, 7, device=parameter.device)[None] % vocabulary
    long = model(input_ids=ids, use_cache=False).logits[:, :4].float()
    short = model(input_ids=ids[:, :4], use_cache=False).logits.float()
    near = 1e-3 if parameter.dtype == torch.float32 else 5e-2
    scale = float(short.abs().max().clamp_min(1e-6))
    if not float((long - short).abs().max()) <= near * max(scale, 1e-3):
        raise ValueError(
            f"the log-probs of {name} depend on later tokens: it is an encoder, or runs as one; "
            "bestofk trains decoders (causal language models)"
        )


def probed(groups: Sequence[Group]) -> list[Row]:
    """Some rows of a real batch: siblings, and more than one group, where there are."""
    return [
        (p, i)
        for p, group in enumerate(groups[:GROUPS])
        for i in range(min(ROWS, len(group.completions)))
        if group.completions[i].tokens
    ]


@torch.no_grad()
def layout_gap(
    score: Callable[[Batch, bool], Tensor],
    groups: Sequence[Group],
    layout: str,
    device: torch.device,
    *,
    reduced: bool,
) -> tuple[float, float]:
    """Mean |log-prob difference| of rows in `layout` to padded rows in float32; and its limit.

    Args:
        score: token log-probs of a batch; with True in float32, whatever the run's precision.
        reduced: whether the run computes in bfloat16.
    """
    rows = probed(groups)
    if not rows:
        return 0.0, LIMIT
    padded = BUILD["padded"](groups, rows, device)
    exact = score(padded, True)
    noise = float((score(padded, False) - exact).abs().mean()) if reduced else 0.0
    result = score(BUILD[layout](groups, rows, device), False)
    return float((result - exact).abs().mean()), LIMIT + NOISE * noise


def report(model: Any, gap: float, limit: float, *, layout: str) -> None:
    """Warn that rows are padded from now on.

    Raises:
        ValueError: layout "packed" was asked for by name.
    """
    what = (
        f"packed rows of {type(model).__name__} have log-probs {gap:.2g} per token away from "
        f"padded rows, more than {limit:.2g}"
    )
    if layout == "packed":
        raise ValueError(f"{what}: take layout 'padded'")
    warnings.warn(f"{what}; rows are padded from now on, which is slower", stacklevel=5)
