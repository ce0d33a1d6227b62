"""How the learner uses a GPU: what is chosen for a model, and its layers compiled one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bestofk.common import base_model, processes_per_card
from bestofk.learning.flash_groups import fits
from bestofk.learning.layout import Row
from bestofk.learning.scorer import CHUNK
from bestofk.learning.token_budget import balanced, token_budget
from bestofk.types import Group

LOGITS = 2**28
"""Logits held at once on a GPU: half a gibibyte in bfloat16."""
WORTH = 30_000_000
"""Weights from which compiling a layer, some twenty seconds, pays."""


@dataclass(frozen=True)
class GpuSettings:
    """What is chosen where the user did not."""

    tokens: int = 16_384
    """Of a micro-batch, at most."""
    logits: int = CHUNK
    fused: bool = False
    """The head's gradient by `bestofk.learning.head`."""
    flat: bool = False
    """Packed rows by FlashAttention."""
    compiled: bool = False


def settings(model: Any, precision: str, *, checkpointing: bool) -> GpuSettings:
    """For a model where it is; on CPU nothing changes."""
    base = base_model(model)
    parameter = next(base.parameters())
    if parameter.device.type != "cuda":
        return GpuSettings()
    count = sum(p.numel() for p in base.parameters())
    total = torch.cuda.get_device_properties(parameter.device).total_memory
    total //= processes_per_card(torch.cuda.device_count())
    text = base.config.get_text_config()
    heads = getattr(text, "num_attention_heads", None) or 1
    size = getattr(text, "head_dim", None) or getattr(text, "hidden_size", 0) // heads
    reduced = precision == "bf16"
    return GpuSettings(
        tokens=token_budget(base.config, count, total, checkpointing=checkpointing),
        logits=LOGITS,
        fused=True,
        flat=reduced and fits(size, torch.bfloat16),
        compiled=reduced and count >= WORTH,
    )


def compile_layers(model: Any) -> None:
    """Each decoder layer by itself: they share one compiled code, and lengths may vary."""
    base = base_model(model)
    names = set(getattr(base, "_no_split_modules", None) or ())
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    for layer in base.modules():
        if type(layer).__name__ in names:
            layer.compile()


def even_budget(groups: Sequence[Group], rows: Sequence[Row], budget: int, *, packed: bool) -> int:
    """A budget that cuts these rows into micro-batches of like size, no more than needed."""
    if not packed or not rows:
        return budget
    answers = [len(groups[p].completions[i].tokens) for p, i in rows]
    prompts = {p: len(groups[p].prompt_tokens) for p, _ in rows}
    longest = max(prompts.values()) + max(answers)
    return balanced(sum(answers) + sum(prompts.values()), longest, budget)
