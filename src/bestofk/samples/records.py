"""Records of a file one after another, with their line numbers, whatever the file is.

JSON lines, CSV, JSON documents, Parquet, logs of inspect_ai; packed by gzip, bzip2, xz or zstd; in
one file, in parts, or on standard input. Streamed: no more than a line (or a batch of a Parquet
file) is held. Every error names the file, the line and the way out.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import importlib
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from bestofk.messages import counted, did_you_mean

from .packing import Archive, BadFile, check_unpacked, package, unpacked, unpacking_errors
from .tool_formats import evalplus_records, inspect_record, openai_matches

Progress: TypeAlias = Callable[[int, int], None]
"""Told the bytes (or rows, or parts) done, and how many there are."""
Numbered: TypeAlias = Iterator[tuple[int, dict[str, Any]]]
EVERY = 2000
"""Lines between two reports of progress."""
MOST_EMPTY = 1_000_000
"""Empty lines that a file of JSON lines may have."""
TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""Files of which a folder may hold several."""
KINDS = (".json", ".eval", *TABLES)
PACKED = (".gz", ".zst", ".bz2", ".xz")


def no_progress(position: int, total: int) -> None:
    """What is told where nobody looks on."""


def records(
    path: Path,
    *,
    encoding: str = "utf-8",
    progress: Progress = no_progress,
    only: Container[int] | None = None,
) -> Numbered:
    """(line, record) of every record; the row number, from 1, for Parquet and inspect logs.

    Lines of a run in parts are counted on from part to part.

    Args:
        only: lines of a JSONL file that are wanted; others may be left out, but for the first, by
            which a file is known.
    """
    parts, before = shards(path), 0
    for number, part in enumerate(parts, start=1):
        line = 0
        for line, record in records(part, encoding=encoding):
            yield before + line, record
        before += line
        progress(number, len(parts))
    if parts:
        return
    kind = kind_of(path)
    if kind == ".eval":
        yield from _archive(path, progress)
    elif kind == ".json":
        yield from _document(path, encoding)
    else:
        rows = table_rows(path, encoding=encoding, progress=progress, only=only)
        yield from rows if kind in (".parquet", ".csv", ".tsv") else openai_matches(rows)


def table_rows(
    path: Path,
    *,
    encoding: str = "utf-8",
    progress: Progress = no_progress,
    only: Container[int] | None = None,
) -> Numbered:
    """(line, row) of a table, whatever its rows are: JSON lines, CSV, TSV, Parquet."""
    kind = kind_of(path)
    if kind == ".parquet":
        return _parquet(path, progress)
    if kind in (".csv", ".tsv"):
        return _csv(path, encoding, "\t" if kind == ".tsv" else ",", progress)
    return _jsonl(path, encoding, progress, only)


def kind_of(path: Path) -> str:
    """The file's suffix without that of its packing: what decides how it is read."""
    if not path.exists():
        folder = path.parent.iterdir() if path.parent.is_dir() else ()
        hint = did_you_mean(path.name, [each.name for each in folder]).rstrip()
        raise FileNotFoundError(f"no such file: {path}" + (f"; {hint}" if hint else ""))
    kind = Path(without_packing(path.name.lower())).suffix
    if kind not in KINDS:
        kinds, packed = ", ".join(KINDS), ", ".join(PACKED)
        raise BadFile(path, None, f"files of samples end in {kinds} (text also in {packed})")
    return kind


def without_packing(name: str) -> str:
    """
    >>> without_packing("a.jsonl.gz"), without_packing("a.csv")
    ('a.jsonl', 'a.csv')
    """
    return name[: -len(Path(name).suffix)] if name.lower().endswith(PACKED) else name


# Folders: the parts of one run, or the file of its last step

SHARD = re.compile(
    r"(?P<run>.*?)[-_.]?"
    r"((?P<number>\d+)-of-(?P<count>\d+)|"
    r"(?<![a-z])(part|shard|chunk|rank|worker|process|proc|gpu|node)[-_.]?(?P<part>\d+))",
    re.IGNORECASE,
)
"""The name of a part of one run: test-00000-of-00002, part-3, samples_rank0."""


