"""Packed files: what unpacks them, and how far.

A packed file is known by what it holds and not by what it is called. A file of megabytes can unpack
to terabytes, so what a file or an entry of a log unpacks to is bounded by its size.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import json
import lzma
import os
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

ZSTD, ZIP = b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zX": lzma.open}
"""By how a file begins: gzip, bzip2, xz."""
MOST_UNPACKED, MOST_RATIO = 64_000_000, 50
"""Bytes that any packed file may unpack to, and how many times its size a larger one may."""
LIMIT = "BESTOFK_MAX_UNPACKED"
"""The environment variable that raises the bound, in bytes."""


class BadFile(ValueError):
    """A file that cannot be read as samples; says where and what to do."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


def most_unpacked(packed: int) -> float:
    """How many bytes a packed file of so many bytes may unpack to.

    >>> most_unpacked(1000), most_unpacked(10_000_000)
    (64000000, 500000000)
    """
    try:
        raised = float(os.environ.get(LIMIT) or 0)
    except ValueError:
        raise ValueError(f"${LIMIT} is a number of bytes, got {os.environ[LIMIT]!r}") from None
    return raised or max(MOST_UNPACKED, MOST_RATIO * packed)


def check_unpacked(path: Path, size: int) -> None:
    """Raise where a file has unpacked to more bytes than it may."""
    packed = path.stat().st_size
    if size > (limit := most_unpacked(packed)):
        raise BadFile(
            path,
            None,
            f"its {packed:,} bytes unpack to more than {limit:,.0f}, as in no file that a tool "
            f"wrote: if you trust it, set {LIMIT} to the bytes that it may have",
        )


class _Bounded(io.RawIOBase):
    """A stream that is unpacked while it is read, up to the bound."""

    def __init__(self, path: Path, stream: Any) -> None:
        self.path, self.stream, self.size = path, stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self.stream.readinto(buffer))
        self.size += count
        check_unpacked(self.path, self.size)
        return count


def unpacked(path: Path, raw: IO[bytes]) -> Any:
    """The stream of an open file, unpacked where it is gzip, bzip2, xz or zstd."""
    head = raw.read(4)
    raw.seek(0)
    if head.startswith(ZIP):
        raise BadFile(path, None, "this is a zip archive: unpack it, or name an inspect log .eval")
    stream = next((start(raw) for magic, start in OPENERS.items() if head.startswith(magic)), None)
    if head.startswith(ZSTD):
        unpacker = package("zstandard", "zstd", path).ZstdDecompressor()
        stream = unpacker.stream_reader(raw, read_across_frames=True)
    return raw if stream is None else io.BufferedReader(_Bounded(path, stream), 1 << 16)


def unpacking_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What is raised by a packed file that is cut off or damaged; and more."""
    zstandard = sys.modules.get("zstandard")
    errors = EOFError, OSError, lzma.LZMAError, zlib.error
    return (*errors, *more, *([zstandard.ZstdError] if zstandard else []))


def package(name: str, what: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        way = f"reading {what} needs {name}: pip install 'bestofk[data]'"
        raise BadFile(path, None, way) from None


class Archive:
    """An `.eval` log: a zip archive of JSON, packed by zstd (method 93, which Python's zipfile
    does not know before 3.14). Use as a context."""

    HEADER = struct.Struct("<4s5H3L2H")
    """Of an entry, before its name, its extra field and its data."""
    ERRORS = (zipfile.BadZipFile, struct.error, OSError, ValueError, RuntimeError, IndexError)
    """What an entry raises that is damaged, encrypted, packed in an unknown way or not JSON."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        try:
            self.zip = zipfile.ZipFile(path)
        except self.ERRORS as error:
            raise BadFile(
                path, None, f"not a zip archive, or cut off ({error}): was its writer killed?"
            ) from None

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.zip.close()

    def spec(self) -> dict[str, Any]:
        """What was evaluated; of a run that did not end, as it was written at its start."""
        for name in ("header.json", "_journal/start.json"):
            header = self.load(name) if name in self.zip.namelist() else None
            if isinstance(header, dict) and isinstance(header.get("eval"), dict):
                return dict(header["eval"])
        raise BadFile(self.path, None, "a zip archive without an inspect log in it")

    def load(self, name: str) -> Any:
        """An entry."""
        try:
            return json.loads(self._read(name))
        except BadFile:
            raise
        except MemoryError:
            raise BadFile(self.path, None, f"{name} does not fit into memory") from None
        except unpacking_errors(*self.ERRORS) as error:
            raise BadFile(self.path, None, f"{name} is damaged ({error})") from None

    def _read(self, name: str) -> bytes:
        entry = self.zip.getinfo(name)
        limit = int(most_unpacked(self.path.stat().st_size)) - self.size + 1
        if entry.compress_type != 93:
            with self.zip.open(name) as stream:
                data = stream.read(limit)
        else:
            tool = package("zstandard", "zstd", self.path)
            with self.path.open("rb") as raw:
                raw.seek(entry.header_offset)
                header = self.HEADER.unpack(raw.read(self.HEADER.size))
                raw.seek(header[-2] + header[-1], 1)
                packed = raw.read(entry.compress_size)
            data = tool.ZstdDecompressor().stream_reader(packed).read(limit)
        self.size += len(data)
        check_unpacked(self.path, self.size)
        if zlib.crc32(data) != entry.CRC:
            raise BadFile(self.path, None, f"{name} is damaged (its checksum differs)")
        return data
