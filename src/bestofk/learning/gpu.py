"""How the learner uses a GPU: what is chosen for a model and a card; layers compiled one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bestofk.devices import card_bytes, keep_compiled
from bestofk.fp8 import E4M3
from bestofk.learning.attention import fits
from bestofk.learning.layout import Row
from bestofk.learning.scorer import CHUNK
from bestofk.model_facts import attention_sizes, base_model, config_value, decoder_layers
from bestofk.precision import Precision
from bestofk.types import Group

LOGITS = 2**28
"""Logits held at once on a GPU: a gibibyte, and half as much for their gradient."""
WORTH = 30_000_000
"""Weights from which compiling a layer pays."""


@dataclass(frozen=True)
class GpuSettings:
    """What is chosen where the user did not."""

    tokens: int = 16_384
    """Of a micro-batch, at most."""
    logits: int = CHUNK
    fused: bool = False
    """The head's gradient by `bestofk.learning.scorer`."""
    flat: bool = False
    """Packed rows by FlashAttention."""
    compiled: bool = False


def settings(model: Any, precision: Precision, *, checkpointing: bool) -> GpuSettings:
    """For a model where it is; on CPU nothing changes."""
    base = base_model(model)
    parameter = next(base.parameters())
    if parameter.device.type != "cuda":
        return GpuSettings()
    count = sum(p.numel() for p in base.parameters())
    total = card_bytes(parameter.device)
    size = attention_sizes(base.config)[-1]
    return GpuSettings(
        tokens=token_budget(base.config, model_bytes(model), total, checkpointing=checkpointing),
        logits=LOGITS,
        fused=True,
        flat=precision.reduced and fits(size, precision.dtype),
        compiled=precision.reduced and count >= WORTH,
    )


def compile_layers(model: Any) -> None:
    """Each decoder layer by itself: all of them share one code, for all lengths.

    It is compiled once with gradients and, where log-probs are asked for, once without. The
    compiler's files stay in the cache folder for the next process.
    """
    keep_compiled()
    base = base_model(model)
    if next(base.parameters()).is_cuda:
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()  # the compiler's processes start while the first batch is sampled
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    # With dynamic sizes, numbers such as a norm's epsilon would be inputs too. The compiler finds
    # out late that they cannot be, and starts again.
    torch._dynamo.config.specialize_float = True
    base.get_input_embeddings().register_forward_hook(_equal_for_all_layers)
    for layer in decoder_layers(base):
        layer.compile(dynamic=True)


def _equal_for_all_layers(module: nn.Module, args: Any, states: Tensor) -> Tensor:
    """The first layer's input with a gradient where later ones have one, and without where not.

    Embeddings below adapters are frozen, and checkpointing asks for their gradient always: either
    would need a second code for the first layer.
    """
    return states.requires_grad_() if torch.is_grad_enabled() else states.detach()


def even_budget(groups: Sequence[Group], rows: Sequence[Row], budget: int, *, packed: bool) -> int:
    """A budget that cuts these rows into micro-batches of like size, no more than needed."""
    if not packed or not rows:
        return budget
    answers = [len(groups[p].trajectories[i].tokens) for p, i in rows]
    prompts = {p: len(groups[p].prompt_tokens) for p, _ in rows}
    longest = max(prompts.values()) + max(answers)
    return balanced(sum(answers) + sum(prompts.values()), longest, budget)


SHARE = 1 / 3
"""Of the memory that weights and optimiser leave, for activations; sampling has its own part."""
LEAST, MOST = 512, 49_152
"""More tokens than MOST do not make a micro-batch faster."""


def model_bytes(model: nn.Module) -> float:
    """What a model holds on the card while it learns and is sampled from.

    Each weight as it is, and a copy in bfloat16 that is sampled from, unless it is itself; for
    trained ones the gradient and AdamW's two moments in float32.
    """
    held = 0.0
    for p in model.parameters():
        packed = p.dtype == torch.uint8  # two weights in a byte
        copy = 4 if packed else 0 if p.dtype in (torch.bfloat16, E4M3) else 2
        held += p.numel() * (p.element_size() + copy + (12 if p.requires_grad else 0))
    return held


def token_budget(config: Any, held_bytes: float, total_bytes: float, *, checkpointing: bool) -> int:
    """Tokens whose activations fit beside the model: always the same for a model and a card.

    Args:
        held_bytes: By `model_bytes`.
    """
    hidden = config_value(config, "hidden_size") or 1024
    inner = config_value(config, "intermediate_size") or 4 * hidden
    layers = config_value(config, "num_hidden_layers") or 1
    if isinstance(inner, list | tuple):
        inner = max(inner)
    sizes = (hidden, inner, layers)
    return tokens_that_fit(*sizes, held_bytes, total_bytes, checkpointing=checkpointing)


def tokens_that_fit(
    hidden: float, inner: float, layers: float, held_bytes: float, total_bytes: float, *,
    checkpointing: bool,
) -> int:  # fmt: skip
    """`token_budget` by the sizes of a model.

    A layer keeps at most about 20 bytes per token and hidden unit and 12 per unit of its
    feed-forward block; with checkpointing, 4 per hidden unit. Compiled layers keep about half.
    """
    per_layer = 4 * hidden if checkpointing else 20 * hidden + 12 * inner
    each = layers * per_layer + (20 * hidden + 12 * inner if checkpointing else 0)
    room = SHARE * (total_bytes - held_bytes)
    return int(min(MOST, max(LEAST, room / each)))


def balanced(total: int, longest: int, budget: int) -> int:
    """The budget at which as few micro-batches as `budget` allows are about equally large."""
    count = max(1, -(-total // budget))
    return min(budget, -(-total // count) + longest)
