"""Read a run of samples from a file that any tool wrote.

A file becomes records (`records`), a record becomes samples by role (`tool_formats`, `columns`),
and samples become columns of numbers. What would give wrong numbers in silence is an error.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bestofk.messages import choices

from .columns import (
    UNIFORM,
    Mapped,
    answer_label,
    number_of,
    problem_name,
    reward_of,
    sample_number,
    settle,
)
from .packing import BadFile
from .records import Progress, locate, no_progress, records
from .run_names import run_name
from .sample_arrays import Samples

EXCERPT_PROBLEMS, EXCERPT_TEXTS, EXCERPT_CHARACTERS, EXCERPT_LINES = 400, 16, 2000, 5000
"""Bounds of the texts kept for the compression ratio: at most 13 million characters, of the first
lines of a file."""
LEAST_REPEATED = 32
"""Samples without texts that must repeat before a file counts as written twice."""


class SampleRow(NamedTuple):
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
    judge: str | None = None,
    cluster: str | None = None,
    progress: Progress = no_progress,
) -> Samples:
    """All samples of a file, streamed; `metadata` says which format and mapping were used.

    Args:
        path: JSONL, JSON, CSV, TSV (also packed), Parquet, an inspect log, or a folder: of a run,
            of its parts, of inspect logs, of a dataset as the Hub keeps it; "-" is JSON lines on
            standard input.
        name: what to call the run; by default the file's name.
        columns: role → column, to override what was detected (`reward="score"`).
        where: column → value: only such records count.
        encoding: of text files.
        judge: how responses of lm-eval and lighteval are scored one by one: "target", or
            "regex:PATTERN".
        cluster: the column that says which problems are alike (`doc.subject` inside a table), or
            "prefix": problems whose ids differ in the last number alone.
        progress: told the bytes done and the bytes in all.

    Raises:
        BadFile: with file, line and remedy.
    """
    file = locate(path)
    numbered = records(file, encoding=encoding, progress=progress)
    loop = _Records(file, numbered, columns or {}, where or {}, judge, cluster)
    return _gathered(loop, name or run_name(file), _about_file(file, Path(path)))


def from_records(
    rows: Iterable[Mapping[str, Any]], *, name: str = "samples", **options: Any
) -> Samples:
    """Samples from records in memory, as `read` would read them from a file.

    >>> from_records([{"id": "a", "score": "yes"}, {"id": "a", "score": "no"}]).rewards
    array([1., 0.])
    """
    numbered = enumerate((dict(row) for row in rows), start=1)
    return _gathered(_Records(Path(name), numbered, **options), name, ())


def _gathered(loop: _Records, name: str, notes: tuple[str, ...]) -> Samples:
    gathered = _Columns()
    for row in loop:
        try:
            gathered.add(row)
        except ValueError as error:
            raise BadFile(loop.file, row.line, str(error)) from None
    mapped = loop.mapped
    if not gathered.problems or mapped is None:
        said = ", ".join(f"{column}={value}" for column, value in loop.where.items())
        raise BadFile(loop.file, None, "it holds no sample" + (f" with {said}" if said else ""))
    if loop.cluster is None:
        notes += _alike(list(gathered.problems))
    if mapped.format == "TRL completions":
        notes += _repeated(loop, gathered)
    columns = dict(mapped.columns)
    if np.isnan(gathered.column("score")).all():
        columns.pop("score", None)
        gathered.numbers["score"] = array("d")
    metadata = {
        **{column: value for column, (_, value) in loop.uniform.items()},
        "path": str(loop.file),
        "format": mapped.format,
        "mapping": columns,
        "notes": mapped.notes + check_samples(loop.file, gathered, mapped.columns) + notes,
    }
    return gathered.finish(name, metadata)


def _about_file(file: Path, argument: Path) -> tuple[str, ...]:
    """Samples of a training step are no evaluation, and must not be taken for one."""
    if file.parent.name != "samples" or not (file.parent.parent / "config.toml").exists():
        return ()
    step = int(file.stem) if file.stem.isdigit() else file.stem
    return (
        f"the run has no evaluations: these are samples of training step {step}, on training "
        f"prompts; for an evaluation, draw samples from {argument / 'final'} with bestofk sample"
        if argument.is_dir()
        else f"these are samples of training step {step}, on training prompts, and no evaluation",
    )


def prefix_of(problem: str) -> str:
    """A problem id without its last number.

    >>> prefix_of("algebra/17"), prefix_of("AIME-2024-3"), prefix_of("x")
    ('algebra', 'AIME-2024', 'x')
    """
    return re.sub(r"[-_/:#. ]*\d+$", "", problem)


def _alike(problems: Sequence[str]) -> tuple[str, ...]:
    """Ids that begin alike may tell of sources whose problems are alike."""
    groups = Counter(prefix_of(problem) for problem in problems)
    if "" in groups or not 2 <= len(groups) <= len(problems) / 3 or min(groups.values()) < 2:
        return ()
    shown = ", ".join(f"{name!r} ({count})" for name, count in groups.most_common(3))
    return (
        f"problem ids have {len(groups)} beginnings, like {shown}: if problems of one source are "
        "alike, intervals over problems are too narrow; use --cluster COLUMN or --cluster prefix",
    )


def _repeated(loop: _Records, samples: _Columns) -> tuple[str, ...]:
    """TRL's file of a step may begin with the rows of the file before: of an earlier policy."""
    file = loop.file
    earlier = [each for each in file.parent.glob(f"*{file.suffix}") if each.name < file.name]
    if not earlier or not samples.numbers["completion"]:
        return ()
    number, names = NUMBERS["completion"][1], list(samples.problems)
    try:
        before = rows(max(earlier), columns=loop.columns)
        last = [(row.problem_id, number(row.fields.get("completion"))) for row in before]
    except ValueError:
        return ()
    new = [(names[p], h) for p, h in zip(samples.problem, samples.numbers["completion"])]
    longest = min(len(new), len(last))
    same = next((m for m in range(longest, 1, -1) if last[-m:] == new[:m]), 0)
    if len(set(new[:same])) < 2:
        return ()
    return (
        f"the first {same} of {len(new)} rows repeat the end of {max(earlier).name}: with "
        "evaluation on, or with several steps a generation, TRL writes rows again, so samples of "
        "an earlier policy stand under this step",
    )


