"""Read a run of samples from a file that any tool wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .arrow import read_fast
from .collect import EXCERPT_LINES, Collector, run_name
from .formats import Mapped, answer_label, number_of
from .guards import check_samples
from .inspect_logs import newest_log
from .records import Progress, quiet, records, shards
from .results import Samples
from .sample_rows import Choice, SampleRow, sample_rows, settled
from .unpacking import BadFile

LARGEST_NUMBER = 1 << 62


def read(
    path: str | Path,
    *,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
    judge: str | None = None,
    progress: Progress = quiet,
) -> Samples:
    """All samples of a file, streamed; `metadata` says which format and mapping were used.

    Args:
        path: JSONL, CSV, TSV (also .gz and .zst), parquet, an inspect log, evalplus results, or a
            folder: of a run, of inspect logs, of a dataset as the Hub keeps it.
        name: what to call the run; by default the file's name.
        columns: role → column, to override what was detected (`reward="score"`).
        where: column → value: only such records count.
        encoding: of text files.
        judge: how responses of lm-eval are scored one by one: "target", or "regex:PATTERN".
        progress: told the bytes done and the bytes in all.

    Raises:
        BadFile: with file, line and remedy.
    """
    file = locate(path)
    chosen = Choice(columns or {}, where or {}, encoding, judge)
    collector, mapped = read_fast(file, chosen, progress) or _gather(file, chosen, progress)
    if not collector.problems:
        reported = ", ".join(f"{column}={value}" for column, value in chosen.where.items())
        raise BadFile(file, None, "it holds no sample" + (f" with {reported}" if reported else ""))
    metadata = {
        **collector.uniform,
        "path": str(file),
        "format": mapped.format,
        "mapping": dict(mapped.columns),
        "notes": mapped.notes + check_samples(file, collector, mapped.columns),
    }
    return collector.finish(name or run_name(file), metadata)


def rows(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
    judge: str | None = None,
    progress: Progress = quiet,
) -> Iterator[SampleRow]:
    """The samples of a file one by one, with their texts. Arguments as in `read`."""
    chosen = Choice(columns or {}, where or {}, encoding, judge)
    for row, _ in sample_rows(locate(path), chosen, progress):
        yield row


def mapping(path: str | Path, columns: Mapping[str, str] | None = None, **options: Any) -> Mapped:
    """How the columns of a file are understood, from its first record."""
    file = locate(path)
    for line, record in records(file, **options):
        return settled(file, line, record, Choice(columns or {}, {}))
    raise BadFile(file, None, "the file is empty")


def locate(path: str | Path) -> Path:
    """The file to read: `path`, or the newest samples in a folder that a tool wrote.

    Our runs keep evaluations/ (preferred) and samples/; TRL writes completions/*.parquet; verl
    writes one numbered .jsonl per step; inspect writes one .eval per evaluation; the Hub keeps a
    dataset in numbered parquet files, which are read as one.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    log = newest_log(path)
    if log is not None:
        return log
    if shards(path):
        return path
    for folder, pattern in (
        (path / "evaluations", "*.jsonl"),
        (path / "samples", "*.jsonl"),
        (path / "completions", "*.parquet"),
        (path, "*.jsonl"),
        (path, "*.parquet"),
    ):
        result = sorted(folder.glob(pattern), key=lambda file: (len(file.name), file.name))
        if len(result) > 1 and result[-1].name.startswith("details_"):  # of lighteval, by task
            named = ", ".join(file.name for file in result)
            raise BadFile(
                path, None, f"the folder holds the details of several tasks: name {named}"
            )
        if result:
            return result[-1]
    raise BadFile(
        path, None, "a folder without samples (*.jsonl, *.parquet or *.eval): name a file"
    )


def _gather(file: Path, chosen: Choice, progress: Progress) -> tuple[Collector, Mapped]:
    """Every sample into columns; the careful way, which finds the line of every error."""
    collector = Collector()
    result = Mapped("empty", {})
    uniform: dict[str, tuple[int, Any]] = {}
    for row, mapped in sample_rows(file, chosen, progress, uniform):
        result, fields = mapped, row.fields
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
        if "completion" in fields:
            collector.keep_hash(fields["completion"])
        if row.line <= EXCERPT_LINES:
            collector.keep_text(problem, fields.get("completion"))
    collector.uniform = {column: value for column, (_, value) in uniform.items()}
    twice = collector.duplicate()
    if twice:
        raise BadFile(
            file,
            twice[1],
            f"the same problem and sample number as line {twice[0]}: were two runs written to one "
            "file? Remove one of them, or do not read the numbers (--map sample_id=)",
        )
    return collector, result


def _sample_number(file: Path, row: SampleRow) -> int:
    value = row.fields["sample_id"]
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = LARGEST_NUMBER
    if abs(number) >= LARGEST_NUMBER:
        raise BadFile(
            file,
            row.line,
            f"the sample number {str(value)[:60]!r} is not a whole number of at most 62 bits: "
            "leave it out with --map sample_id=",
        )
    return number
