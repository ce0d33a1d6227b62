"""Threads that call an author's code: limits, errors, and what an interrupt leaves."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from bestofk.environments.author_calls import AuthorCall, AuthorThreads
from bestofk.environments.author_class import as_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.rewards.time_limit import CallTimeout
from bestofk.sampling import Sampling
from bestofk.types import Prompt
from environments.chat_models import Echo, Script


def both(function: Callable[[], Any]) -> Generator[AuthorCall, Any, tuple[Any, Any]]:
    """What a call says, or why it did not, and then another."""
    try:
        said = yield AuthorCall(function, {}, 0.2)
    except (CallTimeout, RuntimeError) as error:
        said = str(error)
    return said, (yield AuthorCall(lambda word: word, {"word": "on"}, 5.0))


def test_a_late_call_is_left_behind_and_holds_no_place() -> None:
    """What it returns in the end changes nothing, and neither does its thread."""
    release, returned = threading.Event(), threading.Event()

    def late() -> str:
        release.wait(20)
        returned.set()
        return "late"

    with closing(AuthorThreads(1)) as threads:
        found = threads.results([both(late), both(lambda: "soon"), both(late)])
        assert found == [
            ("no answer within 0.2 s", "on"), ("soon", "on"), ("no answer within 0.2 s", "on")
        ]  # fmt: skip
        release.set()
        assert returned.wait(5)
        many = threads.results(both(partial(int, i)) for i in range(300))
        assert many == [(i, "on") for i in range(300)]


def test_what_is_raised_is_told_or_comes_out_in_order() -> None:
    def raises(error: BaseException) -> Callable[[], None]:
        def function() -> None:
            raise error

        return function

    with closing(AuthorThreads(8)) as threads:
        assert threads.results([both(raises(GeneratorExit("left")))]) == [
            ("GeneratorExit: left", "on")
        ]
        with pytest.raises(KeyError, match="first"):
            threads.results(map(both, map(raises, [KeyError("first"), ValueError("second")])))


def test_an_interrupt_waits_for_no_environment_and_begins_none() -> None:
    heard = []

    class Slow(Echo):
        at_once = 2

        def __call__(self, text: str) -> str | None:
            heard.append(text)
            if len(heard) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
            return None

    source = TurnSampler(
        Script(lambda text: "So.<|im_end|>"), as_environment(Slow), TurnLimits(), model="MODEL"
    )
    began = time.monotonic()
    prompt = Prompt("p", ({"role": "user", "content": "Go."},), "t")
    with pytest.raises(KeyboardInterrupt):
        source.sample([prompt], seed=1, sampling=Sampling(samples_per_prompt=40))
    assert time.monotonic() - began < 3  # all of them take 6 s
    time.sleep(0.7)
    assert len(heard) <= 6
