"""The texts of chosen samples, and the seeds, from files too large to parse again.

Of a JSONL file the wanted lines are copied into a small temporary one, which evaluation then reads
as it read the whole: the same detection and mapping, at the cost of finding line ends.
"""

from __future__ import annotations

import mmap
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bestofk import evaluation
from bestofk.evaluation import Samples
from bestofk.evaluation.unpacking import unpacked

SEED = re.compile(rb'"seed"\s*:\s*(-?[0-9]{1,20})\b')
"""Of a field, at any depth. Inside a text the quotes would be escaped, so it cannot be meant."""


def fetch(
    path: Path, samples: Samples, positions: Sequence[int], options: Mapping[str, Any]
) -> dict[int, Mapping[str, Any]]:
    """The fields of the samples at flat positions, by position and role.

    Args:
        options: columns, where and encoding with which the samples were read.
    """
    if samples.lines is None or not positions:
        return {}
    wanted: dict[int, dict[int, int]] = {}
    for position in positions:
        line, place = int(samples.lines[position]), occurrence(samples, position)
        wanted.setdefault(line, {})[place] = position
    with tempfile.TemporaryDirectory(prefix="bestofk-") as folder:
        file, numbers = path, None
        if (
            path.name.lower()
            .removesuffix(".gz")
            .removesuffix(".zst")
            .endswith((".jsonl", ".ndjson"))
        ):
            file = Path(folder) / "lines.jsonl"
            numbers = copy_lines(path, file, set(wanted))
        result: dict[int, Mapping[str, Any]] = {}
        seen: dict[int, int] = {}
        for row in evaluation.rows(file, **options):
            line = row.line if numbers is None else numbers[row.line - 1]
            place = seen.get(line, 0)
            seen[line] = place + 1
            position = wanted.get(line, {}).get(place, -1)
            if position >= 0:
                result[position] = row.fields
        return result


def occurrence(samples: Samples, position: int) -> int:
    """How many samples of the same line come before: a line may hold several."""
    assert samples.lines is not None
    problem = int(np.searchsorted(samples.offsets, position, side="right")) - 1
    start = int(samples.offsets[problem])
    line = samples.lines[position]
    return int((samples.lines[start:position] == line).sum())


def copy_lines(path: Path, target: Path, wanted: set[int]) -> list[int]:
    """Copy the first line (formats are known by it) and the wanted ones; return their numbers."""
    numbers = []
    with open(target, "wb") as out:
        first = True
        for number, line in enumerate(lines(path), start=1):
            if number in wanted or (first and line.strip()):
                out.write(line if line.endswith(b"\n") else line + b"\n")
                numbers.append(number)
                first = first and not line.strip()
    return numbers


def lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as raw:
        yield from unpacked(path, raw)


def seeds_of(path: Path) -> str | None:
    """The seeds that a JSONL file records, in words; None where it records none."""
    if path.suffix not in (".jsonl", ".ndjson") or not path.stat().st_size:
        return None
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
        result = sorted({int(seed) for seed in set(SEED.findall(text))})
    if len(result) > 6:
        return f"{result[0]}…{result[-1]} ({len(result)})"
    return ", ".join(map(str, result)) or None
