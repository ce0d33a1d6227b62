"""What a worker is told when it starts: its tier, its limits, and what it may import and read."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from .outcome import Limits


def configuration(
    tier: int,
    limits: Limits,
    packages: Sequence[str] | Literal["all"],
    paths: Sequence[str],
    preload: Sequence[str],
    wrapped: bool = False,
    writable: bool = False,
) -> dict[str, Any]:
    """The message a worker starts from; `wrapped`: bubblewrap makes the namespaces; `writable`:
    programs have a folder to write in."""
    folders = [os.path.abspath(path) for path in paths]
    for folder in folders:
        if not os.path.isdir(folder):
            raise ValueError(f"paths= names folders that exist, got {folder!r}")
    if packages == "all":
        ours = str(Path(__file__).parents[3])  # bestofk itself, wherever it was imported from
        import_path = list(dict.fromkeys([*_package_folders(), ours]))
        readable = import_path
    else:
        import_path, readable = _parts_of_packages(packages)
    return {
        "tier": tier,
        "limits": asdict(limits),
        "readable": [*readable, *folders],
        "import_path": [*import_path, *folders],
        "all_packages": packages == "all",
        "preload": list(preload),
        "wrapped": wrapped,
        "writable": writable,
    }


def _package_folders() -> list[str]:
    names = ("site-packages", "dist-packages")
    return [p for p in sys.path if os.path.basename(p) in names and os.path.isdir(p)]


def _parts_of_packages(packages: Sequence[str]) -> tuple[list[str], list[str]]:
    """Folders to search, and the parts of them that hold just these packages."""
    folders: list[str] = []
    parts: list[str] = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ValueError(
                f"packages= names installed packages, {name!r} is not: install it or leave it out"
            )
        place = Path(spec.origin)
        place = place.parent if spec.submodule_search_locations else place
        folder = place.parent
        folders.append(str(folder))
        stem = name.replace("-", "_")
        parts += [str(place)]
        parts += [str(p) for p in sorted(folder.glob(f"{stem}.libs"))]
        parts += [str(p) for p in sorted(folder.glob(f"{stem}-*.dist-info"))]
    return list(dict.fromkeys(folders)), list(dict.fromkeys(parts))