def tables(folder: Path) -> dict[Path, str]:
    """The files of samples in a folder, each with its name without suffixes."""
    stems = {}
    for file in sorted(folder.glob("[!._]*")):
        stem, dot, suffix = without_packing(file.name).rpartition(".")
        if (dot + suffix).lower() in TABLES and file.is_file():
            stems[file] = stem
    return stems


def shards(path: Path) -> list[Path]:
    """The parts of one run in a folder, in the order of their numbers; [] where there are none."""
    for folder in (path, path / "data") if path.is_dir() else ():
        files = tables(folder)
        matches = {file: match for file, stem in files.items() if (match := SHARD.fullmatch(stem))}
        if not matches:
            continue
        if len(matches) < len(files) or len({match["run"] for match in matches.values()}) > 1:
            raise BadFile(path, None, listed(folder))
        numbered = {int(match["part"] or match["number"]): file for file, match in matches.items()}
        counts = {int(match["count"]) for match in matches.values() if match["count"]}
        if len(numbered) < len(matches) or (counts and counts != {len(matches)}):
            many = " and ".join(map(str, sorted(counts))) or len(numbered)
            raise BadFile(
                path, None, f"{len(matches)} parts of {many}: some are missing, or twice here"
            )
        return [numbered[number] for number in sorted(numbered)]
    return []


def listed(folder: Path) -> str:
    names = [file.name for file in tables(folder)]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f"the folder holds {len(names)} files of samples ({shown}): name one of them; parts of one "
        "run are read together if they are called part-0, part-1, ..."
    )


def locate(path: str | Path) -> Path:
    """The file to read: `path`, or what a folder holds of one run.

    Our runs keep evaluations/ (preferred) and samples/, TRL completions/, verl files that are
    called by their step: of these the last step is read. inspect writes one log per evaluation:
    the newest. Parts of one run are read as one, and the folder is returned. "-" is JSON lines on
    standard input.

    Raises:
        BadFile: no samples, or files of which none is the obvious one; they are listed.
    """
    path = Path(path)
    if str(path) == "-":
        return _standard_input()
    if not path.is_dir():
        return path
    if newest := _newest_log(path):
        return newest
    for folder in (path / "evaluations", path / "samples", path / "completions", path):
        files = tables(folder)
        steps = {file: re.search(r"\d+$", stem) for file, stem in files.items()}
        named_by_step = folder != path or all(stem.isdigit() for stem in files.values())
        if files and named_by_step and all(steps.values()):
            return max(files, key=lambda file: int(steps[file][0]))  # type: ignore[index]
    if shards(path):
        return path
    files = tables(path)
    if len(files) > 1:
        raise BadFile(path, None, listed(path))
    if not files:
        kinds = "*.jsonl, *.parquet or *.eval"
        raise BadFile(path, None, f"a folder without samples ({kinds}): name a file")
    return next(iter(files))


# Text: lines, JSON, CSV


def lines(path: Path, encoding: str, progress: Progress) -> Iterator[tuple[int, str]]:
    """(number, text) of every line."""
    size, number = path.stat().st_size, 0
    with path.open("rb") as raw:
        try:
            named = "utf-8-sig" if encoding == "utf-8" else encoding
            text = io.TextIOWrapper(unpacked(path, raw), named, newline="\n")
            for number, line in enumerate(text, start=1):
                if number % EVERY == 0:
                    progress(raw.tell(), size)
                yield number, line
        except LookupError:
            way = "name one like utf-8, latin-1 or utf-16"
            raise BadFile(path, None, f"unknown encoding {encoding!r}: {way}") from None
        except UnicodeDecodeError as error:
            raise BadFile(
                path,
                number + 1 + error.object[: error.start].count(b"\n"),
                f"not {encoding} text ({error.reason}): name the file's encoding, like --encoding "
                "latin-1 or --encoding utf-16",
            ) from None
        except unpacking_errors() as error:
            raise BadFile(path, None, f"the packed file is cut off or damaged ({error})") from None
    progress(size, size)


