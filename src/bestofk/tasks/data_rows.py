"""Rows of data: from a file, a folder of the `datasets` library, the Hub, or Python objects."""

from __future__ import annotations

import glob
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bestofk.hub import can_connect
from bestofk.samples.packing import package
from bestofk.samples.records import PACKED, json_document, table_rows, without_packing

Made = TypeVar("Made")
Row = Mapping[str, Any]
FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_SAVED = ("state.json", "dataset_dict.json")
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


def read(source: Any, split: str = "train") -> list[Row]:
    """The rows of a source.

    Args:
        source: a file; a folder that `datasets` saved; "hub:owner/name:config@split#revision"; or
            rows in Python: dicts, a `datasets.Dataset`, a pandas DataFrame.
        split: which split to take where the source has several and names none ("folder@split").

    Raises:
        OSError, ValueError: there is no such source, or it holds no rows.
    """
    if not isinstance(source, str | os.PathLike):
        return _from_python(source, split)
    if str(source).startswith("hub:"):
        return _from_hub(str(source))
    path = Path(source).expanduser()
    several = sorted(map(Path, glob.glob(str(path)))) if glob.has_magic(str(path)) else []
    if path.is_dir() and not any((path / name).is_file() for name in _SAVED):
        several = sorted(one for one in path.iterdir() if _format(one) in FORMATS)
        kinds = {_format(one)[1:] for one in several}
        if len(kinds) > 1:
            raise ValueError(
                f"{path} holds files of several formats ({', '.join(sorted(kinds))}); name those "
                f"to read, as in {path}/*.jsonl"
            )
    if several:
        return [row for one in several for row in read(one, split)]
    if path.is_dir():
        return _saved_folder(path, split)
    folder, at, named = str(path).rpartition("@")
    if at and not path.exists() and Path(folder).is_dir():
        return _saved_folder(Path(folder), named)
    if not path.is_file():
        raise FileNotFoundError(
            f"no data file {path}; name a file ({', '.join(FORMATS)}), a folder that "
            "datasets.save_to_disk wrote, or hub:owner/name"
        )
    kind = _format(path)
    if kind not in FORMATS:
        packed = ", ".join(PACKED)
        raise ValueError(
            f"data files end in {', '.join(FORMATS)} (text also in {packed}), got {path}"
        )
    if kind == ".arrow":
        return _arrow(path)
    return _objects(path) if kind == ".json" else [row for _, row in table_rows(path)]


def _format(path: Path) -> str:
    """The suffix that says how a file is read, without that of its packing."""
    return Path(without_packing(path.name)).suffix.lower()


def _from_python(source: Any, split: str) -> list[Row]:
    """Rows of an object: a list of dicts, a dataset or a dict of datasets, a DataFrame."""
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # pandas
        return [
            {key: cell.tolist() if hasattr(cell, "tolist") else cell for key, cell in row.items()}
            for row in source.to_dict("records")
        ]
    if isinstance(source, Mapping):
        columns = [value for value in source.values() if isinstance(value, list | tuple)]
        if len(columns) == len(source) and not any(isinstance(c[0], Mapping) for c in columns if c):
            raise ValueError(
                f"data is a dict of columns ({', '.join(map(str, source))}), and rows are needed: "
                "[dict(zip(data, row)) for row in zip(*data.values())]"
            )
        if split not in source:
            raise ValueError(
                f"data by split has no {split!r}, it has {', '.join(map(str, source))}"
            )
        source = source[split]
    if not isinstance(source, Iterable):
        raise ValueError(f"data is rows (dicts), a file or the name of a task; got {source!r:.80}")
    rows = list(source)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise ValueError(
                f"a row of data is a dict of fields such as prompt, row {number} is {row!r:.80}"
            )
    return rows


def _saved_folder(path: Path, split: str) -> list[Row]:
    """A folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote."""
    is_dataset, several = (path / "state.json").is_file(), path / "dataset_dict.json"
    if not is_dataset and not several.is_file():
        raise ValueError(
            f"{path} is a folder without the files that datasets.save_to_disk writes; name a file "
            f"({', '.join(FORMATS)})"
        )
    if not is_dataset:
        splits = json.loads(several.read_text(encoding="utf-8"))["splits"]
        if split not in splits:
            raise ValueError(
                f"{path} has no split {split!r}; choose one as in {path}@{splits[0]}; it has "
                f"{', '.join(splits)}"
            )
        path = path / split
    return [dict(row) for row in _datasets(str(path)).load_from_disk(str(path))]


def _datasets(source: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise ValueError(f"{source} needs datasets: pip install 'bestofk[data]'") from error


class LeftOut(ValueError):
    """A row that no run can use, through no fault of the declaration: it is left out, and said."""


MOST_LEFT_OUT = 0.1
"""Share of the rows, or of a split, beyond which something else is wrong."""


def each(
    rows: Iterable[Row],
    where: str,
    build: Callable[[Row], Made],
    left_out: dict[str, str] | None = None,
) -> list[Made]:
    """What `build` makes of each row; where it cannot, an error that names the row.

    Rows for which it raises `LeftOut` are noted in `left_out`, unless they are more than a tenth.

    >>> each([{"a": 1}, {"b": 2}], "rows.csv", lambda row: row["a"])
    Traceback (most recent call last):
    ...
    ValueError: rows.csv, row 2: no field 'a'; it has b
    """
    built: list[Made] = []
    reasons: dict[str, str] = {}
    number = 0
    for number, row in enumerate(rows, start=1):
        try:
            built.append(build(row))
        except LeftOut as error:
            reasons[f"{where}, row {number}"] = str(error)
        except KeyError as error:
            has = ", ".join(map(str, row))
            raise ValueError(f"{where}, row {number}: no field {error}; it has {has}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{where}, row {number}: {error}") from error
    if len(reasons) > MOST_LEFT_OUT * number:
        listed = "; ".join(f"{row}: {why}" for row, why in list(reasons.items())[:5])
        raise ValueError(f"{len(reasons)} of {number} rows cannot be used: {listed}; remove them")
    if left_out is not None:
        left_out.update(reasons)
    return built


def _objects(path: Path) -> list[Row]:
    """A JSON document that is a list of objects."""
    rows = json_document(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"a .json data file is a list of objects, {path} is not")
    return rows


def _arrow(path: Path) -> list[Row]:
    """An Arrow file in either of its two layouts."""
    pyarrow = package("pyarrow", "Arrow", path)
    ipc = importlib.import_module("pyarrow.ipc")
    try:
        with pyarrow.memory_map(str(path)) as source:
            try:
                return ipc.open_file(source).read_all().to_pylist()
            except pyarrow.ArrowInvalid:
                source.seek(0)
                return ipc.open_stream(source).read_all().to_pylist()
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a whole Arrow file: {error}") from error


def _from_hub(source: str) -> list[Row]:
    match = _HUB.fullmatch(source)
    if match is None:
        raise ValueError(f"a Hub dataset is hub:owner/name[:config][@split][#revision], {source}")
    datasets = _datasets(source)
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
        kind = OSError if isinstance(error, OSError) else ValueError  # out of reach, or unknown
        raise kind(f"{source} could not be read: {error}; {_way_out(source)}") from error
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


def locate(stated_path: str | None, name: str) -> str:
    """Where a well-known set is: as stated, else in the folder $BESTOFK_DATA, else on the Hub."""
    if stated_path is not None:
        return stated_path
    folder = os.environ.get("BESTOFK_DATA")
    if folder and (Path(folder) / name).is_file():
        return str(Path(folder) / name)
    return WELL_KNOWN[name]
