"""Verifiers that users write: what breaks is found early, or told, and spoils nothing else."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bestofk.rewards import (
    TooManyUnscored,
    UnscoredGuard,
    from_function,
    prepare,
    refusals,
    verifier,
)
from bestofk.rewards import judge as judge_groups
from bestofk.rewards.base import RETRIES, BatchVerifier
from bestofk.sandbox import SandboxError
from bestofk.types import Group, Prompt, Trajectory, Verdict

PROMPT = Prompt("p", "say", "test", {}, reference="x")
FINE = Verdict(1.0, "correct")


class Returning(BatchVerifier):
    """Returns what it is told to."""

    name = "returning"

    def __init__(self, said: Any) -> None:
        self.said = said

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Any:
        return self.said


class Fragile(BatchVerifier):
    """Raises where a text says so, always or the first times it sees it."""

    name = "fragile"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        self.batches.append(list(texts))
        if "exit" in texts:
            sys.exit(0)
        if "broken" in texts or ("flaky" in texts and len(self.batches) < 2):
            raise OSError("no server")
        return [FINE] * len(texts)


@pytest.mark.parametrize("said", [[0.5], np.array([0.5]), [None], None, 1.0, "1", [True]])
def test_what_are_no_verdicts_is_an_error(said: Any) -> None:
    with pytest.raises(TypeError, match=r"returning returned .* at position 0.*from_function"):
        Returning(said)([PROMPT], ["x"])


@pytest.mark.parametrize("bad", ["broken", "exit"])
def test_a_pair_that_breaks_the_judge_is_unscored_and_spoils_no_other(bad: str) -> None:
    judge = Fragile()
    texts = ["a", "b", bad, "c", "d", "e", "f"]
    verdicts = judge([PROMPT] * 7, texts)
    assert [v.status == "unscored" for v in verdicts] == [t == bad for t in texts]
    assert all(v == FINE for v, t in zip(verdicts, texts, strict=True) if t != bad)
    assert judge.batches.count([bad]) == RETRIES + 1
    assert "fragile raised on sample p at " in verdicts[2].detail


def test_a_failure_that_passes_costs_no_verdict() -> None:
    assert Fragile()([PROMPT] * 4, ["a", "flaky", "b", "c"]) == [FINE] * 4


def test_a_machine_without_the_sandbox_ends_the_run() -> None:
    class NoSandbox(BatchVerifier):
        def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
            raise SandboxError("no sandbox of tier 2")

    with pytest.raises(SandboxError, match="tier 2"):
        NoSandbox()([PROMPT] * 2, ["a", "b"])


@pytest.mark.parametrize("count", [1, 3])
def test_a_plain_callable_that_miscounts_is_told(count: int) -> None:
    def judge(prompts: Any, texts: Any) -> list[Verdict]:
        return [FINE] * count

    group = Group(PROMPT, (Trajectory(text="a"), Trajectory(text="b")))
    with pytest.raises(RuntimeError, match=f"judge returned {count} verdicts for 2 completions"):
        judge_groups([group], judge)
    with pytest.raises(RuntimeError, match=f"judge returned {count} verdicts for 2"):
        refusals(judge, [PROMPT, Prompt("q", "", "t", {}, "x")])


def test_a_judge_that_exits_does_not_end_the_run() -> None:
    def judge(prompt: Prompt, completion: str) -> bool:
        if completion == "--help":
            sys.exit(0)  # as argparse does
        return True

    for threads in (1, 2):
        verdicts = from_function(judge, threads=threads)([PROMPT] * 2, ["--help", "x"])
        assert [v.status for v in verdicts] == ["unscored", "correct"]
    with pytest.raises(KeyboardInterrupt):
        from_function(_interrupted)([PROMPT], ["x"])


def _interrupted(prompt: Prompt, completion: str) -> bool:
    raise KeyboardInterrupt


async def waits_and_yields(prompt: Prompt, completion: str) -> AsyncIterator[bool]:
    yield True


def yields(prompt: Prompt, completion: str) -> Iterator[bool]:
    yield True


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (waits_and_yields, "yields; let it return"),
        (yields, "yields; let it return"),
        (math.pi, "cannot be called"),
        (None, "cannot be called"),
        (
            lambda prompt, text: True,
            r"<lambda>\(prompt, text\) cannot .* passed by name; write def",
        ),
        (lambda response, target: True, r"def <lambda>\(completion, answer\)"),
        (lambda prompt, completions: True, r"def <lambda>\(prompts, completions, \*\*columns\)"),
        (lambda *both: True, "passed by name"),
        (lambda **all: True, "passed by name"),
        (lambda completion, answer, /: True, "passed by name"),
        (math.hypot, "passed by name"),
        (Fragile, r"Fragile is a class of verifiers; make one"),
    ],
)
def test_what_cannot_judge_is_refused_before_a_run(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_function(function)


def test_a_path_may_name_a_function_or_a_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("of_the_user")
    module.judge, module.whole, module.pi = (lambda prompt, completion: 0.5), Fragile(), math.pi
    monkeypatch.setitem(sys.modules, "of_the_user", module)
    assert verifier("of_the_user:judge")([PROMPT], ["x"])[0].reward == 0.5
    assert verifier("of_the_user:whole") is module.whole
    assert prepare(verifier("of_the_user:whole"), [PROMPT]) == [PROMPT]
    with pytest.raises(ValueError, match="cannot be called"):
        verifier("of_the_user:pi")
    with pytest.raises(ValueError, match="fragile is a verifier already"):
        verifier("of_the_user:whole", threads=4)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("from_thread", [False, True])
def test_a_call_that_takes_too_long_is_named_and_spoils_no_other(
    threads: int, from_thread: bool
) -> None:
    stop, finished = threading.Event(), list[str]()

    def hangs(prompt: Prompt, completion: str) -> float:
        """Waits as a server that never answers would, loops, or is done."""
        if completion == "wait":
            stop.wait()
        while completion == "loop" and not stop.is_set():
            pass
        finished.append(completion)
        return 0.5

    judge = from_function(hangs, time_limit=1.0, threads=threads)
    prompts = [Prompt(f"sample-{i}", "say", "test", {}) for i in range(5)]
    verdicts: list[Verdict] = []

    def ask() -> None:
        verdicts.extend(judge(prompts, ["", "wait", "", "loop", ""]))

    if from_thread:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    else:
        ask()
    assert [v.status for v in verdicts] == ["partial", "unscored"] * 2 + ["partial"]
    assert verdicts[1].detail == "hangs timed out on sample sample-1: no answer within 1 s"
    assert finished == ["", "", ""]  # it waits for none of the others
    stop.set()


@pytest.mark.parametrize("batch", [False, True])
def test_a_retry_loop_does_not_swallow_the_time_limit(batch: bool) -> None:
    tries = 0

    def ask(completion: str) -> float:
        nonlocal tries
        for _ in range(100):
            tries += 1
            try:
                time.sleep(30)
            except Exception:
                continue  # as a client that asks its server again
        return 1.0

    def ask_all(completions: list[str]) -> list[float]:
        return list(map(ask, completions))

    (verdict,) = from_function(ask_all if batch else ask, time_limit=0.2)([PROMPT], ["x"])
    assert "no answer within 0.2 s" in verdict.detail
    assert tries == 1


def test_a_function_may_use_alarms_of_its_own_under_a_time_limit() -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    def judge(prompt: Prompt, completion: str) -> bool:
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            time.sleep(20)
        except Alarm:
            return True
        finally:
            signal.signal(signal.SIGALRM, before)
        return False

    assert from_function(judge, time_limit=10)([PROMPT], ["x"])[0].reward == 1.0


def test_a_thousand_calls_are_watched_by_one_thread() -> None:
    judge = from_function(lambda completion: 0.5, time_limit=60.0)
    judge([PROMPT], ["x"])
    before = threading.active_count()
    verdicts = judge([PROMPT] * 1000, ["x"] * 1000)
    assert {v.reward for v in verdicts} == {0.5}
    assert threading.active_count() == before


FORKED = """
import os, time
from bestofk.rewards import from_function
from bestofk.types import Prompt
prompt = Prompt("p", "", "t", {})
def wait(prompt, completion):
    return time.sleep(20 * (completion == "wait")) is None
judge = from_function(wait, time_limit=1.0)
assert judge([prompt], [""])[0].reward == 1.0
child = os.fork()
verdict = judge([prompt], ["wait"])[0]
if child == 0:
    os._exit(0 if verdict.status == "unscored" else 1)
print(verdict.status, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_the_time_limit_holds_in_a_forked_process() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["unscored", "0"], done.stderr


def test_an_exception_is_told_with_file_line_and_sample_and_is_counted() -> None:
    def careless(prompt: Prompt, completion: str) -> float:
        return float(completion)  # the line that is named

    judge = from_function(careless)
    prompts = [Prompt(f"sample-{i}", "say", "test", {}) for i in range(40)]
    verdicts = judge(prompts, ["0.5"] * 20 + ["half"] * 20)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "# the line that is named" in text)
    place = f"{__file__}:{line}: ValueError: could not convert string to float: 'half'"
    assert verdicts[20].detail == f"careless raised on sample sample-20 at {place}"
    guard = UnscoredGuard(share=0.1, window=100)
    with pytest.raises(TooManyUnscored) as stopped:
        guard.check(verdicts)
    assert f"20 times: careless raised at {place}" in str(stopped.value)
    assert "sample-39" in str(stopped.value)