def rows(
    path: str | Path,
    *,
    encoding: str = "utf-8",
    only: Container[int] | None = None,
    **options: Any,
) -> Iterator[SampleRow]:
    """The samples of a file one by one, with their texts. Arguments as in `read` and `records`."""
    file = locate(path)
    return iter(_Records(file, records(file, encoding=encoding, only=only), **options))


@dataclass
class _Records:
    """The loop over records; afterwards it knows the mapping and what never changed."""

    file: Path
    numbered: Iterable[tuple[int, dict[str, Any]]]
    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    judge: str | None = None
    cluster: str | None = None
    mapped: Mapped | None = None
    uniform: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """Column → the line it was first met in, and its value."""

    def __iter__(self) -> Iterator[SampleRow]:
        steady: tuple[str, ...] = ()
        line, where = None, self.where.items()
        try:
            for line, record in self.numbered:
                if not self.mapped:
                    self.mapped = self._settle(record)
                    mapped_columns = {*self.mapped.columns.values(), self.cluster}
                    steady = tuple(column for column in UNIFORM if column not in mapped_columns)
                if any(value not in _spellings(record.get(column)) for column, value in where):
                    continue
                for column in steady:
                    if column in record:
                        self._check_steady(column, record[column], line)
                for fields in self.mapped.samples(record, self.mapped.columns):
                    named = fields.pop("problem_id")
                    if named is None or named == "":
                        column = self.mapped.columns["problem_id"]
                        raise ValueError(
                            f"{column!r} is null or empty: every sample needs a problem"
                        )
                    problem = problem_name(named)
                    if self.cluster:
                        fields["cluster"] = self._cluster(record, problem)
                    yield SampleRow(line, problem, reward_of(fields["reward"]), fields)
        except BadFile:
            raise
        except ValueError as error:
            raise BadFile(self.file, line, str(error)) from None
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            told = f"{type(error).__name__}: {error}"
            raise BadFile(self.file, line, f"not a record as its tool writes it ({told})") from None

    def _settle(self, record: Mapping[str, Any]) -> Mapped:
        for column in self.where:
            if column not in record:
                raise ValueError(f"--where names {column!r}; {choices(column, list(record))}")
        return settle(record, self.columns, self.judge)

    def _cluster(self, record: Mapping[str, Any], problem: str) -> str:
        """What --cluster says of a problem: a column, a field inside one, or the id's beginning."""
        assert self.cluster is not None
        if self.cluster not in record and self.cluster == "prefix":
            return prefix_of(problem)
        value: Any = record
        for part in [self.cluster] if self.cluster in record else self.cluster.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None or value == "":
            raise ValueError(
                f"--cluster names {self.cluster!r}, and problem {problem!r} has none; "
                + choices(self.cluster, [*record, "prefix"])
            )
        return problem_name(value)

    def _check_steady(self, column: str, value: Any, line: int) -> None:
        """Raise an error for a file that mixes tasks, steps, models or filters."""
        first, was = self.uniform.setdefault(column, (line, value))
        if value != was:
            raise ValueError(
                f"{column} is {str(value)[:60]}, but {str(was)[:60]} in line {first}: a curve is "
                f"about one policy on one task; choose with --where {column}={str(value)[:60]}, or "
                "split the file"
            )


