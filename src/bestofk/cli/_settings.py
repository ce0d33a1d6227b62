"""Every setting of a recipe with its kind, default and meaning, read from the declarations.

`bestofk train --help`, `--help-all` and the reference of the site are made from this.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import get_type_hints

from bestofk.cli._options import EVERY_VERB, field_texts, kind_of, shown
from bestofk.config import Config
from bestofk.rare_settings import EngineOptions, ModelOptions, RunOptions

# the settings that most people change, in the order of the help
COMMON = {
    "model.path": "model: Hub id, folder, GGUF file",
    "model.lora_rank": "LoRA rank; 0 trains all weights",
    "model.precision": "fp32 or bf16",
    "task.name": "task; dataset is your own data",
    "task.options": "options: --task.options.train a.jsonl",
    "task.verifier": "own reward: myreward.py:reward",
    "objective": "what to train for",
    "sampling.samples_per_prompt": "n, the group size; larger than k",
    "sampling.prompts_per_step": "P, prompts per step",
    "sampling.max_new_tokens": "longest completion",
    "sampling.temperature": "sampling temperature",
    "sampling.engine": "auto, transformers or vllm",
    "optimizer.learning_rate": "peak learning rate",
    "evaluation.every": "steps between evaluations; 0 is never",
    "evaluation.samples_per_prompt": "n of an evaluation",
    "run.dir": "folder of the run",
    "run.steps": "number of steps",
    "run.seed": "fixes every random draw",
}
RARE: Mapping[str, type] = {
    "model.options": ModelOptions,
    "sampling.engine_options": EngineOptions,
    "run.options": RunOptions,
}


@dataclass(frozen=True)
class Setting:
    """One field of a recipe."""

    name: str
    """Dotted, as in `--run.steps`."""
    kind: str
    default: str
    """Empty where there is none to show."""
    text: str
    rare: bool = False


@cache
def settings() -> tuple[Setting, ...]:
    """All settings, in the order of the recipe; entries of option mappings after the mapping."""
    return tuple(_of(Config, ""))


def _of(kind: type, where: str, rare: bool = False) -> Iterator[Setting]:
    hints, texts = get_type_hints(kind, include_extras=True), field_texts(kind)
    for each in dataclasses.fields(kind):
        name, hint = where + each.name, hints[each.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _of(hint, f"{name}.")
            continue
        default = each.default
        if each.default_factory is not dataclasses.MISSING:
            default = each.default_factory()
        yield Setting(name, kind_of(hint), shown(default), texts.get(each.name, ""), rare)
        if name in RARE:
            yield from _of(RARE[name], f"{name}.", rare=True)


def help_text(usage: str, *, everything: bool) -> str:
    """The help of `bestofk train`: the usual settings, or all of them."""
    by_name = {each.name: each for each in settings()}
    lines = [usage, ""]
    if not everything:
        lines += [brief(by_name[name], text) for name, text in COMMON.items()]
        return "\n".join(
            [*lines, "", "bestofk train --help-all explains all settings.", EVERY_VERB]
        )
    section = ""
    for each in settings():
        head = each.name.partition(".")[0]
        lines += [""] * (head != section)
        section = head
        lines += described(each)
    return "\n".join(lines)


def brief(each: Setting, text: str) -> str:
    """A setting in one line of at most 79 characters."""
    default = f" [{each.default}]" if each.default else ""
    return f"  {f'--{each.name}{default}':<38} {text}"


def described(each: Setting) -> list[str]:
    """A setting in as many lines as its text needs."""
    indent = "      " if each.rare else "  "
    default = f" [{each.default}]" if each.default else ""
    text = textwrap.indent(textwrap.fill(each.text, 74 - len(indent)), indent + "    ")
    return [f"{indent}--{each.name}  {each.kind}{default}", text]
