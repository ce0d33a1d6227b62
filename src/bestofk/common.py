"""Small helpers that every room may use: name suggestions, atomic writes, JSON without NaN."""

from __future__ import annotations

import difflib
import math
import os
import socket
import threading
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def closest(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most like the given one, if any is like it."""
    near = difflib.get_close_matches(str(given), list(known), n=1, cutoff=cutoff)
    return near[0] if near else None


def did_you_mean(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The part of a message that suggests the closest match; empty where nothing is close.

    >>> did_you_mean("count-down", ["countdown", "maze"])
    "did you mean 'countdown'? "
    """
    near = closest(given, known, cutoff=cutoff)
    return f"did you mean {near!r}? " if near else ""


def choices(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The end of a message about a mistyped name: the closest match, and all there are.

    >>> choices("mase", ["countdown", "maze"])
    "did you mean 'maze'? have countdown, maze"
    """
    names = list(known)
    return f"{did_you_mean(given, names, cutoff=cutoff)}have {', '.join(names) or 'none'}"


def unknown(kind: str, given: object, known: Iterable[str], *, cutoff: float = 0.6) -> ValueError:
    """The error for a mistyped name: what it is, the closest match, and all there are.

    >>> raise unknown("task", "count-down", ["countdown", "maze"])
    Traceback (most recent call last):
    ValueError: unknown task 'count-down'; did you mean 'countdown'? have countdown, maze
    """
    return ValueError(f"unknown {kind} {given!r}; {choices(given, known, cutoff=cutoff)}")


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


def base_model(model: Any) -> Any:
    """The model below its LoRA adapters (peft), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def can_connect(url: str, *, seconds: float = 5.0) -> bool:
    """Whether the host of a URL, or the proxy that leads to it, accepts a connection.

    Libraries repeat failed requests for a minute; this says within seconds that there is no way.
    """
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 80)
    result = threading.Event()

    def knock() -> None:  # in a thread, because the search for an address has no time limit
        try:
            socket.create_connection((parts.hostname or "", port), timeout=seconds).close()
            result.set()
        except OSError:
            pass

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return result.is_set()


def processes_per_card(cards: int, environ: Mapping[str, str] = os.environ) -> int:
    """Processes of this run that share one GPU: the launcher says how many run on this machine.

    >>> processes_per_card(1, {"LOCAL_WORLD_SIZE": "2"}), processes_per_card(8, {})
    (2, 1)
    """
    here = environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, -(-int(here if here.isdigit() else 1) // max(1, cards)))