NUMBERS: dict[str, tuple[str, Callable[[Any], float]]] = {
    "sample_id": ("q", sample_number),
    "answer": ("q", answer_label),
    "score": ("d", lambda value: np.nan if isinstance(value, list) else number_of(value)),
    "completion": ("q", lambda text: hash(text if isinstance(text, str) else repr(text))),
    "n_tokens": ("d", number_of),
    "logprob_sum": ("d", number_of),
    "turns": ("d", number_of),
}
"""Roles that are kept of a sample: the kind of array, and what makes a number of a value."""


class _Columns:
    """Samples gathered row by row in little memory: numbers only, in growing arrays."""

    def __init__(self) -> None:
        self.problems: dict[str, int] = {}
        self.texts: dict[int, list[str]] = {}
        self.clusters: dict[str, str] = {}
        self.problem, self.reward, self.line = array("i"), array("d"), array("q")
        self.numbers: dict[str, array[Any]] = {
            role: array(kind) for role, (kind, _) in NUMBERS.items()
        }

    def add(self, row: SampleRow) -> None:
        problem = self.problems.setdefault(row.problem_id, len(self.problems))
        self.problem.append(problem)
        self.reward.append(row.reward)
        self.line.append(row.line)
        for role, value in row.fields.items():
            if role in NUMBERS:
                self.numbers[role].append(NUMBERS[role][1](value))
        cluster = row.fields.get("cluster")
        if cluster and (before := self.clusters.setdefault(row.problem_id, cluster)) != cluster:
            raise ValueError(
                f"problem {row.problem_id!r} is in cluster {cluster!r} here and in {before!r} "
                "before: a cluster belongs to the problem"
            )
        text = row.fields.get("completion")
        if isinstance(text, str) and row.line <= EXCERPT_LINES and problem < EXCERPT_PROBLEMS:
            excerpts = self.texts.setdefault(problem, [])
            if len(excerpts) < EXCERPT_TEXTS:
                excerpts.append(text[:EXCERPT_CHARACTERS])

    def column(self, role: str) -> np.ndarray:
        return np.array(self.numbers[role])

    def finish(self, name: str, metadata: Mapping[str, Any]) -> Samples:
        """The run, problems sorted by id and samples in the order of the file."""
        names = sorted(self.problems)
        rank = np.empty(len(names), dtype=np.int64)
        rank[[self.problems[each] for each in names]] = np.arange(len(names))
        problem = rank[np.array(self.problem)]
        order = np.argsort(problem, kind="stable")

        def ordered(role: str) -> Any:
            return self.column(role)[order] if self.numbers[role] else None

        return Samples(
            name=name,
            problems=tuple(names),
            clusters=tuple(self.clusters[each] for each in names) if self.clusters else None,
            offsets=np.concatenate([[0], np.cumsum(np.bincount(problem))]).astype(np.int64),
            rewards=np.array(self.reward)[order],
            answers=ordered("answer"),
            scores=ordered("score"),
            tokens=ordered("n_tokens"),
            logprobs=ordered("logprob_sum"),
            turns=ordered("turns"),
            lines=np.array(self.line)[order],
            texts={int(rank[p]): tuple(texts) for p, texts in self.texts.items()},
            metadata=dict(metadata),
        )


