"""Async reward functions: values, concurrency, one event loop, limits, failures, forks."""

from __future__ import annotations

import asyncio
import functools
import importlib
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards import PairVerifier, from_function, gated, weighted
from bestofk.rewards.time_limit import CallTimeout, limited_call
from bestofk.types import Prompt

PROMPT = Prompt("sum", "2 + 2 = ?", "dataset", {"answer": 4})
PROMPTS = [Prompt(f"p{i}", "say", "test", {"answer": i}) for i in range(8)]
TEXTS = [str(i) for i in range(8)]


async def reward(completion: str, answer: int) -> float:
    await asyncio.sleep(0)
    return 1.0 if completion == str(answer) else -1.0


class Client:
    """An async callable object, as one that holds a connection."""

    async def __call__(self, prompt: Prompt, completion: str) -> bool:
        await asyncio.sleep(0)
        return completion == str(prompt.spec["answer"])


async def of_batch(completions: list[str], answer: list[int], **_: Any) -> list[float | None]:
    await asyncio.sleep(0)
    return [None if a == 3 else float(text == str(a)) for a, text in zip(answer, completions)]


def returns_a_coroutine(completion: str, answer: int) -> Any:
    return reward(completion, answer)


@pytest.mark.parametrize("threads", [None, 1, 3])
@pytest.mark.parametrize("from_thread", [False, True])
@pytest.mark.parametrize(
    "function",
    [reward, Client(), functools.partial(reward, answer=4), returns_a_coroutine],
)
def test_an_async_function_judges_like_one_that_is_not(
    function: Any, from_thread: bool, threads: int | None
) -> None:
    verdicts: list[Any] = []

    def ask() -> None:
        verdicts.extend(from_function(function, threads=threads)([PROMPT] * 3, ["4", "5", "4"]))

    if from_thread:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    else:
        ask()
    assert [v.status for v in verdicts] == ["correct", "incorrect", "correct"]


def test_an_async_batch_function_and_rewards_made_of_it() -> None:
    judge = from_function(of_batch)
    texts = ["0", "x", "2", "3"]
    assert [v.status for v in judge(PROMPTS[:4], texts)] == [
        "correct", "incorrect", "correct", "unscored",
    ]  # fmt: skip
    both = gated(from_function(Client()), weighted((1.0, judge), (1.0, from_function(reward))))
    assert [v.reward for v in both(PROMPTS[:3], texts[:3])] == [1.0, 0.0, 1.0]
    pair: Any = PairVerifier(Client())  # type: ignore[arg-type]
    assert [v.reward for v in pair([PROMPT] * 2, ["4", "5"])] == [1.0, 0.0]


@pytest.mark.parametrize(("threads", "most"), [(1, 1), (3, 3), (None, 8)])
def test_threads_is_how_many_calls_are_open_at_once(threads: int | None, most: int) -> None:
    """Each call waits until as many others as may run beside it have begun."""
    open_now, largest = 0, 0

    async def waits(completion: str) -> float:
        nonlocal open_now, largest
        open_now += 1
        largest = max(largest, open_now)
        until = time.monotonic() + 30
        while largest < most and time.monotonic() < until:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # a further call would begin now
        open_now -= 1
        return float(completion)

    verdicts = from_function(waits, threads=threads)(PROMPTS, TEXTS)
    assert [v.reward for v in verdicts] == list(map(float, TEXTS))
    assert largest == most


def test_all_calls_share_one_event_loop_so_a_client_and_a_lock_can_be_shared() -> None:
    lock, loops, inside = asyncio.Lock(), set(), 0

    async def asks(completion: str) -> float:
        nonlocal inside
        async with lock:  # bound to the loop of its first waiter
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.001)
            inside -= 1
        loops.add(asyncio.get_running_loop())
        return 1.0

    for judge in (from_function(asks), from_function(asks, threads=2)):
        assert [v.reward for v in judge(PROMPTS, TEXTS)] == [1.0] * 8
    assert len(loops) == 1


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("from_thread", [False, True])
def test_an_async_call_that_takes_too_long_is_cancelled_and_spoils_no_other(
    threads: int, from_thread: bool
) -> None:
    cancelled = threading.Event()

    async def hangs(completion: str) -> float:
        try:
            await asyncio.sleep(600 if completion == "wait" else 0)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 0.5

    judge = from_function(hangs, time_limit=0.5, threads=threads)
    verdicts: list[Any] = []

    def ask() -> None:
        verdicts.extend(judge(PROMPTS[:3], ["", "wait", ""]))

    if from_thread:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    else:
        ask()
    assert [v.status for v in verdicts] == ["partial", "unscored", "partial"]
    assert verdicts[1].detail == "hangs timed out on sample p1: no answer within 0.5 s"
    assert cancelled.wait(10)


