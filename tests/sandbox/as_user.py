"""Run Python as an unprivileged user: python as_user.py UID SCRIPT [ARGUMENTS].

An interpreter below a private home (mode 700) cannot be started by anybody else. Then this shows
the folders it needs through such a home, in a mount namespace of its own: nothing on the machine
changes. Exit status 77: it cannot be arranged here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bestofk.sandbox.guest import kernel


def needed() -> list[str]:
    """Folders that the interpreter and the packages live in."""
    import bestofk

    source = Path(bestofk.__file__).parents[1]
    return [sys.base_prefix, sys.prefix, str(source), str(Path(__file__).parent)]


def private_ancestor(path: str, uid: int) -> str | None:
    """The first folder on the way to `path` that others may not pass."""
    for folder in [*reversed(Path(path).parents), Path(path)]:
        status = folder.stat()
        if not status.st_mode & 0o001 and status.st_uid != uid:
            return str(folder)
    return None


def open_the_way(uid: int) -> None:
    blocked: dict[str, list[str]] = {}
    for path in map(os.path.realpath, needed()):
        wall = private_ancestor(path, uid)
        if wall:
            blocked.setdefault(wall, []).append(path)
    if not blocked:
        return
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    stage = "/mnt" if os.path.isdir("/mnt") else "/media"
    kernel.mount("stage", stage, "tmpfs", 0, "mode=755")
    for wall, paths in blocked.items():
        for number, path in enumerate(paths):
            os.makedirs(f"{stage}/{number}", exist_ok=True)
            kernel.mount(path, f"{stage}/{number}", None, kernel.MS_BIND | kernel.MS_REC)
        kernel.mount("home", wall, "tmpfs", 0, "mode=755")
        for number, path in enumerate(paths):
            os.makedirs(path, exist_ok=True)
            kernel.mount(f"{stage}/{number}", path, None, kernel.MS_BIND | kernel.MS_REC)


def main() -> None:
    uid, *command = sys.argv[1:]
    number = int(uid)
    try:
        open_the_way(number)
    except OSError as error:
        print(f"cannot show the interpreter to user {uid}: {error}", file=sys.stderr)
        os._exit(77)
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    os.environ["HOME"] = "/"
    os.chdir("/")
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
