"""Tier 2 through bubblewrap, for users who may not make namespaces themselves.

Where user namespaces are open a worker makes its own; where they are closed to programs but a
set-uid or specially allowed `bwrap` is installed, it makes them. What bubblewrap cannot bound is
left out: there is never a writable folder (its tmpfs has no limit on inodes), no /proc and no
/dev but harmless devices. It starts with an empty environment and no capability.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from typing import Any

from .guest import confinement

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")


def available() -> str | None:
    """The path of bwrap, where it is installed."""
    return shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")


def interpreter() -> str:
    """The interpreter itself: a virtual environment's link is not shown inside."""
    return os.path.realpath(sys.executable)


def prefix(config: dict[str, Any], guest: str) -> list[str]:
    """The command that runs the rest of a command line in namespaces and a read-only root."""
    program = available()
    if program is None:
        raise OSError("bwrap is not installed")
    paths = sysconfig.get_paths()
    standard = [paths["stdlib"], paths["platstdlib"]]
    library = os.path.join(sys.base_prefix, "lib")
    shared = [os.path.join(library, n) for n in os.listdir(library) if n.startswith("libpython")]
    folders = [*standard, *confinement.SYSTEM_LIBRARIES, *config["readable"], guest]
    folders = [path for path in dict.fromkeys(folders) if os.path.exists(path)]
    # inside there is no /proc to say it in: when memory is short, programs go before the host
    first_to_go = 'echo 1000 > /proc/self/oom_score_adj; exec "$0" "$@"'
    command = [
        "/bin/sh",
        "-c",
        first_to_go,
        program,
        "--unshare-all",
        "--as-pid-1",
        "--new-session",
        "--cap-drop",
        "ALL",
    ]
    for path in folders:
        command += _shown(path)
    for spot in confinement.hidden_folders(folders, config):
        command += ["--tmpfs", spot, "--remount-ro", spot]
    for path in (*config["readable"], *shared, interpreter()):
        command += _shown(path)
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    return [*command, "--dir", "/tmp", "--remount-ro", "/", "--chdir", "/"]


def _shown(path: str) -> list[str]:
    if os.path.islink(path) and path in confinement.SYSTEM_LIBRARIES:
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind", path, path]
