"""Rows of data: from a file (.jsonl, .json, .csv, each also .gz, and .parquet) or from the Hub."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bestofk.common import can_connect

Made = TypeVar("Made")
Row = Mapping[str, Any]
FORMATS = (".jsonl", ".json", ".csv", ".parquet")
_HUB = re.compile(
    r"hub:(?P<name>[^:@#]+)(?::(?P<config>[^@#]+))?(?:@(?P<split>[^#]+))?(?:#(?P<revision>.+))?"
)
# file in the folder $BESTOFK_DATA: the same rows on the Hub
WELL_KNOWN = {
    "codecontests-test.jsonl.gz": "hub:deepmind/code_contests@test",
    "codecontests-train.jsonl.gz": "hub:deepmind/code_contests@train",
    "codecontests-validation.jsonl.gz": "hub:deepmind/code_contests@valid",
    "gsm8k-test.jsonl.gz": "hub:openai/gsm8k:main@test",
    "gsm8k-train.jsonl.gz": "hub:openai/gsm8k:main@train",
    "humaneval.jsonl.gz": "hub:openai/openai_humaneval@test",
    "leetcode-test.jsonl.gz": "hub:newfacade/LeetCodeDataset@test",
    "leetcode-train.jsonl.gz": "hub:newfacade/LeetCodeDataset@train",
    "math-test.jsonl.gz": "hub:DigitalLearningGmbH/MATH-lighteval:default@test",
    "math-train.jsonl.gz": "hub:DigitalLearningGmbH/MATH-lighteval:default@train",
    "mbpp.jsonl.gz": "hub:google-research-datasets/mbpp:full@train+validation+test+prompt",
    "mbppplus.jsonl.gz": "hub:evalplus/mbppplus@test",
}


def read(source: str | Path | Sequence[Row]) -> list[Row]:
    """The rows of a file, of "hub:owner/name:config@split#revision", or those given."""
    if not isinstance(source, str | Path):
        return list(source)
    if str(source).startswith("hub:"):
        return _from_hub(str(source))
    path = Path(source).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no data file {path}; name a file ({', '.join(FORMATS)}) or hub:…")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else path.suffix.lower()
    if kind == ".parquet":
        return _parquet(path)
    if kind not in FORMATS:
        raise ValueError(f"data files end in {', '.join(FORMATS)} (or .gz of a text), got {path}")
    return _parse(_decoded(path, packed=suffixes[-1] == ".gz"), kind, path)


def each(rows: Iterable[Row], where: str, build: Callable[[Row], Made]) -> list[Made]:
    """What `build` makes of each row; where it cannot, an error that names the row.

    >>> each([{"a": 1}, {"b": 2}], "rows.csv", lambda row: row["a"])
    Traceback (most recent call last):
    ...
    ValueError: rows.csv, row 2: no field 'a'; it has b
    """
    built: list[Made] = []
    for number, row in enumerate(rows, start=1):
        try:
            built.append(build(row))
        except KeyError as error:
            has = ", ".join(map(str, row))
            raise ValueError(f"{where}, row {number}: no field {error}; it has {has}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{where}, row {number}: {error}") from error
    return built


def _decoded(path: Path, packed: bool) -> str:
    raw = path.read_bytes()
    try:
        return (gzip.decompress(raw) if packed else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text; convert it, with iconv say: {error}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}; fetch it again") from error


def _parse(text: str, kind: str, path: Path) -> list[Row]:
    if kind == ".csv":
        return _csv(text, path)
    if kind == ".json":
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path}: not JSON: {error}") from error
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"a .json data file is a list of objects, {path} is not")
        return rows
    parsed: list[Row] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: a row is an object, got {line[:60]}")
        parsed.append(row)
    return parsed


def _csv(text: str, path: Path) -> list[Row]:
    csv.field_size_limit(sys.maxsize)  # of this process: a prompt may be long
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    parsed: list[Row] = []
    try:
        for row in reader:
            if None in row:  # where csv puts the cells that have no name
                raise csv.Error("more cells than the first line names; put quotes around commas")
            parsed.append(row)
    except csv.Error as error:
        line = reader.reader.line_num
        raise ValueError(f"{path}, line {line}: {error}; or write it as .jsonl") from error
    return parsed


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path} needs pyarrow: pip install 'bestofk[data]'") from error
    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a whole parquet file: {error}") from error


def _from_hub(source: str) -> list[Row]:
    match = _HUB.fullmatch(source)
    if match is None:
        raise ValueError(f"a Hub data set is hub:owner/name[:config][@split][#revision], {source}")
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"{source} needs datasets: pip install 'bestofk[data]'") from error
    offline = datasets.config.HF_HUB_OFFLINE
    # Offline, its library takes what is cached at once; otherwise it would try for a minute.
    datasets.config.HF_HUB_OFFLINE = offline or not can_connect(datasets.config.HF_ENDPOINT)
    try:
        loaded = datasets.load_dataset(
            match["name"],
            match["config"],
            split=match["split"] or "train",
            revision=match["revision"],
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"{source} could not be read: {error}; {_way_out(source)}") from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
    return [dict(row) for row in loaded]


def _way_out(source: str) -> str:
    files = [file for file, hub in WELL_KNOWN.items() if hub == source]
    if not files:
        return "name a file instead"
    folder = os.environ.get("BESTOFK_DATA") or "which names no folder now"
    return (
        f"without the Hub, put {files[0]} into the folder $BESTOFK_DATA ({folder}), or name a file "
        "with the option train=, test= or path= of the task"
    )


def locate(given: str | None, name: str) -> str:
    """Where a well-known set is: as stated, else in the folder $BESTOFK_DATA, else on the Hub."""
    if given is not None:
        return given
    folder = os.environ.get("BESTOFK_DATA")
    if folder and (Path(folder) / name).is_file():
        return str(Path(folder) / name)
    return WELL_KNOWN[name]
