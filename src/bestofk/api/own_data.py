"""Data and rewards given in Python, as the entries of a recipe."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from bestofk.objectives import Objective
from bestofk.objectives import objective as make_objective
from bestofk.rewards import from_function
from bestofk.rewards import verifier as verifier_by_name
from bestofk.tasks import TASKS
from bestofk.tasks.data_rows import read
from bestofk.types import Verifier


def named_reward(reward: Any) -> tuple[Verifier | None, str | None]:
    """A reward as a verifier and the name the recipe records; the name alone for a string."""
    if reward is None:
        return None, None
    if isinstance(reward, str):
        verifier_by_name(reward)
        return None, reward
    built = from_function(reward)
    module = getattr(reward, "__module__", None) or type(reward).__module__
    return built, f"{module}:{getattr(reward, '__qualname__', built.name)}"


def data_options(
    sources: Mapping[str, Any],
    reward: str | None,
    *,
    prompt: str | None,
    folder: Path,
    environment: str | None = None,
) -> tuple[dict[str, Any], int | None, dict[Path, str]]:
    """The recipe's [task] for these data, the number of training rows (None for a task), and the
    files, by path, that hold rows given in Python: in data/ of the run's folder, so that the run
    can be resumed and repeated from there."""
    sources = {
        split: [*rows] if isinstance(rows, Iterator) else rows for split, rows in sources.items()
    }
    train = sources["train"]
    if isinstance(train, str) and train in TASKS:
        named = {"verifier": reward, "environment": environment}
        return {"name": train} | {key: value for key, value in named.items() if value}, None, {}
    if train is None:
        raise ValueError("data is needed: rows, a file, or the name of a task such as 'countdown'")
    if reward is None and environment is None:
        raise ValueError(
            "own data need a reward: a function, or the name of a verifier such as 'maths'"
        )
    options: dict[str, Any] = {"prompt": prompt} if prompt else {}
    files: dict[Path, str] = {}
    for split, source in sources.items():
        if isinstance(source, str | PathLike):
            text = str(source)
            is_hub = text.startswith("hub:")
            options[split] = text if is_hub else str(Path(text).expanduser().absolute())
        elif source is not None:
            path = folder / "data" / f"{split}.jsonl"
            files[path], options[split] = as_lines(read(source, split)), str(path)
    count = len(read(train))
    if not count:
        raise ValueError("data has no rows")
    section = {"verifier": reward, "environment": environment}
    return {"name": "dataset", "options": options, **section}, count, files


def as_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as the text of a JSONL file."""
    try:
        return "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
    except TypeError as error:
        raise ValueError(
            f"rows of data hold JSON values (text, numbers, lists, dicts): {error}"
        ) from error


@contextlib.contextmanager
def files_of(rows: Mapping[Path, str], folder: Path) -> Iterator[None]:
    """Rows given in Python as files in the run's folder, for as long as no run begins there; then
    they stay."""
    for path, text in rows.items():
        if path.exists() and not (folder / "config.toml").exists():
            raise FileExistsError(f"{path} exists, and rows would be kept there: name another dir")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        if rows and not (folder / "config.toml").exists():
            for path in rows:
                path.unlink()
            with contextlib.suppress(OSError):  # they may hold other files
                (folder / "data").rmdir()
                folder.rmdir()


def objective_settings(objective: str | Objective) -> dict[str, Any]:
    """An objective as a recipe records it: its string and its options."""
    if isinstance(objective, str):
        return {"objective": objective}
    if not isinstance(objective, Objective):
        raise ValueError(
            f"objective is a string such as 'max@8', or an Objective; got {objective!r}"
        )
    required = {
        name: objective.options[name]
        for term in objective.terms
        for name, default in term.entry.options.items()
        if default is ...
    }
    plain = make_objective(objective.text, **required)
    names = ("truncate", "self_normalise", "clamp", "threshold", "small_groups", "trust_region")
    options = {name: getattr(objective, name) for name in ("off_policy", *names)}
    options |= objective.options
    defaults = {name: plain.options.get(name, getattr(plain, name, ...)) for name in options}
    options = {name: value for name, value in options.items() if value != defaults[name]}
    options |= required
    if objective.stages != plain.stages:
        options["weights"] = [term.weight for term in objective.terms]
    with contextlib.suppress(ValueError):
        if make_objective(objective.text, **options) == objective:
            recorded = {
                k: list(v) if isinstance(v, tuple) else name_of(v) if callable(v) else v
                for k, v in options.items()
            }
            return {"objective": objective.text, "objective_options": recorded}
    raise ValueError(
        f"a run records its objective as a string with options, and bestofk.objective("
        f"{objective.text!r}) gives another one: make it with bestofk.objective(...)"
    )


def name_of(function: Any) -> str:
    """A function as a recipe names it: "module:name"."""
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or not name.isidentifier():
        raise TypeError(
            f"a run records its objective's function by name, and {name} has none: put it into a "
            "file and name it as objective_options.value = 'file.py:name'"
        )
    return f"{module}:{name}"


def free_folder(directory: str | PathLike[str] | None, model: str, objective: str) -> Path:
    """The run's folder: as stated, else the first that is free in runs/."""
    if directory == "":
        raise ValueError(
            "dir is the run's folder, got an empty text: leave it out for one in runs/"
        )
    if directory is not None:
        return Path(directory)
    words = f"{Path(model).name}-{objective}"
    plain = "".join(c if c.isalnum() or c in "-.@" else "-" for c in words)
    number, folder = 1, Path("runs") / plain
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{plain}-{number}"
    return folder
