"""The least time a step could take on this card: bytes over bandwidth, operations over rate.

Sampling: a decoding step reads the weights once, each row's own keys and values, and each prompt's
once per group; it does two operations per weight and row. The floor is the longer of the two times.
Learning: six operations per weight and token, the prompt counted once per group, and seven passes
over the optimiser's float32 numbers (weight, gradient and two moments are read, all but the
gradient written). The floor is the sum of the two times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from bestofk.types import Group

WRITTEN = 7 * 4
"""Bytes per trained weight that AdamW moves."""


@dataclass(frozen=True)
class Card:
    """What a GPU was measured to do."""

    bytes_per_second: float
    operations_per_second: float
    """Of a large bfloat16 matrix product."""


@cache
def measured_card(device: str, size: int = 8192) -> Card:
    """Measure a device: a large copy and a large product, some milliseconds each on a GPU."""
    import torch

    square = torch.randn(size, size, device=device).bfloat16()
    copy, product = torch.empty_like(square), torch.empty_like(square)

    def wait() -> None:
        if square.is_cuda:
            torch.cuda.synchronize(square.device)

    def seconds(work: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(4):
            wait()
            began = time.perf_counter()
            for _ in range(8):
                work()
            wait()
            best = min(best, (time.perf_counter() - began) / 8)
        return best

    moved = 2.0 * square.numel() * square.element_size()
    return Card(
        moved / seconds(lambda: copy.copy_(square)),
        2.0 * size**3 / seconds(lambda: torch.matmul(square, square, out=product)),
    )


def sampling_floor(
    groups: Sequence[Group], card: Card, *, weights: int, weight_bytes: int, token_bytes: int,
    slots: int,
) -> float:  # fmt: skip
    """Seconds.

    Args:
        weights: of the model, and `weight_bytes` each.
        token_bytes: of one token's keys and values in all layers.
        slots: rows decoded at once, at most.

    >>> from bestofk.types import Completion, Prompt
    >>> group = Group(Prompt("p", "", "t"), (Completion("", (1, 2, 3)),) * 2, (5, 6))
    >>> card = Card(bytes_per_second=1.0, operations_per_second=1e9)
    >>> sampling_floor([group], card, weights=10, weight_bytes=2, token_bytes=1, slots=8)
    78.0
    """
    lengths = [np.array([len(c.tokens) for c in group.completions]) for group in groups]
    if not lengths:
        return 0.0
    every = np.concatenate(lengths)
    steps = max(int(every.max()), -(-int(every.sum()) // max(1, slots)))
    own = float((every * (every + 1) / 2).sum())
    shared = sum(len(group.prompt_tokens) * int(own_.max()) for group, own_ in zip(groups, lengths))
    moved = steps * weights * weight_bytes + (own + shared) * token_bytes
    operations = 2.0 * weights * float(every.sum())
    return max(moved / card.bytes_per_second, operations / card.operations_per_second)


def learning_floor(
    groups: Sequence[Group], card: Card, *, weights: int, trained: int, steps: int = 1
) -> float:
    """Seconds.

    Args:
        weights: of the model; `trained` of them are.
        steps: optimiser steps on the batch.
    """
    tokens = sum(
        len(group.prompt_tokens) + sum(len(c.tokens) - 1 for c in group.completions)
        for group in groups
    )
    operations = (2.0 * weights + 2.0 * weights + 2.0 * trained) * tokens
    return (
        operations / card.operations_per_second + steps * trained * WRITTEN / card.bytes_per_second
    )