def _spellings(value: Any) -> set[str]:
    """A value as Python and as JSON write it: True and true, None and null."""
    own = str(value)
    return {own, own.lower() if isinstance(value, bool) else "null" if value is None else own}


# Files that would give wrong numbers in silence: errors, and notes where a reader must decide


def check_samples(file: Path, samples: _Columns, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Notes on a file that was read; answers that tell nothing are removed from it."""
    problem, reward = np.array(samples.problem), np.array(samples.reward)
    numbers, answer = samples.column("sample_id"), samples.column("answer")
    if len(numbers):
        _check_twice(file, problem, numbers, np.array(samples.line))
    else:
        _check_repeats(file, problem, reward, samples.column("completion"), answer)
    notes: tuple[str, ...] = ()
    column = columns.get("answer", "answer")
    if len(answer) and (answer < 0).all():
        samples.numbers["answer"] = array("q")
    elif len(answer):
        _check_reference(file, column, problem, reward, answer)
    if len(samples.problems) == len(problem) > 1:
        notes += (
            f"every problem has one sample, so only k = 1 can be estimated; if several samples "
            f"share a problem, name the column that they share with --map problem_id=... (it is "
            f"{columns.get('problem_id')!r} now)",
        )
    return notes


def _check_twice(file: Path, problem: np.ndarray, sample: np.ndarray, line: np.ndarray) -> None:
    """Two samples of one problem with the same number."""
    order = np.lexsort((line, sample, problem))
    same = (np.diff(problem[order]) == 0) & (np.diff(sample[order]) == 0)
    if same.any():
        at = np.flatnonzero(same)
        first = at[line[order][at + 1].argmin()]
        raise BadFile(
            file,
            int(line[order][first + 1]),
            f"the same problem and sample number as line {line[order][first]}: were two runs "
            "written to one file? Remove one, or do not read the numbers (--map sample_id=)",
        )


def _check_repeats(
    file: Path, problem: np.ndarray, reward: np.ndarray, texts: np.ndarray, answer: np.ndarray
) -> None:
    """A file whose second half repeats the first: without sample numbers nothing else shows it."""
    half, odd = divmod(len(problem), 2)
    if odd or half < 2:
        return
    columns = [each for each in (problem, reward, texts, answer) if len(each) == len(problem)]
    repeats = all(np.array_equal(e[:half], e[half:], equal_nan=e is reward) for e in columns)
    if len(texts) == len(problem):
        is_telling = len(np.unique(texts)) > 2
    else:
        is_telling = half >= LEAST_REPEATED and len(np.unique(reward[:half])) > 1
    if repeats and is_telling:
        raise BadFile(
            file,
            half + 1,
            f"the second half repeats the first {half} samples one by one: was the file "
            "concatenated twice? Remove the repeat; if these are separate samples, number them "
            "in a column sample_id",
        )


def _check_reference(
    file: Path, column: str, problem: np.ndarray, reward: np.ndarray, answer: np.ndarray
) -> None:
    """Answers that never change within a problem, although its samples pass and fail."""
    scored = ~np.isnan(reward)
    if not np.isin(reward[scored], (0.0, 1.0)).all():
        return
    order = np.argsort(problem, kind="stable")
    first = np.flatnonzero(np.diff(problem[order], prepend=-1))
    maximum, minimum = np.maximum.reduceat, np.minimum.reduceat
    one_answer = maximum(answer[order], first) == minimum(answer[order], first)
    passes = maximum(np.where(scored, reward, 0.0)[order], first) == 1
    fails = minimum(np.where(scored, reward, 1.0)[order], first) == 0
    if one_answer.all() and (passes & fails).any():
        raise BadFile(
            file,
            None,
            f"{column!r} holds one value per problem, although {int((passes & fails).sum())} "
            "problems have both right and wrong samples: it looks like the reference answer, not "
            "what the samples answered. Leave it out with --map answer= , or name the column of "
            "the samples' answers with --map answer=...",
        )