def _jsonl(
    path: Path, encoding: str, progress: Progress, only: Container[int] | None = None
) -> Numbered:
    settled, empty = False, 0
    for number, text in lines(path, encoding, progress):
        if settled and only is not None and number not in only:
            continue
        if text.isspace():
            empty += 1
            if empty > MOST_EMPTY:
                raise BadFile(path, number, f"{empty:,} empty lines: remove them (sed /^$/d)")
            continue
        try:
            record = json.loads(text)
        except (RecursionError, ValueError) as error:
            raise _bad_json(path, number, text, error) from None
        if not isinstance(record, dict):
            raise BadFile(
                path,
                number,
                f"a line is one JSON object, got {type(record).__name__}: write one object per "
                "line ({...} without [ ] around them), or name the file .json",
            )
        settled = True
        yield number, record


def _bad_json(path: Path, line: int | None, text: str, error: Exception) -> BadFile:
    if isinstance(error, RecursionError):
        return BadFile(path, line, "the JSON is nested too deeply to be read: remove the line")
    if not isinstance(error, json.JSONDecodeError):
        return BadFile(path, line, f"a number is too long ({error}): repair the line")
    if line is None and error.msg == "Extra data":
        return BadFile(path, error.lineno, "one object per line: name the file .jsonl")
    if error.msg == "Extra data" or text.strip() in ("{", "["):
        way = "write one object per line (jq -c . FILE), or a list of them as .json"
        return BadFile(path, line, f"a line must be one whole JSON object: {way}")
    is_object = text.startswith("{")
    if line and is_object and (not text.endswith("\n") or error.pos >= len(text.rstrip())):
        return BadFile(
            path,
            line,
            "the line is cut off in the middle, as when its writer was killed: delete it "
            f"(sed -i '{line}d' FILE), or resume the run that wrote it",
        )
    told = f"{error.msg} at column {error.colno}"
    return BadFile(path, line or error.lineno, f"not JSON ({told}): repair it, or is it cut off?")


def json_document(path: Path, encoding: str = "utf-8") -> Any:
    text = "".join(text for _, text in lines(path, encoding, no_progress))
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise _bad_json(path, None, text, error) from None


def _document(path: Path, encoding: str) -> Numbered:
    """A whole JSON document: evalplus results, a log of inspect_ai, or a list of samples."""
    document = json_document(path, encoding)
    if spec := _log_spec(document):
        yield from _log_samples(path, document.get("samples") or [], spec)
        return
    listed = _listed_in(document)
    if listed is None:
        raise BadFile(
            path,
            None,
            "a .json file of samples is a list of objects, {problem: [rewards]}, a log of "
            "inspect_ai, or results of evalplus or promptfoo; one object per line is .jsonl",
        )
    yield from enumerate(listed, start=1)


def _log_spec(document: Any) -> dict[str, Any]:
    """What was evaluated, if this is a log of inspect_ai; else nothing."""
    spec = document.get("eval") if isinstance(document, dict) else None
    return spec if isinstance(spec, dict) and {"task", "model", "run_id"} <= spec.keys() else {}


def _listed_in(document: Any) -> list[dict[str, Any]] | None:
    """The records of a JSON document; None where it holds none."""
    if isinstance(document, dict):
        results, inner = document.get("eval"), document.get("results")
        if isinstance(results, dict) and results and all(map(_is_records, results.values())):
            return list(evalplus_records(results))
        if isinstance(inner, dict) and _is_records(inner.get("results")):
            return list(inner["results"])  # promptfoo
        if document and all(map(_is_rewards, document.values())):
            return [{"problem_id": name, "reward": each} for name, each in document.items()]
    return document if _is_records(document) else None


