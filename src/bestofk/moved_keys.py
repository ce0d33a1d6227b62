"""Recipe keys of earlier versions, and where each one lives now."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

MOVED = {
    "model.revision": "model.options.revision",
    "model.trust_remote_code": "model.options.trust_remote_code",
    "model.lora_alpha": "model.options.lora_alpha",
    "model.lora_targets": "model.options.lora_targets",
    "model.gradient_checkpointing": "model.options.gradient_checkpointing",
    "optimiser.tokens_per_micro_batch": "model.options.tokens_per_micro_batch",
    "run.fsdp": "model.options.fsdp",
    "task.split": "run.options.split",
    "task.unscored_share": "run.options.unscored_share",
    "run.keep_last": "run.options.keep_last",
    "run.keep_best": "run.options.keep_best",
    "run.samples_megabytes": "run.options.samples_megabytes",
    "optimiser.stop_grad_norm": "run.options.stop_grad_norm",
    "evaluation.metric": "run.options.best_by",
    "sampling.batch_size": "sampling.engine_options.max_rows",
    "sampling.server": "sampling.engine_options.server",
    "sampling.agreement": "sampling.engine_options.agreement",
    "off_policy.form": "objective_options.off_policy",
    "off_policy.truncate": "objective_options.truncate",
    "off_policy.self_normalise": "objective_options.self_normalise",
    "off_policy.clamp": "objective_options.clamp",
    "optimiser.learning_rate": "optimizer.learning_rate",
    "optimiser.warmup_steps": "optimizer.warmup_steps",
    "optimiser.schedule": "optimizer.schedule",
    "optimiser.weight_decay": "optimizer.weight_decay",
    "optimiser.max_grad_norm": "optimizer.max_grad_norm",
}
PLACES = {
    "loss.clip_low": ("loss.clip", 0, [0.2, 0.2]),
    "loss.clip_high": ("loss.clip", 1, [0.2, 0.2]),
    "optimiser.beta1": ("optimizer.adam", 0, [0.9, 0.999, 1e-8]),
    "optimiser.beta2": ("optimizer.adam", 1, [0.9, 0.999, 1e-8]),
    "optimiser.epsilon": ("optimizer.adam", 2, [0.9, 0.999, 1e-8]),
}
"""Keys that are now one number of a list: the list, the place in it, and its default."""
DROPPED = {
    "loss.ratio": "the sequence ratio is the loss of its own name: loss.name = 'gspo'",
    "evaluation.ks": "every power of two up to evaluation.samples_per_prompt is estimated",
}
KEYS = (*MOVED, *PLACES, *DROPPED)


def with_moved_keys(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with every key in its present place; warns where one was not.

    >>> with_moved_keys({"sampling": {"temperature": 0.5}})
    {'sampling': {'temperature': 0.5}}
    """
    recipe: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in stated.items()
    }
    for old in KEYS:
        section, _, key = old.partition(".")
        if not isinstance(recipe.get(section), dict) or key not in recipe[section]:
            continue
        value = recipe[section].pop(key)
        warnings.warn(f"{old}: {_note(old)}", FutureWarning, stacklevel=4)
        if old == "loss.ratio" and value == "sequence":
            recipe[section]["name"] = "gspo"
        elif old in PLACES:
            new, at, default = PLACES[old]
            numbers = list(_at(recipe, new, default))
            numbers[at] = value
            _put(recipe, new, numbers, instead=True)
        elif old in MOVED and value is not None:
            _put(recipe, MOVED[old], value)
    if recipe.get("optimiser") == {}:
        del recipe["optimiser"]
    return recipe


def _note(old: str) -> str:
    if old in DROPPED:
        return DROPPED[old]
    return f"it is now {MOVED[old]}" if old in MOVED else f"it is now in {PLACES[old][0]}"


def _at(recipe: dict[str, Any], name: str, default: Any) -> Any:
    section, _, key = name.partition(".")
    return recipe.get(section, {}).get(key, default)


def _put(recipe: dict[str, Any], name: str, value: Any, *, instead: bool = False) -> None:
    """Put a value where it belongs; one that the recipe states there already stays."""
    *sections, key = name.split(".")
    inside = recipe
    for section in sections:
        inside[section] = dict(inside.get(section) or {})
        inside = inside[section]
    inside[key] = value if instead else inside.get(key, value)
