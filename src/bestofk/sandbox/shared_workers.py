"""The workers of a sandbox, lent to one thread at a time."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Callable

from .machine_memory import available_memory, shortage
from .worker import Worker


class SharedWorkers:
    """The workers of one process; a forked child starts with none."""

    def __init__(self, size: int, start: Callable[[], Worker]) -> None:
        self.size, self.start = size, start
        self._reset()

    def _reset(self) -> None:
        self.pid = os.getpid()
        self.free: list[Worker] = []
        self.all: set[Worker] = set()
        self.out = 0
        self.turn = threading.Condition()
        self.line: collections.deque[object] = collections.deque()

    def after_fork(self) -> None:
        """In a forked child: the workers belong to the parent."""
        for worker in self.all:
            worker.forget()
        self._reset()

    def adopt(self, worker: Worker) -> None:
        self.all.add(worker)
        self.free.append(worker)

    def lend(self) -> Worker:
        """A free worker, a new one, or, when all are out, one that comes back: first come, first
        served, or a large batch would keep a small one waiting to its end."""
        me = object()
        with self.turn:
            self.line.append(me)
            try:
                while self.out >= self.size or self.line[0] is not me:
                    self.turn.wait()
                self.out += 1
            finally:
                self.line.remove(me)
                self.turn.notify_all()
            while self.free:
                worker = self.free.pop()
                if worker.process.poll() is None:
                    return worker
                self.all.discard(worker)  # it died while idle: no program is to blame
                worker.close()
        try:
            worker = self.start()
        except BaseException:
            with self.turn:
                self.out -= 1
                self.turn.notify_all()
            raise
        with self.turn:
            self.all.add(worker)
        return worker

    def give_back(self, worker: Worker) -> None:
        with self.turn:
            self.out -= 1
            if worker in self.all:
                self.free.append(worker)
            self.turn.notify_all()

    def discard(self, worker: Worker | None) -> None:
        if worker is None:
            return
        with self.turn:
            self.out -= 1
            self.all.discard(worker)
            self.turn.notify_all()
        worker.close()

    def shrink(self, memory: int) -> None:
        """Let one worker fewer run, where all of them may need more than there is."""
        with self.turn:
            if shortage(self.size, memory, available_memory()):
                self.size = max(1, self.size - 1)

    def close(self) -> None:
        with self.turn:
            workers, self.free = list(self.all), []
            self.all = set()
        for worker in workers:
            worker.close()