def _is_rewards(value: Any) -> bool:
    scalar = bool | int | float | None
    return isinstance(value, list) and all(isinstance(each, scalar) for each in value)


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _csv(path: Path, encoding: str, delimiter: str, progress: Progress) -> Numbered:
    csv.field_size_limit(sys.maxsize)
    text = (line for _, line in lines(path, encoding, progress))
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise BadFile(path, 1, "the file is empty: its first line must name the columns")
        if len(header) == 1 and ";" in header[0]:
            way = "separate them by commas, or by tabs and name it .tsv"
            raise BadFile(path, 1, f"columns are separated by ';': {way}")
        if len(set(header)) < len(header):
            raise BadFile(path, 1, f"a column name occurs twice: {', '.join(header)}")
        for row in reader:
            if len(row) not in (0, len(header)):
                raise BadFile(
                    path,
                    reader.line_num,
                    f"{counted(len(row), 'field')}, but the header names {len(header)}: quote "
                    "those that hold commas or newlines",
                )
            if row:
                yield reader.line_num, dict(zip(header, row))
    except csv.Error as error:
        raise BadFile(path, reader.line_num, f"not CSV ({error}): check its quotes") from None


# Parquet, and logs of inspect_ai


def _parquet(path: Path, progress: Progress) -> Numbered:
    pyarrow = package("pyarrow", "Parquet", path)
    row = size = 0
    try:
        with importlib.import_module("pyarrow.parquet").ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=512):
                size += batch.nbytes
                check_unpacked(path, size)
                for record in batch.to_pylist():
                    row += 1
                    yield row, record
                progress(row, file.metadata.num_rows)
    except (pyarrow.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        damaged = "not a parquet file, or cut off" if not row else "the parquet file is damaged"
        raise BadFile(path, row + 1 if row else None, f"{damaged} ({error})") from None


def _archive(path: Path, progress: Progress) -> Numbered:
    """The samples of an `.eval` archive, epoch by epoch."""
    with Archive(path) as archive:
        names = [name for name in archive.zip.namelist() if name.startswith("samples/")]
        samples = (archive.load(name) for name in names)
        for number, record in _log_samples(path, samples, archive.spec()):
            yield number, record
            progress(number, len(names))


def _log_samples(path: Path, samples: Any, spec: Mapping[str, Any]) -> Numbered:
    number = 0
    for number, sample in enumerate(samples, start=1):
        yield number, inspect_record(sample, spec)
    if not number:
        raise BadFile(path, None, "this inspect log holds no samples (run with log_samples)")


def _newest_log(folder: Path) -> Path | None:
    """The newest of the logs in a folder, if all are of one task and model; None without logs."""
    specs: dict[Path, dict[str, Any]] = {}
    logs = sorted(folder.glob("*.eval")) or (
        [] if tables(folder) else sorted(folder.glob("*.json"))
    )
    for log in logs:
        spec: dict[str, Any] = {}
        if log.suffix == ".eval":
            with Archive(log) as archive:
                spec = archive.spec()
        else:
            with contextlib.suppress(ValueError):
                spec = _log_spec(json.loads(log.read_bytes()))
            if not spec:
                continue
        specs[log] = spec
    about = {f"{spec.get('task')} on {spec.get('model')}": log for log, spec in specs.items()}
    if len(about) > 1:
        named = "; ".join(f"{log.name}: {evaluated}" for evaluated, log in about.items())
        raise BadFile(folder, None, f"logs of several evaluations: name one of them ({named})")
    by_age = sorted(specs, key=lambda log: (str(specs[log].get("created", "")), log.name))
    return by_age[-1] if by_age else None


def _standard_input() -> Path:
    """JSON lines on standard input as a file, which can be read twice; it goes when the program
    ends."""
    folder = Path(tempfile.mkdtemp(prefix="bestofk-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "stdin.jsonl"
    path.write_bytes(sys.stdin.buffer.read())
    return path
