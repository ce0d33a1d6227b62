"""Logs of inspect_ai: `.eval` archives, `.json` documents, and folders of them.

A log becomes one record per sample and epoch: id, epoch, input, target, completion, model, task,
and `score_NAME` and `answer_NAME` for every scorer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .unpacking import Archive, BadFile

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partial, incorrect and no answer, at the values that inspect gives them."""


def grade(value: Any) -> Any:
    """A score as a reward: letters by their value, numbers as they are, NaN = unscored.

    >>> grade("C"), grade("P"), grade(0.25), grade(float("nan"))
    (1.0, 0.5, 0.25, None)
    """
    if isinstance(value, str):
        return GRADES.get(value.strip().upper(), value)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def is_log(document: Any) -> bool:
    """Whether a JSON document is a log of inspect_ai."""
    spec = document.get("eval") if isinstance(document, Mapping) else None
    return isinstance(spec, Mapping) and {"task", "model", "run_id"} <= spec.keys()


def log_records(path: Path, document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One record per sample of a `.json` log."""
    samples = document.get("samples")
    if not samples:
        raise BadFile(
            path, None, "this inspect log holds no samples (was it run with log_samples?)"
        )
    if not isinstance(samples, list):
        raise BadFile(path, None, "the samples of an inspect log are a list")
    for number, sample in enumerate(samples, start=1):
        yield _record(path, number, sample, document["eval"])


def archive_records(
    path: Path, progress: Callable[[int, int], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, record) of the samples of an `.eval` archive, epoch by epoch."""
    with Archive(path) as archive:
        spec = header_of(archive)["eval"]
        names = [name for name in archive.names() if name.startswith("samples/")]
        if not names:
            raise BadFile(path, None, "this inspect log holds no samples")
        for number, name in enumerate(names, start=1):
            try:
                sample = json.loads(archive.read(name))
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadFile(path, number, f"{name} is not JSON ({error})") from None
            yield number, _record(path, number, sample, spec)
            progress(number, len(names))


def header_of(archive: Archive) -> dict[str, Any]:
    """The log without its samples; of a run that did not end, what was written at its start."""
    names = archive.names()
    for name in ("header.json", "_journal/start.json"):
        if name in names:
            try:
                result: Any = json.loads(archive.read(name))
            except (ValueError, RecursionError) as error:
                if isinstance(error, BadFile):
                    raise
                raise BadFile(archive.path, None, f"{name} is not JSON ({error})") from None
            if isinstance(result, dict) and isinstance(result.get("eval"), dict):
                return result
    raise BadFile(archive.path, None, "a zip archive without an inspect log in it")


def _record(path: Path, number: int, sample: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return record_of(sample, spec)
    except (AttributeError, TypeError) as error:
        problem = f"sample {number} is not that of an inspect log ({error})"
        raise BadFile(path, None, problem) from None


def record_of(sample: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with its scores in columns of their own."""
    record: dict[str, Any] = {
        "id": sample.get("id"),
        "epoch": sample.get("epoch"),
        "input": sample.get("input"),
        "target": sample.get("target"),
        "completion": completion_of(sample.get("output") or {}),
        "model": spec.get("model"),
        "task": spec.get("task"),
        "log": "inspect",
    }
    for name, score in (sample.get("scores") or {}).items():
        value = score.get("value")
        parts = value if isinstance(value, Mapping) else {"": value}
        for part, each in parts.items():
            record[f"score_{name}" + (f".{part}" if part else "")] = grade(each)
        record[f"answer_{name}"] = score.get("answer")
    names = [str(each.get("name")) for each in spec.get("scorers") or ()]
    for name in names:  # a sample that failed before it was scored
        if not any(column.startswith(f"score_{name}") for column in record):
            record[f"score_{name}"] = None
    return record


def completion_of(output: Mapping[str, Any]) -> str | None:
    """The text of the first choice."""
    if isinstance(output.get("completion"), str) and output["completion"]:
        return str(output["completion"])
    for choice in output.get("choices") or ():
        content = (choice.get("message") or {}).get("content")
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            return "".join(str(part.get("text", "")) for part in content)
    return None


def scores_in(record: Mapping[str, Any]) -> list[str]:
    """The scorers' columns of a record."""
    return [name for name in record if name.startswith("score_")]


def newest_log(folder: Path) -> Path | None:
    """The newest log in a folder of inspect_ai; None where there is none.

    Raises:
        BadFile: logs of several tasks or models.
    """
    logs = sorted(folder.glob("*.eval"))
    if not logs:
        return None
    about: dict[tuple[str, str], Path] = {}
    for log in logs:
        with Archive(log) as archive:
            spec = header_of(archive)["eval"]
        about[str(spec.get("task")), str(spec.get("model"))] = log
    if len(about) > 1:
        listed = "; ".join(f"{log.name}: {task} on {model}" for (task, model), log in about.items())
        raise BadFile(folder, None, f"logs of several evaluations: name one of them ({listed})")
    return logs[-1]
