"""The samples of a file one by one, by role, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestofk.common import choices

from .formats import UNIFORM, Mapped, problem_name, reward_of, settle
from .inspect_logs import grade
from .records import Progress, records
from .unpacking import BadFile


@dataclass(frozen=True)
class Choice:
    """What the caller said about a file."""

    columns: Mapping[str, str]
    where: Mapping[str, str]
    encoding: str = "utf-8"
    judge: str | None = None


@dataclass(frozen=True)
class SampleRow:
    """One sample with its texts, for those who look at samples one by one."""

    line: int
    problem_id: str
    reward: float
    fields: Mapping[str, Any]
    """By role: sample_id, prompt, completion, answer, status, finish_reason, n_tokens, ..."""


def settled(file: Path, line: int, record: Mapping[str, Any], chosen: Choice) -> Mapped:
    try:
        return settle(record, chosen.columns, chosen.judge)
    except ValueError as error:
        raise BadFile(file, line, str(error)) from None


def sample_rows(
    file: Path,
    chosen: Choice,
    progress: Progress,
    uniform: dict[str, tuple[int, Any]] | None = None,
) -> Iterator[tuple[SampleRow, Mapped]]:
    mapped: Mapped | None = None
    uniform = {} if uniform is None else uniform
    for line, record in records(file, encoding=chosen.encoding, progress=progress):
        if mapped is None:
            mapped = settled(file, line, record, chosen)
            _check_where(file, line, record, chosen.where)
        if any(str(record.get(column)) != value for column, value in chosen.where.items()):
            continue
        _check_uniform(file, line, record, uniform, mapped)
        try:
            for fields in _samples(record, mapped):
                problem = fields.pop("problem_id")
                yield (
                    SampleRow(line, problem_name(problem), reward_of(fields["reward"]), fields),
                    mapped,
                )
        except ValueError as error:
            raise BadFile(file, line, str(error)) from None


def _samples(record: Mapping[str, Any], mapped: Mapped) -> Iterator[dict[str, Any]]:
    """The samples of one record, by role."""
    if mapped.expand is not None:
        yield from mapped.expand(record, mapped.columns)
        return
    fields = {role: record.get(column) for role, column in mapped.columns.items()}
    for role in ("problem_id", "reward"):
        column = mapped.columns[role]
        if column not in record and not mapped.format.startswith("inspect"):
            raise ValueError(
                f"no field {column!r}, which holds the {role} of other lines: add it"
                + (" (null where a sample was not scored)" if role == "reward" else "")
                + f", or name another column with --map {role}=..."
            )
    if fields["problem_id"] is None:
        raise ValueError(f"{mapped.columns['problem_id']!r} is null: every sample needs a problem")
    if fields.get("status") == "unscored":
        fields["reward"] = None
    if mapped.format == "verifiers results" and record.get("error"):
        fields["reward"] = None  # the rollout broke: neither right nor wrong
    completion = fields.get("completion")
    if isinstance(completion, list):
        fields["completion"] = text_of_messages(completion)
    if mapped.format.startswith("inspect"):
        fields["reward"] = grade(fields["reward"])
    yield fields


def _check_where(
    file: Path, line: int, record: Mapping[str, Any], where: Mapping[str, str]
) -> None:
    for column in where:
        if column not in record:
            raise BadFile(file, line, f"--where names {column!r}; {choices(column, list(record))}")


def _check_uniform(
    file: Path,
    line: int,
    record: Mapping[str, Any],
    seen: dict[str, tuple[int, Any]],
    mapped: Mapped,
) -> None:
    """Raise an error for a file that mixes tasks, steps, models or filters."""
    for column in UNIFORM:
        if column not in record or column in mapped.columns.values():
            continue
        value = record[column]
        first, was = seen.setdefault(column, (line, value))
        if value != was:
            raise BadFile(
                file,
                line,
                f"{column} is {short(value)}, but {short(was)} in line {first}: a curve is about "
                f"one policy on one task; choose with --where {column}={short(value)}, or split "
                "the file",
            )


def short(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def text_of_messages(messages: list[Any]) -> str:
    """What the assistant wrote in a list of chat messages."""
    texts = [
        str(message.get("content") or "")
        for message in messages
        if isinstance(message, Mapping) and message.get("role") in (None, "assistant")
    ]
    return "\n".join(texts)
