"""The fast way through large, plain files; where it is not sure, the careful way takes over.

pyarrow parses JSONL and parquet in blocks, several times as fast as Python does. It cannot say
which line was bad, and takes a missing field for null: so anything out of the ordinary (a null, a
type that changes, a mixed column, a parse error) makes this module give up and return None.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .collect import EXCERPT_LINES, Collector
from .formats import UNIFORM, Mapped, answer_label, problem_name, settle
from .records import Progress, kind_of, quiet, records
from .sample_rows import Choice, sample_rows
from .unpacking import GZIP, ZSTD, BadFile

LEAST_BYTES = 4_000_000
"""Smaller files are read before pyarrow is imported."""
BLOCK = 1 << 22
NUMBERS = ("reward", "n_tokens", "logprob_sum", "new_logprob_sum")


class _Unsure(Exception):
    """Something the careful way has to look at."""


def read_fast(
    file: Path, chosen: Choice, progress: Progress, *, least_bytes: int = LEAST_BYTES
) -> tuple[Collector, Mapped] | None:
    """The samples of a large plain file, or None: then it must be read line by line."""
    if (
        not file.is_file()
        or chosen.where
        or chosen.encoding.lower() not in ("utf-8", "utf8")
        or kind_of(file) not in (".jsonl", ".ndjson", ".parquet")
        or _packed(file)
        or file.stat().st_size < least_bytes
    ):
        return None
    try:
        import pyarrow
    except ImportError:
        return None
    try:
        return _read(file, chosen, progress)
    except (_Unsure, BadFile, pyarrow.ArrowException, UnicodeDecodeError):
        return None


def _packed(file: Path) -> bool:
    with file.open("rb") as raw:
        return raw.read(4).startswith((GZIP, ZSTD))


def _read(file: Path, chosen: Choice, progress: Progress) -> tuple[Collector, Mapped]:
    try:
        _, record = next(records(file))
        mapped = settle(record, chosen.columns)
    except (StopIteration, ValueError) as error:
        raise _Unsure from error
    if mapped.expand is not None:
        raise _Unsure
    roles = _roles(mapped, record)
    alike = _alike(mapped, record)
    collector = Collector()
    count = 0
    for batch in _batches(file, {**roles, **{name: name for name in alike}}, record, progress):
        _take(batch, roles, collector, count)
        for name in alike:
            _same(batch.column(name), record[name])
        count += batch.num_rows
    if kind_of(file) != ".parquet" and count != _lines(file):
        raise _Unsure  # blank lines: numbers of lines would be wrong
    if collector.duplicate():
        raise _Unsure
    collector.uniform = {name: record[name] for name in UNIFORM if name in record}
    for row, _ in sample_rows(file, chosen, quiet):
        if row.line > EXCERPT_LINES:
            break
        collector.keep_text(collector.problems[row.problem_id], row.fields.get("completion"))
    return collector, mapped


def _roles(mapped: Mapped, record: Mapping[str, Any]) -> dict[str, str]:
    """Role: column, of the columns that become numbers; all must hold plain values."""
    wanted = ("problem_id", "sample_id", "answer", "status", *NUMBERS)
    roles = {role: mapped.columns[role] for role in wanted if role in mapped.columns}
    for role, column in roles.items():
        value = record[column]
        if role in NUMBERS and not isinstance(value, bool | int | float):
            raise _Unsure
        if role == "sample_id" and type(value) is not int:
            raise _Unsure
        if not isinstance(value, str | bool | int | float | None):
            raise _Unsure
    if len(set(roles.values())) < len(roles):
        raise _Unsure
    return roles


def _alike(mapped: Mapped, record: Mapping[str, Any]) -> list[str]:
    """Columns that must not change. A nested one is vouched for by the run id."""
    names = []
    for name in UNIFORM:
        if name in record and name not in mapped.columns.values():
            if isinstance(record[name], str | int | float | None):
                names.append(name)
            elif "run_id" not in record:
                raise _Unsure
    return names


def _batches(
    file: Path, columns: Mapping[str, str], record: Mapping[str, Any], progress: Progress
) -> Iterator[Any]:
    import pyarrow

    names = list(dict.fromkeys(columns.values()))
    if kind_of(file) == ".parquet":
        import pyarrow.parquet

        parquet = pyarrow.parquet.ParquetFile(file)
        done = 0
        for batch in parquet.iter_batches(batch_size=1 << 16, columns=names):
            done += batch.num_rows
            progress(done, parquet.metadata.num_rows)
            yield batch
        return
    import pyarrow.json

    numbers = {column for role, column in columns.items() if role in NUMBERS}
    schema = pyarrow.schema([(name, _type(record[name], name in numbers)) for name in names])
    size = file.stat().st_size
    reader = pyarrow.json.open_json(
        file,
        read_options=pyarrow.json.ReadOptions(block_size=BLOCK),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore"
        ),
    )
    for number, batch in enumerate(reader, start=1):
        progress(min(number * BLOCK, size), size)
        yield batch


def _type(value: Any, number: bool) -> Any:
    import pyarrow

    if isinstance(value, bool):
        return pyarrow.bool_()
    if isinstance(value, int):
        return pyarrow.float64() if number else pyarrow.int64()
    return pyarrow.float64() if isinstance(value, float) else pyarrow.string()


def _take(batch: Any, roles: Mapping[str, str], collector: Collector, start: int) -> None:
    """One block's columns into the collector."""
    columns = {role: batch.column(column) for role, column in roles.items()}
    for role in ("problem_id", "sample_id", "reward"):
        if role in columns and columns[role].null_count:
            raise _Unsure
    _extend(collector.problem, _numbered(columns["problem_id"], _problem(collector)), np.int32)
    rewards = _floats(columns["reward"])
    if not np.isfinite(rewards).all():
        raise _Unsure
    _extend(collector.reward, rewards, np.float64)
    _extend(collector.line, np.arange(start + 1, start + 1 + batch.num_rows), np.int64)
    if "sample_id" in columns:
        _extend(collector.sample_id, columns["sample_id"].to_numpy(zero_copy_only=False), np.int64)
    if "answer" in columns:
        _extend(collector.answer, _numbered(columns["answer"], answer_label), np.int64)
    if "status" in columns:
        _extend(collector.status, _numbered(columns["status"], collector.state), np.int16)
        if "unscored" in collector.statuses:
            raise _Unsure
    for role, column in (
        ("n_tokens", collector.tokens),
        ("logprob_sum", collector.logprob),
        ("new_logprob_sum", collector.new_logprob),
    ):
        if role in columns:
            _extend(column, _floats(columns[role]), np.float64)


def _problem(collector: Collector) -> Any:
    return lambda value: collector.number(problem_name(value))


def _numbered(column: Any, number: Any) -> np.ndarray:
    """Each value's number, asked once per distinct value of the block."""
    coded = column.dictionary_encode()
    numbers = np.array([number(value) for value in coded.dictionary.to_pylist()], dtype=np.int64)
    if coded.null_count:
        numbers = np.append(numbers, number(None))
        indices = coded.indices.fill_null(len(numbers) - 1)
    else:
        indices = coded.indices
    return numbers[indices.to_numpy(zero_copy_only=False)]


def _floats(column: Any) -> np.ndarray:
    import pyarrow

    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.int8())
    values = column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(values), math.nan, values)


def _extend(target: Any, values: np.ndarray, dtype: Any) -> None:
    target.frombytes(np.ascontiguousarray(values, dtype=dtype).tobytes())


def _same(column: Any, value: Any) -> None:
    if any(other != value for other in column.unique().to_pylist()):
        raise _Unsure


def _lines(file: Path) -> int:
    count, last = 0, b"\n"
    with file.open("rb") as data:
        while block := data.read(BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
