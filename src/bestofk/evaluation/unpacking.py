"""Compressed files: gzip and zstd by what they hold, not by what they are called; zip with zstd.

Python's zipfile does not know zstd (method 93) before 3.14, so its entries are unpacked here.
"""

from __future__ import annotations

import gzip
import importlib
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
ZSTD_IN_ZIP = 93
LOCAL_HEADER = struct.Struct("<4s5H3L2H")
"""Of an entry in a zip archive, before its name, its extra field and its data."""


class BadFile(ValueError):
    """A file that cannot be read as samples; says where and what to do."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


def unpacked(path: Path, raw: IO[bytes]) -> Any:
    """The stream of an open file, unpacked where it is gzip or zstd.

    Raises:
        BadFile: zstd without the package for it; an archive.
    """
    head = raw.read(4)
    raw.seek(0)
    if head.startswith(GZIP):
        return gzip.GzipFile(fileobj=raw)
    if head.startswith(ZSTD):
        return io.BufferedReader(ZstdStream(raw, zstandard(path).ZstdDecompressor()))
    if head.startswith(ZIP):
        raise BadFile(path, None, "this is a zip archive: unpack it, or name an inspect log .eval")
    return raw


def unpacking_errors() -> tuple[type[Exception], ...]:
    """What is raised by a compressed file that is cut off or damaged."""
    result: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error)
    try:
        return (*result, importlib.import_module("zstandard").ZstdError)
    except ImportError:
        return result


def zstandard(path: Path) -> Any:
    """The zstandard package, or the way to get it."""
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise BadFile(
            path, None, "reading zstd needs zstandard: pip install 'bestofk[data]'"
        ) from None


class ZstdStream(io.RawIOBase):
    """A zstd stream that notices when it is cut off, which the package's own reader does not."""

    def __init__(self, raw: IO[bytes], tool: Any) -> None:
        self.raw, self.tool = raw, tool
        self.frame = tool.decompressobj()
        self.rest = b""
        self.begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer.

        Raises:
            EOFError: the file ends within a frame.
        """
        while not self.rest:
            packed = self.frame.unused_data if self.frame.eof else b""
            packed = packed or self.raw.read(1 << 16)
            if not packed:
                if self.begun and not self.frame.eof:
                    raise EOFError("the file ends within a frame")
                return 0
            if self.frame.eof:
                self.frame = self.tool.decompressobj()
            self.begun = True
            self.rest = self.frame.decompress(packed)
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count


ZIP_ERRORS = (zipfile.BadZipFile, struct.error, OSError, ValueError, RuntimeError, IndexError)
"""What zipfile raises for an entry that is damaged, encrypted or packed in an unknown way."""


class Archive:
    """Entries of a zip archive, whichever way they are compressed. Use as a context."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.zip = zipfile.ZipFile(path)
        except ZIP_ERRORS as error:
            raise BadFile(
                path, None, f"not a zip archive, or cut off ({error}): was its writer killed?"
            ) from None

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.zip.close()

    def names(self) -> list[str]:
        return self.zip.namelist()

    def read(self, name: str) -> bytes:
        """The content of an entry.

        Raises:
            BadFile: it is damaged, encrypted, or packed in a way that is not known.
        """
        try:
            return self._read(name)
        except BadFile:
            raise
        except unpacking_errors() as error:
            raise BadFile(self.path, None, f"{name} is damaged ({error})") from None
        except ZIP_ERRORS as error:
            raise BadFile(self.path, None, f"{name} cannot be unpacked ({error})") from None

    def _read(self, name: str) -> bytes:
        entry = self.zip.getinfo(name)
        if entry.compress_type != ZSTD_IN_ZIP:
            return self.zip.read(name)
        tool = zstandard(self.path)
        with self.path.open("rb") as raw:
            raw.seek(entry.header_offset)
            header = LOCAL_HEADER.unpack(raw.read(LOCAL_HEADER.size))
            raw.seek(header[-2] + header[-1], 1)
            packed = raw.read(entry.compress_size)
        try:
            data: bytes = tool.ZstdDecompressor().decompressobj().decompress(packed)
        except tool.ZstdError as error:
            raise BadFile(self.path, None, f"{name} is damaged ({error})") from None
        if zlib.crc32(data) != entry.CRC:
            raise BadFile(self.path, None, f"{name} is damaged (its checksum differs)")
        return data
