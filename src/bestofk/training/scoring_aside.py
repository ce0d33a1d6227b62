"""Groups are scored in a thread while others are still being sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from bestofk.types import Group, Verdict


class ScoringAside:
    """One thread scores what was submitted, all that waits as one batch.

    Groups are known by identity: `collect` takes the objects that were submitted, in any order.
    """

    def __init__(self, score: Callable[[Sequence[Group]], list[list[Verdict]]]) -> None:
        self.score = score
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bestofk-score")
        self._lock = Lock()
        self._waiting: list[Group] = []
        self._running: list[Future[None]] = []
        self._verdicts: dict[int, list[Verdict]] = {}

    def submit(self, group: Group) -> None:
        """Score it when the thread is free."""
        with self._lock:
            self._waiting.append(group)
        self._running.append(self._thread.submit(self._score_waiting))

    def collect(self, groups: Sequence[Group]) -> list[list[Verdict]]:
        """The verdicts of these groups; waits for them, and scores those never submitted.

        Raises:
            Exception: the first that the scorer raised.
        """
        running, self._running = self._running, []
        try:
            for each in running:
                each.result()
            missing = [group for group in groups if id(group) not in self._verdicts]
            if missing:
                self._keep(missing)
            return [self._verdicts[id(group)] for group in groups]
        finally:
            self._verdicts.clear()

    def _score_waiting(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        if batch:
            self._keep(batch)

    def _keep(self, batch: Sequence[Group]) -> None:
        for group, verdicts in zip(batch, self.score(batch), strict=True):
            self._verdicts[id(group)] = verdicts
