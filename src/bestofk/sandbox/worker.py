"""The host's side of one worker: start it, hand it jobs, tell its death from its answer."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from .guest import wire
from .guest.codec import CodecError
from .outcome import Limits

_HERE = str(Path(__file__).parent)
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from guest import server; server.main(int(sys.argv[2]))"
)
# PYTHONHASHSEED: the order of sets must not depend on which worker judged a program.
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/dev/null",  # no folder can be made below it
    "TMPDIR": "/dev/null",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "LD_BIND_NOW": "1",  # or every program resolves the same symbols again
}
_START_SECONDS = 120.0
_GRACE = 30.0
_STARVED = 50.0
"""Wall seconds per CPU second allowed after which a run counts as starved: it is tried again."""
_LEAVE = 1.0
_KILLED = {
    status for number in (signal.SIGKILL, signal.SIGTERM) for status in (-number, -number & 0xFF)
}
"""How a worker ends by a signal: itself, or what it waited for inside."""


@lru_cache(64)
def request(*, eager: bool, pure: bool, limits: Limits) -> tuple[bytes, float]:
    """A job's packet, and the wall seconds after which the worker reports that it is starved: the
    same for thousands of programs."""
    wall = _STARVED * limits.cpu_per_program + 10.0 * limits.blocked_per_program
    stated = asdict(limits) | {"starved_after": wall}
    return wire.pack({"eager": eager, "pure": pure, "limits": stated}), wall


class WorkerLost(Exception):
    """The worker died while it had a program, which may be the cause.

    Every other loss is an OSError, and never the program's fault: a signal from outside ended the
    worker, it was dead before, or it neither answered nor died. It listens to no program.
    """


class WorkerKilled(OSError):
    """Something outside ended the worker, as the kernel does when memory is short."""


class Worker:
    """A confined fork server. Not thread-safe: the pool lends it to one thread at a time."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Start and wait until it serves.

        The child is exec'd at once (vfork, no Python in between), so it is safe to start from a
        process with threads or a CUDA context; its environment and descriptors are ours to name.

        Raises:
            OSError: it could not be started, or could not be confined.
        """
        self._tests: tuple[bytes, int] | None = None
        self._result = -1
        command = [sys.executable, "-P", "-s", "-S", "-B", "-c", _START, _HERE]
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poller = select.poll()
        self._poller.register(self.socket, select.POLLIN)
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=_ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
            wire.send(self.socket, wire.pack(config | {"guest": _HERE}))
            self._answer(_START_SECONDS)
        except (WorkerLost, OSError) as error:
            self.close()
            raise OSError(f"a sandbox worker did not start: {error}") from error

    def check(
        self, request: bytes, wall: float, program: bytes, tests: bytes
    ) -> tuple[dict[str, Any], bytes]:
        """A program and its tests: the server's report and what the checker wrote.

        The tests' file is kept for the next program, which mostly has the same tests; the result's
        file is emptied and used again, since no program ever holds it.

        Raises:
            WorkerLost: the worker died.
            OSError: it was lost otherwise, gave no report within `wall` seconds and a grace, or
                could not be sent anything (no descriptors or memory left).
        """
        if self._tests is None or self._tests[0] is not tests:
            self._forget_tests()
            self._tests = (tests, wire.memory_file(tests))
        if self._result < 0:
            self._result = wire.memory_file()
        os.ftruncate(self._result, 0)
        source = wire.memory_file(program)
        try:
            report = self._ask(request, wall, [source, self._tests[1], self._result])
        finally:
            os.close(source)
        return report, wire.read_file(self._result, wire.RESULT)

    def _ask(self, request: bytes, wall: float, files: list[int]) -> dict[str, Any]:
        try:
            wire.send(self.socket, request, files)
        except (BrokenPipeError, ConnectionError) as error:
            raise OSError(f"its worker had died before: {error}") from error
        return self._answer(wall + _GRACE)

    def _forget_tests(self) -> None:
        if self._tests is not None:
            os.close(self._tests[1])
            self._tests = None

    def _answer(self, seconds: float) -> dict[str, Any]:
        if not self._poller.poll(seconds * 1000):
            raise OSError(f"no answer within {seconds:g} s")
        try:
            packet, descriptors = wire.receive(self.socket)
            answer = wire.unpack(packet)
        except (EOFError, ConnectionError) as error:
            raise self._death() from error
        except CodecError as error:
            raise WorkerLost(f"it sent no message: {error}") from error
        for descriptor in descriptors:
            os.close(descriptor)
        if not isinstance(answer, dict):
            raise WorkerLost("it sent no report")
        if "error" in answer:
            raise OSError(answer["error"])
        return answer

    def _death(self) -> Exception:
        """Why it ended. Its first process tells, once it has a core; no program can hold it up."""
        try:
            ended = self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return OSError(f"its worker did not say within {_GRACE:g} s how it ended")
        if ended in _KILLED:
            return WorkerKilled("its worker was killed from outside, as when memory is short")
        return WorkerLost("it ended")

    def close(self) -> None:
        """End it and all its processes: it goes when its socket closes, or is made to."""
        self._close_files()
        process = getattr(self, "process", None)
        if process is None:
            return
        try:
            process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def _close_files(self) -> None:
        self.socket.close()
        self._forget_tests()
        if self._result >= 0:
            os.close(self._result)
            self._result = -1

    def forget(self) -> None:
        """After a fork of the host: drop the child's copies of our files, touch nothing else."""
        self._close_files()
        self.process.returncode = 0


def configuration(
    tier: int,
    limits: Limits,
    packages: Sequence[str] | Literal["all"],
    paths: Sequence[str],
    preload: Sequence[str],
    writable: bool = False,
) -> dict[str, Any]:
    """The message a worker starts from; `writable`: programs have a folder to write in."""
    folders = [os.path.abspath(path) for path in paths]
    for folder in folders:
        if not os.path.isdir(folder):
            raise ValueError(f"paths= names folders that exist, got {folder!r}")
    if packages == "all":
        ours = str(Path(__file__).parents[2])  # bestofk itself, wherever it was imported from
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
