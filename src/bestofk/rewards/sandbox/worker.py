"""The host's side of one worker: start it, hand it jobs, tell its death from its answer."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import bubblewrap
from .guest import wire
from .guest.codec import CodecError

_HERE = str(Path(__file__).parent)
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from guest import zygote; zygote.main(int(sys.argv[2]))"
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
}
_START_SECONDS = 120.0
_GRACE = 30.0
_LEAVE = 1.0


class WorkerLost(Exception):
    """The worker died, or fell silent, while it had a program."""


class Worker:
    """A fork server in its room. Not thread-safe: the pool lends it to one thread at a time."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Start and wait until it serves.

        The child is exec'd at once (vfork, no Python in between), so it is safe to start from a
        process with threads or a CUDA context; its environment and descriptors are ours to name.

        Raises:
            OSError: it could not be started, or could not enter its room.
        """
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-s", "-S", "-B", "-c", _START, _HERE]
        if config["wrapped"]:
            command[:1] = [*bubblewrap.prefix(config, _HERE), bubblewrap.interpreter()]
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
            wire.send(self.socket, config | {"guest": _HERE})
            hello = self._answer(_START_SECONDS)
        except (WorkerLost, OSError) as error:
            self.close()
            raise OSError(f"a sandbox worker did not start: {error}") from error
        if not hello.get("ok"):
            self.close()
            raise OSError(f"a sandbox worker did not start: {hello.get('error')}")

    def run(self, request: dict[str, Any], *files: bytes) -> tuple[dict[str, Any], bytes]:
        """One job: the fork server's report and what the job wrote.

        Raises:
            WorkerLost: no report came.
            OSError: this side could not even send it (no descriptors or memory left).
        """
        descriptors: list[int] = []
        try:
            for data in (*files, None):
                descriptors.append(wire.memory_file(data))  # noqa: PERF401 - all closed below
            limits = request["limits"]
            try:
                wire.send(self.socket, request, descriptors)
            except (BrokenPipeError, ConnectionError) as error:
                raise WorkerLost(f"it was gone: {error}") from error
            wall = limits["cpu_per_program"] * limits["wall_factor"]
            report = self._answer(wall + _GRACE)
            return report, wire.read_file(descriptors[-1], wire.RESULT)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        while not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if time.monotonic() >= deadline:
                raise WorkerLost(f"no answer within {seconds:g} s")
        try:
            answer, descriptors = wire.receive(self.socket)
        except (EOFError, ConnectionError) as error:
            raise WorkerLost("it ended") from error
        except CodecError as error:
            raise WorkerLost(f"it sent no message: {error}") from error
        for descriptor in descriptors:
            os.close(descriptor)
        if not isinstance(answer, dict):
            raise WorkerLost("it sent no report")
        return answer

    def close(self) -> None:
        """End it and everything in its room: it goes when its socket closes, or is made to."""
        self.socket.close()
        process = getattr(self, "process", None)
        if process is None:
            return
        try:
            process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def forget(self) -> None:
        """After a fork of the host: drop the child's copy of the socket, touch nothing else."""
        self.socket.close()
        self.process.returncode = 0
