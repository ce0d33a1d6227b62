"""Files and their JSON: written whole or not at all, and kept in one cache folder."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any


def check_writable(path: Path) -> None:
    """Find out before the work, not after it, that a file cannot be written.

    Raises:
        OSError: says why, and what to do.
    """
    folder = path.parent
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: it is not a regular file; choose another")
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {folder}; create it")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write {path}: no permission in {folder}; choose another")


def write_atomically(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Write a file so that it holds the old content or the new, never a part of it.

    Args:
        sync: Wait until the content is on disk, not only in the system's cache.

    Raises:
        OSError: The file could not be written; what was there before is unchanged.
    """
    path = Path(path).resolve()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        os.replace(beside, path)
        if sync:
            sync_to_disk(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where converted models, verdicts on references and compiled layers are kept: $BESTOFK_CACHE,
    or bestofk in the user's cache folder."""
    stated_folder = os.environ.get("BESTOFK_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(stated_folder) if stated_folder else home / "bestofk"


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_safe(value: Any, *, digits: int | None = None) -> Any:
    """The value for JSON: None for every NaN and infinity, dataclasses and arrays as plain data.

    Args:
        digits: Round floats to this many significant digits.

    >>> json_safe({"a": float("nan"), "b": [1.23456789]}, digits=3)
    {'a': None, 'b': [1.23]}
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.{digits}g}") if digits else value
    if isinstance(value, Mapping):
        return {key: json_safe(item, digits=digits) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: json_safe(getattr(value, f.name), digits=digits) for f in fields(value)}
    if hasattr(value, "tolist"):  # a NumPy array or scalar
        return json_safe(value.tolist(), digits=digits)
    if isinstance(value, list | tuple):
        return [json_safe(item, digits=digits) for item in value]
    return value
