"""Is the host trainer, and the model it trains, what the weights are made for?

A trainer made from `GRPOTrainer` may have a loss of its own, replay rows, or train a model with
dropout. One optimiser step per batch gets a warning, several get an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from trl import GRPOTrainer

EXTENDED = ("_calculate_rewards", "_generate_and_score_completions", "_prepare_inputs")


def replaced_methods(trainer: type, mixin: type) -> list[str]:
    """TRL's methods, of those the weights rely on, that a host replaces by its own.

    Raises:
        TypeError: the mixin is not in front of a GRPOTrainer.
    """
    behind = trainer.__mro__[trainer.__mro__.index(mixin) + 1 :]
    for method in EXTENDED:
        if not any(method in vars(each) for each in behind):
            raise TypeError(
                f"{trainer.__name__}: BestOfKMixin goes in front of a GRPOTrainer, whose "
                f"{method} it extends, as in class Mine(BestOfKMixin, GRPOTrainer)"
            )
    result = []
    for method in ("compute_loss", "_compute_loss", "_prepare_inputs"):
        owner = next(each for each in trainer.__mro__ if each is not mixin and method in vars(each))
        if owner is not GRPOTrainer:
            result.append(f"{owner.__module__}.{owner.__qualname__}.{method}")
    return result


def check_host(replaced: Sequence[str], several_steps: bool) -> list[str]:
    """Warnings about a loss that is not TRL's.

    Raises:
        ValueError: several steps per batch, and the host has a loss or a splitting of its own.
    """
    for name in replaced if several_steps else ():
        raise ValueError(
            f"{name} replaces TRL's own, and exact weights for several optimiser steps per batch "
            "need that: take one optimiser step per batch (num_iterations=1, steps_per_generation "
            "left out), or put the mixin in front of GRPOTrainer itself"
        )
    return [
        f"{name} replaces TRL's loss: the weights are the objective's, but whether the update is "
        "its gradient depends on that loss, which is not checked"
        for name in replaced
        if name.endswith("compute_loss")
    ]


def check_model(model: nn.Module, several_steps: bool) -> list[str]:
    """A warning if the model has dropout.

    Raises:
        ValueError: several steps per batch: the ratio of two passes would be noise.
    """
    result = next(dropout(model), None)
    if result is None:
        return []
    rate = f"dropout is active in the model ({result})"
    way_out = (
        "set disable_dropout=True in the GRPOConfig, attention_dropout=0 in the model's config, "
        "and lora_dropout=0"
    )
    if several_steps:
        raise ValueError(
            f"{rate}: the ratio of two passes over a completion would be noise, and several "
            f"optimiser steps per batch need it; {way_out}"
        )
    return [f"{rate}: samples and gradient come from different random networks; {way_out}"]


def dropout(model: nn.Module) -> Iterator[str]:
    """Every dropout rate above 0: modules, and rates that attention layers keep as numbers."""
    for name, module in model.named_modules():
        kind = isinstance(module, nn.modules.dropout._DropoutNd)
        for key, value in vars(module).items():
            if ((kind and key == "p") or "drop" in key) and isinstance(value, float) and value > 0:
                yield f"{name}.{key} = {value}"


def check_rows(columns: Tensor | None, judged: Any, output: dict[str, Any], ranks: int) -> Tensor:
    """The rewards, if the rows of the batch are those that were scored, in that order.

    Raises:
        RuntimeError: the host dropped, repeated, reordered or replaced rows (a replay buffer).
    """
    rows = output["completion_ids"]
    if columns is None or len(columns) != len(rows) * ranks:
        got = "no rewards" if columns is None else f"{len(columns)} rewards"
        raise RuntimeError(
            f"the host trainer made {got} for {len(rows)} rows on each of {ranks} processes: one "
            "reward per row is needed to know the groups, so a trainer that drops or repeats rows "
            "cannot be used"
        )
    for place, (row, ids) in enumerate(zip(rows.tolist(), judged, strict=True)):
        if row[: len(ids)] != list(ids):
            raise RuntimeError(
                f"row {place} of the batch is not the completion that was scored as row {place}: a "
                "host trainer that reorders or replays rows cannot be used, since their weights "
                "would be those of other rows"
            )
    return columns
