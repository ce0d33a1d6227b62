"""What a report is made from: files of samples, and folders of training runs."""

from __future__ import annotations

import mmap
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bestofk import runs
from bestofk.samples import Samples, locate, named_paths, read, rows

Row: TypeAlias = Mapping[str, Any]
Fetch: TypeAlias = Callable[[Sequence[int]], Mapping[int, Row]]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One run: its samples, and what its folder says about how it was trained."""

    name: str
    """Unique among the sources of a report."""
    path: str
    format: str
    samples: Samples | None = None
    fetch: Fetch = lambda _: {}
    """The rows behind samples at flat positions: completion, prompt, status, answer, …"""
    metrics: tuple[Row, ...] = ()
    """Lines of metrics.jsonl."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted name."""
    notes: tuple[str, ...] = ()

    def fact(self, key: str) -> str | None:
        """What is known of the model, task, sampling or seed, in words; None where nothing is."""
        read = {} if self.samples is None else self.samples.metadata
        value = {**facts_of(self.config), **read}.get(key)
        if value in (None, "", (), [], {}):
            return None
        step = read.get("step")
        return (
            f"{words(value)}, step {step}" if key == "model" and step is not None else words(value)
        )


def words(value: Any) -> str:
    """A recorded value for a reader.

    >>> words({"temperature": 1.0, "top_p": 0.95}), words([0, 1, 2, 3]), words("gpt")
    ('temperature 1.0, top_p 0.95', '0, 1, 2, 3', 'gpt')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        items = [words(item) for item in value]
        return ", ".join(items) if len(items) <= 8 else f"{', '.join(items[:7])}, … ({len(items)})"
    return str(value)


def load(
    arguments: Sequence[str], *, say: Callable[[str], None] = lambda _: None, **reading: Any
) -> list[Source]:
    """Read every argument: PATH or NAME=PATH, each a run's folder or a file of samples.

    Args:
        say: told what is being read.
        reading: columns, where, encoding, cluster, as in `bestofk.samples.read`.

    Raises:
        ValueError: nothing to read in it; a name used twice. OSError: no such file.
    """
    sources = []
    for name, path in named_paths(arguments):
        say(str(path))
        load_one = load_folder if path.is_dir() else load_file
        sources.append(load_one(path, name, say, reading))
    return sources


def load_file(
    path: Path, name: str, say: Callable[[str], None], reading: Mapping[str, Any]
) -> Source:
    """A file of samples, in any format that evaluation reads.

    Raises:
        BadFile: with file, line and remedy.
    """

    def progress(position: int, total: int) -> None:
        say(f"{path} {100 * position // max(total, 1)}%")

    samples = read(path, name=name, progress=progress, **reading)
    settings = settings_beside(path)
    facts = {**facts_of(settings), **samples.metadata}
    if path.parent.name == "evaluations" and "evaluation.split" in settings:
        facts["task"] = f"{facts.get('task', 'task')}, {settings['evaluation.split']} split"
    facts["seed"] = facts.get("seed", seeds_of(path))
    return Source(
        name=name,
        path=str(path),
        format=str(facts.get("format", "")),
        samples=replace(samples, metadata=facts),
        fetch=lambda positions: fetch(path, samples, positions, reading),
        notes=tuple(f"{name}: {note}" for note in facts.get("notes", ())),
    )


SEED = re.compile(rb'"seed"\s*:\s*(-?[0-9]{1,20})\b')
"""Of a field, at any depth. Inside a text the quotes would be escaped, so it cannot be meant."""


def fetch(
    path: Path, samples: Samples, positions: Sequence[int], options: Mapping[str, Any]
) -> dict[int, Row]:
    """The fields of the samples at flat positions, by position and role.

    Args:
        options: columns, where and encoding with which the samples were read.
    """
    if samples.lines is None or not positions:
        return {}
    fields_by_line: dict[int, list[Row]] = {int(samples.lines[each]): [] for each in positions}
    for row in rows(path, only=fields_by_line, **options):
        if row.line in fields_by_line:
            fields_by_line[row.line].append(row.fields)
    return {
        each: fields_by_line[int(samples.lines[each])][occurrence(samples, each)]
        for each in positions
    }


def occurrence(samples: Samples, position: int) -> int:
    """How many samples of the same line come before: a line may hold several."""
    assert samples.lines is not None
    problem = int(np.searchsorted(samples.offsets, position, side="right")) - 1
    start = int(samples.offsets[problem])
    line = samples.lines[position]
    return int((samples.lines[start:position] == line).sum())


def seeds_of(path: Path) -> str | None:
    """The seeds that a JSONL file records, in words; None where it records none."""
    if path.suffix not in (".jsonl", ".ndjson") or not path.stat().st_size:
        return None
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
        result = sorted({int(seed) for seed in set(SEED.findall(text))})
    if len(result) > 6:
        return f"{result[0]}…{result[-1]} ({len(result)})"
    return ", ".join(map(str, result)) or None


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings of a run say about its model, task, sampling and seed."""
    names = {"model": "model.path", "task": "task.name", "seed": "run.seed"}
    facts = {fact: config[name] for fact, name in names.items() if name in config}
    if "sampling.temperature" in config:
        facts["sampling"] = {"temperature": config["sampling.temperature"]}
    return facts


def settings_beside(file: Path) -> dict[str, Any]:
    """The settings of the run whose folder keeps this file; none where it is in no run's folder."""
    is_kept = file.parent.name in ("evaluations", "samples")
    return settings_in(file.parent.parent) if is_kept else {}


def load_folder(
    path: Path, name: str, say: Callable[[str], None], reading: Mapping[str, Any]
) -> Source:
    """A training run: its settings, its metrics, and its newest evaluated samples.

    Raises:
        ValueError: the folder is no run's, or is empty.
    """
    recorded = path / "metrics.jsonl"
    if not (path / "config.toml").is_file() and not recorded.is_file():
        return load_file(locate(path), name, say, reading)
    metrics = tuple(runs.read_metrics(path)) if recorded.is_file() else ()
    source = Source(name=name, path=str(path), format="run folder")
    if any(any((path / folder).glob("*.jsonl")) for folder in ("evaluations", "samples")):
        source = load_file(locate(path), name, say, reading)
    if source.samples is None and not metrics:
        raise ValueError(
            f"{path} is an empty run: no step was recorded in metrics.jsonl and no sample was kept"
        )
    return replace(source, metrics=metrics, config=settings_in(path))


def settings_in(folder: Path) -> dict[str, Any]:
    """The settings of a run's folder by dotted name; none where it has no config.toml."""
    file = folder / "config.toml"
    try:
        return flatten(tomllib.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None


def flatten(settings: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested settings by dotted name.

    >>> flatten({"seed": 1, "loss": {"name": "exact"}})
    {'seed': 1, 'loss.name': 'exact'}
    """
    result: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            result |= flatten(value, f"{where}{key}.")
        else:
            result[where + key] = value
    return result
