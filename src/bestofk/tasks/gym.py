"""Puzzles from reasoning-gym (Apache-2.0), by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from bestofk.messages import one_of, unknown
from bestofk.puzzle_names import TRUSTED_PUZZLES
from bestofk.tasks.definition import Split, Task, identity, share_of, wording
from bestofk.types import Prompt

STYLES = ("chat", "text")
_ASK = "\n\nThink first if you like, then give the answer alone between <answer> and </answer>."


def gym(
    *,
    dataset: str = "leg_counting",
    config: Mapping[str, Any] | None = None,
    style: str = "chat",
    seed: int = 0,
    train_size: int = 2000,
    validation_size: int = 200,
    test_size: int = 200,
) -> Task:
    """One task of reasoning-gym.

    Args:
        dataset: its name there, one of those that can be trusted.
        config: its settings (besides seed and size).
        style: "chat" or "text".
    """
    one_of("style", style, STYLES)
    try:
        import reasoning_gym
    except ImportError as error:
        raise ValueError("this needs reasoning-gym: pip install 'bestofk[gym]'") from error
    if dataset not in TRUSTED_PUZZLES:
        raise unknown("or untrustworthy reasoning-gym task", dataset, TRUSTED_PUZZLES)
    settings = dict(config or {})
    try:
        reasoning_gym.create_dataset(dataset, seed=0, size=1, **settings)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"config of reasoning-gym's {dataset}: {error}") from error
    sizes = {"train": train_size, "validation": validation_size, "test": test_size}
    source = _Source(dataset, settings, seed * SEEDS)

    def make(split: str) -> Split:
        prompts = _prompts(source, split, style, sizes[split])
        return Split(prompts, sizes[split], seed=seed, shuffle=False)

    return Task(
        name="gym",
        verifier="gym",
        verifier_options={"dataset": dataset, "config": settings},
        make=make,
        splits=tuple(sizes),
        licence="generated (reasoning-gym, Apache-2.0)",
        summary=f"reasoning-gym's {dataset}",
        left_out=source.left_out,
    )


SEEDS = 1_000_000
"""Entry i of reasoning-gym comes from `Random(seed + i)`: so far apart are our seeds."""
PATIENCE = 5_000
"""Entries in a row that are not new, after which a generator has no others."""
CPU_SECONDS = 10.0
"""Time to make one entry; a few never end."""
_MAKER = """
import json, os, signal, sys, threading, time
out = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some generators print
name, settings, seed, parent = json.loads(sys.argv[1])

def watch():
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)

class Late(BaseException):
    pass

def late(*_):
    raise Late

threading.Thread(target=watch, daemon=True).start()
signal.signal(signal.SIGVTALRM, late)
import reasoning_gym
made = reasoning_gym.create_dataset(name, seed=seed, size=%d, **settings)
for number in range(%d):
    entry = None
    signal.setitimer(signal.ITIMER_VIRTUAL, %r)
    try:
        entry = made[number]
    except Late:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    out.write(json.dumps(entry) + "\\n")
    out.flush()
"""


class _Source:
    """The entries of a generator in order, made by another process as they are asked for.

    A process of its own, because some entries take seconds and a few never end; the pipe holds it
    back, so that it is only a little ahead.
    """

    def __init__(self, dataset: str, settings: Mapping[str, Any], seed: int) -> None:
        self.dataset, self.left_out = dataset, dict[str, str]()
        self._ask = [dataset, settings, seed]
        self._entries: list[Any] = []
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> dict[str, Any] | None:
        """An entry; None for one that took too long or has no answer."""
        with self._lock:
            while len(self._entries) <= number:
                self._entries.append(self._next())
            return self._entries[number]

    def _next(self) -> dict[str, Any] | None:
        if self._process is None:
            words = [sys.executable, "-c", _MAKER % (SEEDS, SEEDS, CPU_SECONDS)]
            request = json.dumps([*self._ask, os.getpid()])
            self._process = subprocess.Popen([*words, request], stdout=subprocess.PIPE, text=True)
            weakref.finalize(self, _end, self._process)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(f"reasoning-gym's {self.dataset} ended with an error; see above")
        entry = json.loads(line)
        key = f"{self.dataset}, entry {len(self._entries)}"
        if entry is None:
            self.left_out[key] = f"took more than {CPU_SECONDS:g} CPU seconds to make"
        elif not str(entry["answer"] or "").strip():
            self.left_out[key] = "a question without an answer"
            return None
        return entry


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _prompts(source: _Source, split: str, style: str, count: int) -> Iterator[Prompt]:
    """Distinct questions that belong to the split, until the generator has no new ones."""
    ids, last = set[str](), 0
    for number in range(SEEDS):
        entry = source[number]
        key = f"gym {source.dataset} {entry['question']}" if entry else ""
        if entry and key not in ids and _split_of(key) == split:
            ids.add(key)
            last = number
            yield Prompt(
                id=identity(f"gym-{source.dataset}", key),
                text=wording(style, entry["question"].strip() + _ASK, ""),
                task="gym",
                spec={"entry": entry},
                reference=f"<answer>{entry['answer']}</answer>",
            )
        elif number - last > PATIENCE:
            break
    if not ids:
        raise ValueError(
            f"reasoning-gym's {source.dataset} has no question for split {split!r}; its questions "
            "are too few to be split: choose another config"
        )
    source.left_out[f"{source.dataset}, {split}"] = (
        f"there are {len(ids)} distinct questions, and {count} were asked for"
    )


def _split_of(key: str) -> str:
    split = share_of(key)
    return "train" if split == "ood" else split
