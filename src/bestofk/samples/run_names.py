"""The arguments of `eval`, `compare` and `report`: PATH or NAME=PATH, and what to call each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bestofk.messages import did_you_mean

from .records import KINDS, locate, without_packing


def named_paths(arguments: Sequence[str]) -> list[tuple[str, Path]]:
    """Name and path of each argument, a file of samples or a folder."""
    if not arguments:
        raise ValueError("name at least one run folder or file of samples")
    pairs = [split_name(argument) for argument in arguments]
    default = iter(unique_names([path for name, path in pairs if name is None]))
    result = [(name or next(default), path) for name, path in pairs]
    path_of: dict[str, Path] = {}
    for name, path in result:
        if name in path_of:
            raise ValueError(
                f"two runs are called {name!r} ({path_of[name]} and {path}): give them names, like "
                "base=a.jsonl trained=b.jsonl"
            )
        path_of[name] = path
    return result


def split_name(argument: str) -> tuple[str | None, Path]:
    """The name given to a run, if any, and its path; "-" is JSON lines on standard input."""
    if argument == "-" or argument.endswith("=-"):
        return argument[:-2] or None, locate("-")
    if Path(argument).exists():
        return None, Path(argument)
    for at in (i for i, c in enumerate(argument) if c == "=" and i):
        if Path(argument[at + 1 :]).exists():
            return argument[:at], Path(argument[at + 1 :])
    missing = Path(argument.rpartition("=")[2])
    siblings = [file.name for file in missing.parent.iterdir()] if missing.parent.is_dir() else []
    raise FileNotFoundError(
        f"no such file or folder: {missing}; {did_you_mean(missing.name, siblings)}state run "
        "folders or files of samples, each PATH or NAME=PATH; draw samples from a model or an "
        "endpoint with bestofk sample"
    )


def run_name(path: Path) -> str:
    """What to call the run of a file: its name, or its folder's where the name says only a step.

    >>> run_name(Path("runs/a/evaluations/000050.jsonl")), run_name(Path("b.jsonl.gz"))
    ('a 000050', 'b')
    """
    name = without_packing(path.name)
    stem = name[: -len(Path(name).suffix)] if name.lower().endswith(KINDS) else name
    if not stem.isdigit():
        return stem
    folder = path.parent
    folder = folder.parent if folder.name in ("evaluations", "samples") else folder
    return f"{folder.name} {stem}".strip()


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The name of each run, with as many of its folders as tell it from the others.

    >>> unique_names([Path("runs/a/eval.jsonl"), Path("runs/b/eval.jsonl"), Path("base.jsonl")])
    ['a/eval', 'b/eval', 'base']
    """
    short = [run_name(path.resolve()) for path in paths]
    names, clashing = short, {name for name in short if short.count(name) > 1}
    if len({path.resolve() for path in paths}) < len(paths):
        return names  # the same file twice: no folder tells it from itself
    for depth in range(1, 64):
        if len(set(names)) == len(names):
            break
        longer = ["/".join([*p.resolve().parts[-depth - 1 : -1], n]) for p, n in zip(paths, short)]
        names = [each if name in clashing else name for name, each in zip(short, longer)]
    return names
