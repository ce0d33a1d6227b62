"""The settings of a recipe as flags: `--run.steps 50`, `--loss.clip 0.2 0.3`.

A value is a TOML literal, or a word; an entry of a table is given by its name
(`--task.options.numbers 5`). `bestofk train --help` and the reference of the site are made from the
same list.
"""

from __future__ import annotations

import textwrap
from functools import cache
from typing import Literal, get_args, get_origin

from bestofk.cli._options import EVERY_VERB, Flag, flags_of, row, shown
from bestofk.config import Config

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
    "sampling.engine": "auto, group, transformers or vllm",
    "optimizer.learning_rate": "peak rate; by the model's size",
    "evaluation.every": "steps between evaluations; 0 is never",
    "evaluation.samples_per_prompt": "n of an evaluation",
    "run.dir": "folder of the run",
    "run.steps": "number of steps",
    "run.seed": "fixes every random draw",
}
WORDS = {int: "integer", float: "number", str: "text", bool: "true | false"}


@cache
def recipe_flags() -> tuple[Flag, ...]:
    """Every setting, in the order of the recipe."""
    return tuple(flags_of(Config))


def kind_of(flag: Flag) -> str:
    """The kind of a setting in a word."""
    choices = " | ".join(map(str, get_args(flag.kind))) if get_origin(flag.kind) is Literal else ""
    word = choices or WORDS.get(flag.kind, "table")
    return f"list of {word}" if flag.count is not None and flag.count >= 0 else word


def recipe_help(usage: str, *, everything: bool) -> str:
    """The help of `bestofk train`: the usual settings, or all of them."""
    flags = {flag.name: flag for flag in recipe_flags()}
    lines = [usage, ""]
    if not everything:
        for name, text in COMMON.items():
            lines += row(flags[name], f"--{name}", text, column=41)
        return "\n".join(
            [*lines, "", "bestofk train --help-all explains all settings.", EVERY_VERB]
        )
    section = ""
    for name, flag in flags.items():
        head = name.rpartition(".")[0]
        lines += ["", f"[{head}]"] if head != section else []
        section = head
        default = f" [{shown(flag.default)}]" if shown(flag.default) else ""
        lines.append(f"  --{name}  {kind_of(flag)}{default}")
        lines += textwrap.wrap(flag.text, 79, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)
