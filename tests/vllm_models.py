"""Models that vLLM's CPU build takes (heads of 32 numbers), prompts, and the gap to a learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from bestofk.learning import Learner
from bestofk.models import tiny
from bestofk.types import Group, Prompt

# vLLM's imports, and torch's that it asks for, warn about themselves.
NOISE = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
ENDS = list(range(1, 12))
"""Several tokens end a completion, so that many do."""
ENGINE = {"max_model_len": 512, "kv_cache_memory_bytes": 2**26, "block_size": 32}
SERVED = [
    "--dtype=float32", "--enforce-eager", "--max-model-len=512", "--block-size=32",
    f"--kv-cache-memory-bytes={2**26}",
]  # fmt: skip
LONG = "1 2 3 4 5 6 7 8 9 = 24: " * 8
PROMPTS = [
    *(Prompt(f"p{i}", LONG + "3 5 7 = 15:"[: 3 + 2 * i], "test") for i in range(4)),
    Prompt("short", "12:", "test"),
]


def model(seed: int) -> Any:
    """Random weights, large enough for distributions that are far from uniform."""
    made = tiny.untrained(hidden=64, layers=2, heads=2, inner=96, seed=seed)
    assert made.generation_config is not None
    made.generation_config.eos_token_id = ENDS
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=noise))
    return made.eval()


def gap(learned: Any, groups: Sequence[Group], temperature: float = 1.0) -> float:
    """The largest difference of a token's log-prob between sampler and learner."""
    scores = Learner(learned, temperature=temperature).score(groups)
    return max(
        float(np.abs(ours - np.array(theirs.logprobs)).max())
        for row, group in zip(scores.tokens, groups, strict=True)
        for ours, theirs in zip(row, group.completions, strict=True)
    )