def test_a_batch_that_waits_too_long_is_unscored() -> None:
    async def whole(completions: list[str]) -> list[float]:
        await asyncio.sleep(600 * completions.count("slow"))
        return [1.0] * len(completions)

    judge = from_function(whole, time_limit=0.3)
    verdicts = judge([PROMPT], ["slow"]) + judge([PROMPT], ["fine"])
    assert [v.status for v in verdicts] == ["unscored", "correct"]
    assert "no answer within 0.3 s" in verdicts[0].detail


def test_a_call_that_blocks_the_event_loop_is_named_and_its_siblings_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bestofk.rewards.time_limit._PATIENCE", 0.2)
    over, begun = threading.Event(), threading.Event()

    async def blocks(completion: str) -> float:
        if completion == "block" and not over.is_set():
            begun.set()
            over.wait(60)
        while completion != "block" and not begun.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        return 1.0

    verdicts = from_function(blocks, time_limit=1.0, threads=3)(PROMPTS[:3], ["a", "block", "c"])
    over.set()
    assert [v.status for v in verdicts] == ["correct", "unscored", "correct"]
    assert "it blocks the event loop: await what it waits for" in verdicts[1].detail


def test_what_an_async_function_raises_is_repeated_and_then_unscored_with_its_place() -> None:
    calls = []

    async def breaks(completion: str) -> float:
        calls.append(completion)
        await asyncio.sleep(0)
        if completion == "exit":
            sys.exit(1)
        if completion == "cancel":
            raise asyncio.CancelledError
        if completion == "once" and calls.count("once") == 1:
            raise TimeoutError("the first time")
        if completion == "key":
            raise KeyError("a bug")
        return 1.0

    texts = ["exit", "cancel", "once", "key", "fine"]
    verdicts = from_function(breaks)(PROMPTS[:5], texts)
    assert [v.status for v in verdicts] == ["unscored"] * 2 + ["correct", "unscored", "correct"]
    assert [calls.count(text) for text in texts] == [3, 3, 2, 3, 1]
    assert f"breaks raised on sample p3 at {__file__}:" in verdicts[3].detail
    assert "KeyError: 'a bug'" in verdicts[3].detail


def test_an_interrupt_ends_the_run_and_not_the_event_loop() -> None:
    async def interrupted(completion: str) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_function(interrupted)([PROMPT], ["x"])
    assert from_function(reward)([PROMPT], ["4"])[0].reward == 1.0


FORKS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_async_rewards import PROMPT, from_function, reward
judge = from_function(reward)
assert judge([PROMPT], ["4"])[0].reward == 1.0
child = os.fork()
if not child:
    try:
        os._exit(0 if judge([PROMPT] * 2, ["4", "5"])[0].reward == 1.0 else 3)
    finally:
        os._exit(4)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_an_event_loop_of_its_own() -> None:
    """In a process of its own: other tests may have loaded libraries with threads here."""
    command = [sys.executable, "-c", FORKS, str(Path(__file__).parent)]
    assert subprocess.run(command, timeout=120).returncode == 0


def test_an_async_function_is_judged_from_asyncio_and_in_the_sandbox() -> None:
    verdicts = asyncio.run(asyncio.to_thread(from_function(reward), [PROMPT] * 2, ["4", "5"]))
    assert [v.reward for v in verdicts] == [1.0, -1.0]
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    try:
        module: Any = importlib.import_module("judges_in_a_file")
        with from_function(module.waiting, sandbox=True) as judge:
            made = judge([Prompt("p", "", "t", {"scale": 4})] * 2, ["2", "4"])
    finally:
        sys.path.remove(folder)
        sys.modules.pop("judges_in_a_file", None)
    assert [v.reward for v in made] == [0.5, 1.0]


def test_calls_in_threads_share_one_and_a_late_call_holds_no_other_up() -> None:
    """Time-outs of the function's own are its errors, not ours."""

    def calls() -> list[Any]:
        threads = {limited_call(threading.get_ident, 1.0, "ident") for _ in range(50)}
        began = time.monotonic()
        with pytest.raises(CallTimeout, match=r"no answer within 0\.05 s"):
            limited_call(time.sleep, 0.05, "sleep", 0.5)
        other = limited_call(threading.get_ident, 1.0, "ident")
        assert time.monotonic() - began < 0.5
        with pytest.raises(TimeoutError, match="mine"):
            limited_call(raises, 1.0, "raises")
        return [threads, other]

    def raises() -> None:
        raise TimeoutError("mine")

    with ThreadPoolExecutor(1) as pool:
        threads, other = pool.submit(calls).result()
    assert len(threads) == 1
    assert other not in threads
