"""Records of a file one after another, with their line numbers: JSONL, CSV, parquet, evalplus JSON.

Streamed: no more than a line (or a batch of a parquet file) is held. Every error names the file,
the line and the way out.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

from bestofk.common import did_you_mean

from .inspect_logs import archive_records, is_log, log_records
from .tool_formats import evalplus_records, is_evalplus
from .unpacking import BadFile, unpacked, unpacking_errors

Progress: TypeAlias = Callable[[int, int], None]
"""Told the bytes read and the bytes in all."""
EVERY = 2000
"""Lines between two reports of progress."""
SUFFIXES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".eval")
PACKED = (".gz", ".zst")
SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}\.parquet$")
"""A part of a dataset as the Hub keeps it."""


def quiet(done: int, total: int) -> None:
    """Progress for nobody."""


def kind_of(path: Path) -> str:
    """The file's suffix without .gz or .zst: what decides how it is read."""
    if path.is_dir() or (not path.exists() and shards(path)):
        return ".parquet"
    names = [suffix.lower() for suffix in path.suffixes]
    if names and names[-1] in PACKED:
        names.pop()
    kind = names[-1] if names else ""
    if kind not in SUFFIXES:
        if not path.exists():
            raise FileNotFoundError(f"no such file: {path}{_neighbours(path)}")
        known = ", ".join(SUFFIXES)
        packed = " or ".join(PACKED)
        raise BadFile(path, None, f"files of samples end in {known} (text also in {packed})")
    return kind


def shards(path: Path) -> list[Path]:
    """The parts of a dataset as the Hub keeps it: of a folder, or of FOLDER/SPLIT; [] for others.

    Raises:
        BadFile: several splits in a folder.
    """
    for folder in (path, path / "data"):
        parts = sorted(p for p in folder.glob("*.parquet") if SHARD.search(p.name))
        splits = {SHARD.search(p.name)["split"] for p in parts}  # type: ignore[index]
        if len(splits) > 1:
            named = ", ".join(f"{path}/{split}" for split in sorted(splits))
            raise BadFile(path, None, f"the folder holds several splits: name one of {named}")
        if parts:
            return parts
    if path.exists():
        return []
    for folder in (path.parent, path.parent / "data"):
        parts = sorted(folder.glob(f"{path.name}-*.parquet"))
        if parts and all(SHARD.search(part.name) for part in parts):
            return parts
    return []


def records(
    path: Path, *, encoding: str = "utf-8", progress: Progress = quiet
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, record) of every record; the row number, from 1, for parquet and inspect logs."""
    kind = kind_of(path)
    if kind == ".parquet":
        yield from _parquet(path, progress)
    elif kind == ".eval":
        with _open(path):
            pass
        yield from archive_records(path, progress)
    elif kind in (".csv", ".tsv"):
        yield from _csv(path, encoding, "\t" if kind == ".tsv" else ",", progress)
    elif kind == ".json":
        yield from _document(path, encoding)
    else:
        yield from _jsonl(path, encoding, progress)


def lines(path: Path, encoding: str, progress: Progress) -> Iterator[tuple[int, str, bool]]:
    """(number, text, whether it ended in a newline) of every line."""
    try:
        wide = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    except LookupError:
        raise BadFile(
            path, None, f"unknown encoding {encoding!r}: name one like utf-8, latin-1 or utf-16"
        ) from None
    with _open(path) as raw:
        size = path.stat().st_size
        file = unpacked(path, raw)
        number = 0
        try:
            if wide:
                for number, text in enumerate(_wide_lines(file, encoding), start=1):
                    yield number, text, text.endswith("\n")
                progress(size, size)
                return
            for number, data in enumerate(_whole(path, file), start=1):
                if number % EVERY == 0:
                    progress(raw.tell(), size)
                if number == 1:
                    _check_utf16(path, data)
                    data = data.removeprefix(b"\xef\xbb\xbf") if encoding == "utf-8" else data
                yield number, data.decode(encoding), data.endswith(b"\n")
        except UnicodeError as error:
            raise BadFile(
                path,
                number + wide,
                f"not {encoding} text ({error}): name the file's encoding with --encoding "
                "(latin-1, utf-16, ...)",
            ) from None
    progress(size, size)


def _wide_lines(file: Any, encoding: str) -> Iterator[str]:
    """Lines of UTF-16 and UTF-32, where a newline is more than a byte."""
    text = io.TextIOWrapper(file, encoding=encoding, newline="\n")
    try:
        yield from text
    finally:
        text.detach()


def _whole(path: Path, file: Any) -> Iterator[bytes]:
    """The lines of a file that may turn out to be cut off while it is unpacked."""
    try:
        yield from file
    except unpacking_errors() as error:
        raise BadFile(path, None, f"the compressed file is cut off or damaged ({error})") from None


def _open(path: Path) -> IO[bytes]:
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}{_neighbours(path)}")
    return path.open("rb")


def _neighbours(path: Path) -> str:
    """The file of the folder that was probably meant."""
    folder = path.parent if path.parent.is_dir() else None
    names = [each.name for each in folder.iterdir()] if folder else []
    hint = did_you_mean(path.name, names)
    return f"; {hint.rstrip()}" if hint else ""


def _check_utf16(path: Path, data: bytes) -> None:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadFile(path, 1, "this is UTF-16: read it with --encoding utf-16")


def _jsonl(path: Path, encoding: str, progress: Progress) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text, ended in lines(path, encoding, progress):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise _bad_json(path, number, text, ended, error) from None
        except (RecursionError, ValueError) as error:
            raise _unreadable(path, number, error) from None
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
            f"it (sed -i '{number}d' FILE), or resume the run that wrote it",
        )
    return BadFile(path, number, f"not JSON ({error.msg} at column {error.colno}): repair the line")


def _unreadable(path: Path, line: int | None, error: Exception) -> BadFile:
    """JSON that is valid, and yet too much: brackets within brackets, numbers of many digits."""
    if isinstance(error, RecursionError):
        return BadFile(path, line, "the JSON is nested too deeply to be a sample: remove the line")
    return BadFile(path, line, f"a number is too long ({error}): repair the line")


def _document(path: Path, encoding: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """A whole JSON document: evalplus results, a log of inspect_ai, or a list of samples."""
    text = "".join(text for _, text, _ in lines(path, encoding, quiet))
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise BadFile(path, error.lineno, "one object per line: name the file .jsonl") from None
        raise BadFile(path, error.lineno, f"not JSON ({error.msg}): is it cut off?") from None
    except (RecursionError, ValueError) as error:
        raise _unreadable(path, None, error) from None
    if is_log(document):
        document = list(log_records(path, document))
    elif is_evalplus(document):
        document = list(evalplus_records(document))
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise BadFile(
            path,
            None,
            "a .json file of samples is a list of objects, a log of inspect_ai or results of "
            "evalplus; one object per line is .jsonl",
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

    parts = shards(path) or [path]
    files = []
    for part in parts:
        with _open(part):
            pass
        try:
            files.append(parquet.ParquetFile(part))
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise BadFile(part, None, f"not a parquet file, or cut off ({error})") from None
    total, row = sum(file.metadata.num_rows for file in files), 0
    for part, file in zip(parts, files):
        batches = file.iter_batches(batch_size=4096)
        while True:
            try:
                batch = next(batches, None)
                result = [] if batch is None else batch.to_pylist()
            except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
                raise BadFile(part, row + 1, f"the parquet file is damaged ({error})") from None
            if batch is None:
                break
            for record in result:
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
