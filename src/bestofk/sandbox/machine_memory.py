"""How much memory there is for programs: of the machine, and of the control groups around us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_GROUPS = (  # where, limit, usage, what of the usage the kernel gives back when asked
    ("", "memory.max", "memory.current", "inactive_file"),
    ("unified", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that processes started now can have; None where /proc does not say."""
    try:
        machine = _field(root / "proc/meminfo", "MemAvailable:") * 1024
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, KeyError):
        return None
    paths = {line.split(":", 2)[2].strip("/") for line in groups if line.count(":") >= 2}
    return min([machine, *(room for path in paths for room in _rooms(root, path))])


def shortage(workers: int, limit: int, available: int | None) -> str:
    """A sentence where programs of all workers may need more memory than there is; else empty."""
    if available is None or workers * limit <= available:
        return ""
    fitting = available // limit
    way = f"workers={fitting}" if fitting else f"limits with memory={available // 2}"
    return (
        f"{workers} programs at once may take {workers * limit / 2**30:.1f} GiB of memory, and "
        f"{available / 2**30:.1f} GiB are free: the kernel may end some, which are tried again; "
        f"{way} of the verifier fits"
    )


def _field(file: Path, name: str) -> int:
    rows = dict(line.split()[:2] for line in file.read_text().splitlines())
    return int(rows[name])


def _rooms(root: Path, path: str) -> Iterator[int]:
    """What each control group from this one up still allows. In a container the path may name a
    folder outside: then the root of what is mounted is its own group."""
    for base, limit, usage, reclaimable in _GROUPS:
        top = root / "sys/fs/cgroup" / base
        folder = top / path
        for group in (folder, *folder.parents):
            if top == group or top in group.parents:
                try:
                    bytes_allowed = int((group / limit).read_text())
                    bytes_used = int((group / usage).read_text())
                    yield max(
                        0, bytes_allowed - bytes_used + _field(group / "memory.stat", reclaimable)
                    )
                except (OSError, ValueError, KeyError):  # no such group, or "max"
                    continue
