"""Read a run of samples from a file that any tool wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestofk.common import choices

from .collect import Collector, run_name
from .formats import (
    UNIFORM,
    Mapped,
    answer_label,
    number_of,
    problem_name,
    reward_of,
    settle,
)
from .records import BadFile, Progress, quiet, records
from .results import Samples

EXCERPT_LINES = 5_000
"""Texts for the compression ratio come from the first lines of a file only."""


@dataclass(frozen=True)
class Choice:
    """What the caller said about a file."""

    columns: Mapping[str, str]
    where: Mapping[str, str]
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Row:
    """One sample with its texts, for those who look at samples one by one."""

    line: int
    problem_id: str
    reward: float
    fields: Mapping[str, Any]
    """By role: sample_id, prompt, completion, answer, status, finish_reason, n_tokens, ..."""


def read(
    path: str | Path,
    *,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
    progress: Progress = quiet,
) -> Samples:
    """All samples of a file, streamed; `metadata` says which format and mapping were used.

    Args:
        path: JSONL (.gz too), CSV, TSV, parquet, evalplus results, or the folder of a run.
        name: what to call the run; by default the file's name.
        columns: role → column, to override what was detected (`reward="score"`).
        where: column → value: only such records count.
        encoding: of text files.
        progress: told the bytes done and the bytes in all.

    Raises:
        BadFile: with file, line and remedy.
    """
    from .arrow import read_fast

    file = locate(path)
    chosen = Choice(columns or {}, where or {}, encoding)
    collector, mapped = read_fast(file, chosen, progress) or _gather(file, chosen, progress)
    if not collector.problems:
        told = ", ".join(f"{column}={value}" for column, value in chosen.where.items())
        raise BadFile(file, None, "it holds no sample" + (f" with {told}" if told else ""))
    metadata = {
        **collector.uniform,
        "path": str(file),
        "format": mapped.format,
        "mapping": dict(mapped.columns),
        "notes": mapped.notes,
    }
    return collector.finish(name or run_name(file), metadata)


def rows(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
    progress: Progress = quiet,
) -> Iterator[Row]:
    """The samples of a file one by one, with their texts. Arguments as in `read`."""
    chosen = Choice(columns or {}, where or {}, encoding)
    for row, _ in _rows(locate(path), chosen, progress):
        yield row


def mapping(path: str | Path, columns: Mapping[str, str] | None = None, **options: Any) -> Mapped:
    """How the columns of a file are understood, from its first record."""
    file = locate(path)
    for line, record in records(file, **options):
        return _settle(file, line, record, columns or {})
    raise BadFile(file, None, "the file is empty")


def locate(path: str | Path) -> Path:
    """The file to read: `path`, or the newest samples in a folder that a run or a trainer wrote.

    Our runs keep evaluations/ (preferred) and samples/; TRL writes completions/*.parquet; verl
    writes one numbered .jsonl per step.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    for folder, pattern in (
        (path / "evaluations", "*.jsonl"),
        (path / "samples", "*.jsonl"),
        (path / "completions", "*.parquet"),
        (path, "*.jsonl"),
        (path, "*.parquet"),
    ):
        found = sorted(folder.glob(pattern), key=lambda file: (len(file.name), file.name))
        if found:
            return found[-1]
    raise BadFile(path, None, "a folder without samples (*.jsonl or *.parquet): name a file")


def _settle(file: Path, line: int, record: Mapping[str, Any], columns: Mapping[str, str]) -> Mapped:
    try:
        return settle(record, columns)
    except ValueError as error:
        raise BadFile(file, line, str(error)) from None


def _rows(
    file: Path,
    chosen: Choice,
    progress: Progress,
    uniform: dict[str, tuple[int, Any]] | None = None,
) -> Iterator[tuple[Row, Mapped]]:
    mapped: Mapped | None = None
    uniform = {} if uniform is None else uniform
    for line, record in records(file, encoding=chosen.encoding, progress=progress):
        if mapped is None:
            mapped = _settle(file, line, record, chosen.columns)
            _check_where(file, line, record, chosen.where)
        if any(str(record.get(column)) != value for column, value in chosen.where.items()):
            continue
        _check_uniform(file, line, record, uniform, mapped)
        try:
            for fields in _samples(record, mapped):
                problem = fields.pop("problem_id")
                yield Row(line, problem_name(problem), reward_of(fields["reward"]), fields), mapped
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
        if column not in record:
            raise ValueError(
                f"no field {column!r}, which holds the {role} of other lines: add it"
                + (" (null where a sample was not scored)" if role == "reward" else "")
                + f", or name another column with --columns {role}=..."
            )
    if fields["problem_id"] is None:
        raise ValueError(f"{mapped.columns['problem_id']!r} is null: every sample needs a problem")
    if fields.get("status") == "unscored":
        fields["reward"] = None
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
    """Refuse a file that mixes tasks, steps, models or filters."""
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


def _gather(file: Path, chosen: Choice, progress: Progress) -> tuple[Collector, Mapped]:
    """Every sample into columns; the careful way, which finds the line of every error."""
    collector = Collector()
    found = Mapped("empty", {})
    uniform: dict[str, tuple[int, Any]] = {}
    for row, mapped in _rows(file, chosen, progress, uniform):
        found, fields = mapped, row.fields
        problem = collector.number(row.problem_id)
        collector.problem.append(problem)
        collector.reward.append(row.reward)
        collector.line.append(row.line)
        if "sample_id" in fields:
            collector.sample_id.append(_sample_number(file, row))
        if "answer" in fields:
            collector.answer.append(answer_label(fields["answer"]))
        if "status" in fields:
            collector.status.append(collector.state(fields["status"]))
        for role, column in (
            ("n_tokens", collector.tokens),
            ("logprob_sum", collector.logprob),
            ("new_logprob_sum", collector.new_logprob),
        ):
            if role in fields:
                column.append(number_of(fields[role]))
        if row.line <= EXCERPT_LINES:
            collector.keep_text(problem, fields.get("completion"))
    collector.uniform = {column: value for column, (_, value) in uniform.items()}
    twice = collector.duplicate()
    if twice:
        raise BadFile(
            file,
            twice[1],
            f"the same problem and sample number as line {twice[0]}: were two runs written to one "
            "file? Remove one of them, or do not read the numbers (--columns sample_id=)",
        )
    return collector, found


def _sample_number(file: Path, row: Row) -> int:
    value = row.fields["sample_id"]
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BadFile(
            file,
            row.line,
            f"the sample number {value!r} is not a whole number: leave it out with "
            "--columns sample_id=",
        ) from None
