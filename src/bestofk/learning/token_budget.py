"""How many tokens a micro-batch may hold, from the model's shape and the card's total memory."""

from __future__ import annotations

from typing import Any

SHARE = 0.45
"""Of the card's memory, for weights, optimiser and activations; sampling has its own part."""
LEAST, MOST = 2_048, 49_152
"""More tokens than MOST do not make a micro-batch faster."""


def token_budget(config: Any, parameters: int, total_bytes: float, *, checkpointing: bool) -> int:
    """Tokens whose activations fit beside the model: always the same for a model and a card.

    A layer keeps about 20 bytes per token and hidden unit and 12 per unit of its feed-forward
    block; with checkpointing, 4 per hidden unit. Weights, their gradient and AdamW's moments are
    16 bytes a parameter, and the copy that is sampled from 2.
    """
    text = config.get_text_config()
    hidden = getattr(text, "hidden_size", None) or 1024
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    layers = getattr(text, "num_hidden_layers", None) or 1
    if isinstance(inner, list | tuple):
        inner = max(inner)
    per_layer = 4 * hidden if checkpointing else 20 * hidden + 12 * inner
    each = layers * per_layer + (20 * hidden + 12 * inner if checkpointing else 0)
    room = SHARE * total_bytes - 18.0 * parameters
    return int(min(MOST, max(LEAST, room / each)))


def balanced(total: int, longest: int, budget: int) -> int:
    """The budget at which as few micro-batches as `budget` allows are about equally large."""
    count = max(1, -(-total // budget))
    return min(budget, -(-total // count) + longest)
