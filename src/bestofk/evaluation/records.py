"""Records of a file one after another, with their line numbers: JSONL, CSV, parquet, evalplus JSON.

Streamed: no more than a line (or a batch of a parquet file) is held. Every error names the file,
the line and the way out.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

from bestofk.common import did_you_mean

from .formats import evalplus_records

Progress: TypeAlias = Callable[[int, int], None]
"""Told the bytes read and the bytes in all."""
EVERY = 2000
"""Lines between two reports of progress."""
SUFFIXES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet")


def quiet(done: int, total: int) -> None:
    """Progress for nobody."""


class BadFile(ValueError):
    """A file that cannot be read as samples; says where and what to do."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


def kind_of(path: Path) -> str:
    """The file's suffix without .gz: what decides how it is read."""
    names = [suffix.lower() for suffix in path.suffixes]
    if names and names[-1] == ".gz":
        names.pop()
    kind = names[-1] if names else ""
    if kind not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise BadFile(path, None, f"files of samples end in {known} (the text ones also in .gz)")
    return kind


def records(
    path: Path, *, encoding: str = "utf-8", progress: Progress = quiet
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, record) of every record; the row number, from 1, for parquet."""
    kind = kind_of(path)
    if kind == ".parquet":
        yield from _parquet(path, progress)
    elif kind in (".csv", ".tsv"):
        yield from _csv(path, encoding, "\t" if kind == ".tsv" else ",", progress)
    elif kind == ".json":
        yield from _document(path, encoding)
    else:
        yield from _jsonl(path, encoding, progress)


def lines(path: Path, encoding: str, progress: Progress) -> Iterator[tuple[int, str, bool]]:
    """(number, text, whether it ended in a newline) of every line."""
    with _open(path) as raw:
        size = path.stat().st_size
        zipped = path.suffix.lower() == ".gz"
        file: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
        for number, data in enumerate(_whole(path, file), start=1):
            if number % EVERY == 0:
                progress(raw.tell(), size)
            if number == 1:
                _refuse_utf16(path, data)
                data = data.removeprefix(b"\xef\xbb\xbf") if encoding == "utf-8" else data
            try:
                text = data.decode(encoding)
            except (UnicodeDecodeError, LookupError) as error:
                raise BadFile(
                    path,
                    number,
                    f"not {encoding} text ({error}): name the file's encoding with --encoding "
                    "(latin-1, utf-16, ...), or convert it with iconv",
                ) from None
            yield number, text, data.endswith(b"\n")
    progress(size, size)


def _whole(path: Path, file: Any) -> Iterator[bytes]:
    """The lines of a file that may turn out to be cut off while it is unpacked."""
    try:
        yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(path, None, f"the compressed file is cut off or damaged ({error})") from None


def _open(path: Path) -> IO[bytes]:
    if not path.exists():
        near = _neighbours(path)
        raise FileNotFoundError(f"no such file: {path}{near}")
    return path.open("rb")


def _neighbours(path: Path) -> str:

    folder = path.parent if path.parent.is_dir() else None
    names = [each.name for each in folder.iterdir()] if folder else []
    hint = did_you_mean(path.name, names)
    return f"; {hint.rstrip()}" if hint else ""


def _refuse_utf16(path: Path, data: bytes) -> None:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadFile(path, 1, "this is UTF-16: convert it with iconv -f utf-16 -t utf-8")


def _jsonl(path: Path, encoding: str, progress: Progress) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text, ended in lines(path, encoding, progress):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise _bad_json(path, number, text, ended, error) from None
        if not isinstance(record, dict):
            raise BadFile(
                path,
                number,
                f"a line is one JSON object, got {type(record).__name__}: "
                "write one sample per line ({...} without [ ] around them)",
            )
        yield number, record


def _bad_json(
    path: Path, number: int, text: str, ended: bool, error: json.JSONDecodeError
) -> BadFile:
    if not ended or error.pos >= len(text.rstrip()):
        return BadFile(
            path,
            number,
            "the line is cut off in the middle of a sample, as when its writer was killed: delete "
            f"it (sed -i '{number}d' FILE), or go on with the run that wrote it",
        )
    return BadFile(path, number, f"not JSON ({error.msg} at column {error.colno}): repair the line")


def _document(path: Path, encoding: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """A whole JSON document: evalplus results, or a list of samples."""
    text = "".join(text for _, text, _ in lines(path, encoding, quiet))
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise BadFile(path, error.lineno, "one object per line: name the file .jsonl") from None
        raise BadFile(path, error.lineno, f"not JSON ({error.msg}): is it cut off?") from None
    if isinstance(document, dict) and isinstance(document.get("eval"), dict):
        document = list(evalplus_records(document))
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise BadFile(
            path, None, "a .json file is evalplus results or a list of samples; else use .jsonl"
        )
    yield from enumerate(document, start=1)


def _csv(
    path: Path, encoding: str, delimiter: str, progress: Progress
) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(sys.maxsize)
    text = (line for _, line, _ in lines(path, encoding, progress))
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise BadFile(path, 1, "the file is empty: its first line must name the columns")
        if len(set(header)) < len(header):
            raise BadFile(path, 1, f"a column name occurs twice: {', '.join(header)}")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise BadFile(
                    path,
                    reader.line_num,
                    f"{len(row)} fields, but the header names {len(header)}: quote fields that "
                    "hold commas or newlines",
                )
            yield reader.line_num, dict(zip(header, row))
    except csv.Error as error:
        raise BadFile(path, reader.line_num, f"not CSV ({error}): check its quotes") from None


def _parquet(path: Path, progress: Progress) -> Iterator[tuple[int, dict[str, Any]]]:
    parquet = arrow_module("pyarrow.parquet", path)
    import pyarrow

    with _open(path):
        pass
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise BadFile(path, None, f"not a parquet file, or cut off ({error})") from None
    total, row = file.metadata.num_rows, 0
    for batch in file.iter_batches(batch_size=4096):
        for record in batch.to_pylist():
            row += 1
            yield row, record
        progress(row, total)


def arrow_module(name: str, path: Path) -> Any:
    """pyarrow, or the way to get it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        way = "reading parquet needs pyarrow: pip install 'bestofk[data]'"
        raise BadFile(path, None, way) from None
