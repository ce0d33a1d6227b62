"""The file a sampling run writes: a killed run resumes, and no sample is paid for twice.

A sample is written to the journal (`OUT.journal`) the moment it arrives, and to OUT, one line per
sample, append-only, once it is scored. A run that starts finds in OUT what is done, in the journal
what is paid but not scored, and draws the rest. The journal goes when all is done.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bestofk.types import Prompt, Verdict

BATCH = 64
"""Samples judged at once, at most."""

Judge = Callable[[Sequence[Prompt], Sequence[str]], list[Verdict]]


class SampleFile:
    """Samples of one run, on their way from the sampler to the file.

    Use as a context: leaving it waits until all that arrived is scored and written.
    """

    def __init__(
        self,
        out: Path,
        run: Mapping[str, Any],
        prompts: Mapping[str, Prompt],
        judge: Judge,
        on_written: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            run: what every line repeats: model, sampling, run_id.
            prompts: by id.
            on_written: called with the number of samples written so far.
        """
        self.out, self.journal = out, out.with_name(out.name + ".journal")
        self.run, self.prompts, self.judge, self.on_written = dict(run), prompts, judge, on_written
        self.done: set[tuple[str, int]] = set()
        self.written = 0
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._error: BaseException | None = None

    def __enter__(self) -> SampleFile:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self.journal.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(f"{self.out} is being written by another process") from None
        try:
            cut_torn_line(self.out)
            cut_torn_line(self.journal)
            for line in lines_of(self.out):
                self._check(line)
                self.done.add((line["problem_id"], line["sample_id"]))
        except BaseException:
            if not self.journal.stat().st_size:
                self.journal.unlink()
            self._lock.close()
            raise
        self._file = self.out.open("a", encoding="utf-8")
        self._thread = threading.Thread(target=self._score, daemon=True)
        self._thread.start()
        for paid in lines_of(self.journal):
            key = (paid["problem_id"], paid["sample_id"])
            if key not in self.done and key[0] in self.prompts:
                self.done.add(key)
                self._queue.put(paid)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._queue.put(None)
        self._thread.join()
        self._file.close()
        complete = kind is None and self._error is None
        if complete:
            self.journal.unlink()
        self._lock.close()
        if self._error is not None and kind is None:
            raise self._error

    def missing(self, prompt: Prompt, n: int) -> tuple[int, ...]:
        """Numbers of this prompt's samples that are still to be drawn."""
        return tuple(s for s in range(n) if (prompt.id, s) not in self.done)

    def take(self, sample: Mapping[str, Any]) -> None:
        """Keep a sample that arrived: problem_id, sample_id, completion and what is known of it.

        Raises:
            BaseException: whatever ended the judging of earlier ones.
        """
        if self._error is not None:
            raise self._error
        self._lock.write(json.dumps(sample, ensure_ascii=False) + "\n")
        self._lock.flush()
        self.done.add((sample["problem_id"], sample["sample_id"]))
        self._queue.put(dict(sample))

    def _check(self, line: Mapping[str, Any]) -> None:
        if line.get("run_id") != self.run["run_id"]:
            raise ValueError(
                f"{self.out} holds samples of another run (model, task, sampling or seed differ): "
                "choose another --out, or remove the file"
            )

    def _score(self) -> None:
        """In a thread of its own: judge what has arrived and write it."""
        try:
            while (first := self._queue.get()) is not None:
                batch = [first]
                while len(batch) < BATCH and not self._queue.empty():
                    more = self._queue.get()
                    if more is None:
                        self._queue.put(None)
                        break
                    batch.append(more)
                self._write(batch)
        except BaseException as error:
            self._error = error

    def _write(self, batch: Sequence[Mapping[str, Any]]) -> None:
        prompts = [self.prompts[sample["problem_id"]] for sample in batch]
        verdicts = self.judge(prompts, [sample["completion"] for sample in batch])
        for sample, prompt, verdict in zip(batch, prompts, verdicts):
            line = sample_line(sample, prompt, verdict, self.run)
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.written += len(batch)
        if self.on_written:
            self.on_written(self.written)


def sample_line(
    sample: Mapping[str, Any], prompt: Prompt, verdict: Verdict, run: Mapping[str, Any]
) -> dict[str, Any]:
    """One line of the file: the fields of `docs/files.md`, in their order."""
    from bestofk.rewards.given_answers import given_answer

    scored = not math.isnan(verdict.reward)
    return {
        "problem_id": prompt.id,
        "sample_id": sample["sample_id"],
        "prompt": prompt.text,
        "completion": sample["completion"],
        "answer": given_answer(prompt, sample["completion"], verdict),
        "reward": verdict.reward if scored else None,
        "correct": verdict.reward == 1.0 if scored else None,
        "status": verdict.status,
        "finish_reason": sample.get("finish_reason"),
        "n_tokens": sample.get("n_tokens"),
        "logprob_sum": sample.get("logprob_sum"),
        "seed": sample.get("seed"),
        "model": run["model"],
        "sampling": run["sampling"],
        "run_id": run["run_id"],
    }


def cut_torn_line(path: Path) -> None:
    """Drop what follows the last newline: a line whose writer was killed."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep, block = 0, 1 << 16
        while end > 0 and not keep:
            start = max(0, end - block)
            file.seek(start)
            keep = start + file.read(end - start).rfind(b"\n") + 1
            keep = 0 if keep == start else keep
            end = start
        file.truncate(keep)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that need not exist.

    Raises:
        ValueError: a line that is not JSON, with its number.
    """
    if not path.exists():
        return []
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                rows.append(json.loads(text))
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not JSON ({error.msg}): repair or remove the line"
                ) from None
    return rows
