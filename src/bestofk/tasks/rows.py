"""Rows of data: from a file (.jsonl, .json, .csv, each also .gz, and .parquet) or from the Hub."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
FORMATS = (".jsonl", ".json", ".csv", ".parquet")
_HUB = re.compile(
    r"hub:(?P<name>[^:@#]+)(?::(?P<config>[^@#]+))?(?:@(?P<split>[^#]+))?(?:#(?P<revision>.+))?"
)


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
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if suffixes[-1] == ".gz" else raw).decode("utf-8-sig")
    return _parse(text, kind, path)


def _parse(text: str, kind: str, path: Path) -> list[Row]:
    if kind == ".csv":
        return list(csv.DictReader(io.StringIO(text, newline="")))
    if kind == ".json":
        rows = json.loads(text)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"a .json data file is a list of objects, {path} is not")
        return rows
    found: list[Row] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: a row is an object, got {line[:60]}")
        found.append(row)
    return found


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path} needs pyarrow: pip install 'bestofk[data]'") from error
    return pyarrow.parquet.read_table(path).to_pylist()


def _from_hub(source: str) -> list[Row]:
    match = _HUB.fullmatch(source)
    if match is None:
        raise ValueError(f"a Hub data set is hub:owner/name[:config][@split][#revision], {source}")
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"{source} needs datasets: pip install 'bestofk[data]'") from error
    loaded = datasets.load_dataset(
        match["name"], match["config"], split=match["split"] or "train", revision=match["revision"]
    )
    return [dict(row) for row in loaded]


def locate(given: str | None, name: str, hub: str) -> str:
    """Where a well-known set is: as stated, else in the folder $BESTOFK_DATA, else on the Hub."""
    if given is not None:
        return given
    folder = os.environ.get("BESTOFK_DATA")
    if folder and (Path(folder) / name).is_file():
        return str(Path(folder) / name)
    return hub
