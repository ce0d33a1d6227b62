"""A pool of processes that can be killed, for algebra that may never end.

Limits that a library sets itself need the main thread and do not stop C code. Here each worker is
a fresh interpreter (never a fork of the caller, who may hold CUDA); calls may come from any thread.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from multiprocessing.connection import Connection

_START = """import sys
sys.path[:] = {path!r}
from bestofk.rewards.maths.algebra_worker import serve
serve({memory}, {channel})
"""
_ENDED_BY_OTHERS = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT}
START_SECONDS = 120.0


@dataclass(frozen=True)
class Reply:
    """What a worker said: equal, different, unparsed, memory, crashed or timeout."""

    result: str
    detail: str = ""
    cpu_seconds: float = 0.0


class AlgebraWorkerLost(RuntimeError):
    """The worker was ended from outside, could not start, or stalled: not the model's doing."""


class AlgebraWorker:
    """One process and the channel to it."""

    def __init__(self, memory_bytes: int) -> None:
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        ours, theirs = socket.socketpair()
        with theirs:
            path, channel = [p for p in sys.path if p], theirs.fileno()
            code = _START.format(path=path, memory=memory_bytes, channel=channel)
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                pass_fds=[channel],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment | {"OMP_NUM_THREADS": "1"},
            )
        self._channel = Connection(ours.detach())
        if self._read(START_SECONDS) != {"result": "ready"}:
            self.kill()
            raise AlgebraWorkerLost(
                "a maths worker did not start; is its parser installed? pip install 'bestofk[math]'"
            )

    def ask(self, gold: str, answer: str, cpu_seconds: float) -> Reply:
        """One comparison. Raises AlgebraWorkerLost when it is nobody's fault but ours."""
        request = {"gold": gold, "answer": answer, "cpu_seconds": cpu_seconds}
        try:
            self._channel.send_bytes(json.dumps(request).encode())
        except OSError as error:
            self.kill()
            raise AlgebraWorkerLost(f"the channel to a maths worker broke: {error}") from error
        reply = self._read(50.0 * cpu_seconds + 60.0)  # a backstop: the budget is CPU time
        if reply is not None:
            return Reply(reply["result"], reply.get("detail", ""))
        status = self.kill()
        if status == -signal.SIGPROF:
            return Reply("timeout", f"more than {cpu_seconds:g} CPU seconds", cpu_seconds)
        if status in _ENDED_BY_OTHERS:
            raise AlgebraWorkerLost(f"a maths worker was ended by signal {-status} or stalled")
        return Reply("died", f"the worker ended with status {status}")

    def _read(self, seconds: float) -> dict[str, str] | None:
        """One message; None when the process closed its end or time is up."""
        try:
            return json.loads(self._channel.recv_bytes()) if self._channel.poll(seconds) else None
        except (EOFError, OSError):
            return None

    def kill(self) -> int:
        """End the process and reap it; its exit status: its own, where it had ended already, or is
        about to, since its end of the channel is closed."""
        try:
            self.process.wait(0.5 if self._channel.poll(0) else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._channel.close()
        return self.process.wait()


class AlgebraPool:
    """Up to `size` workers, started when needed, each serving one caller at a time."""

    def __init__(self, size: int, cpu_seconds: float, memory_bytes: int) -> None:
        self.size, self.cpu_seconds, self.memory_bytes = size, cpu_seconds, memory_bytes
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._idle: list[AlgebraWorker] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.size)
        self._finalizer = weakref.finalize(self, _kill_all, self._idle)

    def compare(self, gold: str, answer: str, retries: int) -> Reply:
        """Compare on some worker; a lost one is replaced and the question asked again.

        A question that makes its worker die twice by itself is `crashed`.

        Raises:
            AlgebraWorkerLost: workers were lost more than `retries` times.
        """
        if os.getpid() != self._owner:  # a fork: the workers are the parent's, leave them alone
            self._finalizer.detach()
            self._reset()
        lost = died = 0
        with self._slots:
            while True:
                try:
                    worker = self._take()
                    reply = worker.ask(gold, answer, self.cpu_seconds)
                except (AlgebraWorkerLost, OSError) as error:
                    lost += 1
                    if lost > retries:
                        raise AlgebraWorkerLost(str(error)) from error
                    continue
                if reply.result == "died":
                    died += 1
                    if died == 2:
                        return Reply("crashed", f"twice {reply.detail}")
                    continue
                if reply.result != "timeout":
                    with self._lock:
                        self._idle.append(worker)
                return reply

    def _take(self) -> AlgebraWorker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return AlgebraWorker(self.memory_bytes)

    def close(self) -> None:
        """End all idle workers; a later call starts new ones."""
        if os.getpid() == self._owner:
            with self._lock:
                _kill_all(self._idle)


def _kill_all(workers: list[AlgebraWorker]) -> None:
    while workers:
        worker = workers.pop()
        worker.process.kill()
        worker.kill()
