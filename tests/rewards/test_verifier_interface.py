"""The interface every verifier keeps: batch in, as many verdicts out; broken is never zero."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
from bestofk.rewards.base import BatchVerifier
from bestofk.types import Group, Prompt, Trajectory, Verdict

PROMPT = Prompt("p", "say", "test", {"expected": "7"}, reference="<answer>7</answer>")


def fixed(reward: float) -> BatchVerifier:
    return from_function(lambda completion: reward)


def test_bool_float_and_verdict_are_verdicts() -> None:
    said: dict[str, Any] = {"a": True, "b": 0.25, "c": 0, "d": Verdict(0.0, "timeout")}
    verdicts = from_function(lambda completion: said[completion])([PROMPT] * 4, list("abcd"))
    assert [v.reward for v in verdicts] == [1.0, 0.25, 0.0, 0.0]
    assert [v.status for v in verdicts] == ["correct", "partial", "incorrect", "timeout"]


@pytest.mark.parametrize("bad", [None, "1.0", math.inf, -math.inf, [1]])
def test_what_is_no_reward_is_unscored_not_zero(bad: Any) -> None:
    judge = from_function(lambda completion: bad if completion == "x" else 1.0)
    [right] = judge([PROMPT], ["y"])
    assert right.reward == 1.0
    [verdict] = judge([PROMPT], ["x"])  # a first value of this kind ends a run
    assert verdict.status == "unscored"
    assert math.isnan(verdict.reward)


def test_lengths_and_types_of_a_batch_are_checked() -> None:
    judge = fixed(1.0)
    with pytest.raises(ValueError, match="got 1 prompts and 2 completions"):
        judge([PROMPT], ["a", "b"])
    with pytest.raises(TypeError, match="int at position 1"):
        judge([PROMPT] * 2, ["a", 3])  # type: ignore[list-item]
    assert judge([], []) == []


def test_a_reply_without_text_is_the_models_failure() -> None:
    for name in ("countdown", "maze", "maths", "exact"):
        spec = {"numbers": [1], "target": 1, "operators": "+", "grid": ["SE"], "expected": "1"}
        prompt = Prompt("p", "", name, {**spec, "solution": {"Ava": "knight"}})
        assert verifier(name)([prompt], [None])[0].status == "unparsed"


def test_the_guard_stops_a_run_above_its_share_and_not_before() -> None:
    lost, fine = Verdict.unscored("disk full"), Verdict(1.0, "correct")
    guard = UnscoredGuard(share=0.01, window=1000)
    guard.check([fine] * 5000 + [lost] * 10 + [fine] * 990)
    assert (guard.unscored, guard.total) == (10, 6000)
    guard.check([fine] * 10)
    with pytest.raises(TooManyUnscored, match=r"11 of the last 1000.*disk full"):
        guard.check([lost] * 11)
    with pytest.raises(TooManyUnscored):  # a burst within one batch, long over at its end
        UnscoredGuard(share=0.01).check([lost] * 11 + [fine] * 5000)
    with pytest.raises(TooManyUnscored):
        UnscoredGuard(share=0.0).check([lost])
    UnscoredGuard(share=0.01).check([lost] * 10)  # ten at the very start are still within 1 %
    with pytest.raises(TooManyUnscored):
        UnscoredGuard(share=0.01).check([lost] * 11)


def test_prepare_refuses_by_id() -> None:
    judge = verifier("exact")
    good = [Prompt(f"g{i}", "", "t", {"expected": "7"}, PROMPT.reference) for i in range(3)]
    wrong = Prompt("wrong", "", "t", {"expected": "8"}, PROMPT.reference)
    bare = Prompt("bare", "", "t", {"expected": "8"})
    broken = Prompt("broken", "", "t", {}, PROMPT.reference)
    assert prepare(judge, good) == good
    assert set(refusals(judge, [*good, wrong, bare, broken])) == {"wrong", "bare", "broken"}
    with pytest.raises(ValueError, match=r"3 of 6.*wrong.*bare.*broken"):
        prepare(judge, [*good, wrong, bare, broken])
    assert prepare(judge, [wrong, *good, bare], drop=True) == good
    with pytest.raises(ValueError, match="occurs twice"):
        prepare(judge, [good[0], good[0]])
    with pytest.raises(ValueError, match="no prompt is left"):
        prepare(judge, [bare], drop=True)
    no_tests = from_function(lambda completion: Verdict(1.0, "correct", total=0))
    assert refusals(no_tests, good[:1]) == {"g0": "no tests"}


def test_groups_are_scored_as_one_batch_in_order() -> None:
    sizes: list[int] = []

    class Counting(BatchVerifier):
        def judge_batch(self, prompts: Any, texts: Any) -> list[Verdict]:
            sizes.append(len(texts))
            return [Verdict(float(t) / 10, "partial") for t in texts]

    groups = [
        Group(PROMPT, tuple(Trajectory(text=str(i)) for i in range(a, b)))
        for a, b in ((1, 4), (4, 6))
    ]
    rewards = [[v.reward for v in row] for row in judge_groups(groups, Counting())]
    assert rewards == [[0.1, 0.2, 0.3], [0.4, 0.5]]
    assert sizes == [5]


@pytest.fixture(scope="module")
def mixed() -> tuple[BatchVerifier, list[Prompt], list[str], list[Verdict]]:
    """A batch of maths answers of all sorts, and its verdicts."""
    judge = verifier("maths", workers=2)
    rng = random.Random(3)
    golds = ["7", r"\frac{1}{2}", "x^2+2x+1", r"\sqrt{8}", "(1,2)"]
    texts = ["\\boxed{7}", "#### 0.5", "\\boxed{(x+1)^2}", "\\boxed{2\\sqrt{2}}", "no", "\\boxed{"]
    prompts, said = [], []
    for i in range(24):
        prompts.append(Prompt(str(i), "", "t", {"expected": rng.choice(golds)}))
        said.append(rng.choice(texts))
    return judge, prompts, said, judge(prompts, said)


def test_shuffled_and_split_batches_are_judged_alike(mixed: Any) -> None:
    judge, prompts, texts, verdicts = mixed
    assert {v.status for v in verdicts} == {"correct", "incorrect", "unparsed"}
    order = random.Random(1).sample(range(len(texts)), len(texts))
    shuffled = judge([prompts[i] for i in order], [texts[i] for i in order])
    assert shuffled == [verdicts[i] for i in order]
    pieces = [judge(prompts[i : i + 7], texts[i : i + 7]) for i in range(0, len(texts), 7)]
    assert [v for piece in pieces for v in piece] == verdicts


def test_threads_and_asyncio_give_the_same(mixed: Any) -> None:
    judge, prompts, texts, verdicts = mixed
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: judge(prompts, texts), range(4))) == [verdicts] * 4

    async def twice() -> list[list[Verdict]]:
        calls = [asyncio.to_thread(judge, prompts, texts) for _ in range(2)]
        return list(await asyncio.gather(*calls))

    assert asyncio.run(twice()) == [verdicts] * 2


def _questions(first: int) -> tuple[list[Prompt], list[str]]:
    """Four that need algebra, right and wrong in turn."""
    numbers = range(first, first + 4)
    prompts = [Prompt(str(n), "", "t", {"expected": rf"{n}\sqrt{{2}}"}) for n in numbers]
    return prompts, [rf"\boxed{{\sqrt{{{2 * n * n + n % 2}}}}}" for n in numbers]


def _judge_in_child(judge: BatchVerifier, queue: Any) -> None:
    queue.put([v.reward for v in judge(*_questions(1000))])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork")  # libraries with threads that other tests loaded
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_verifier_works_in_a_child_process_and_in_the_parent_at_once(
    mixed: Any, method: str
) -> None:
    judge = mixed[0]
    judge(*_questions(500))  # workers are up, and a forked child inherits the pipes to them
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_judge_in_child, args=(judge, queue))
    child.start()
    first = 2000 if method == "fork" else 3000
    assert [v.reward for v in judge(*_questions(first))] == [1.0, 0.0] * 2
    assert queue.get(timeout=900) == [1.0, 0.0] * 2
    child.join(900)
    assert child.exitcode == 0
    assert [v.reward for v in judge(*_questions(first + 50))] == [1.0, 0.0] * 2


def test_threads_of_a_function_verifier_overlap_and_keep_order() -> None:
    barrier = threading.Barrier(3, timeout=900)  # passes only if three calls run at once

    def judge(completion: str) -> float:
        barrier.wait()
        return float(completion)

    texts = ["0.1", "0.2", "0.3"]
    assert [v.reward for v in from_function(judge, threads=3)([PROMPT] * 3, texts)] == [
        0.1,
        0.2,
        0.3,
    ]


def test_options_of_every_verifier_are_checked() -> None:
    check: list[Callable[[], object]] = [
        lambda: verifier("countdown", reward="closenes"),
        lambda: verifier("countdown", scale=0),
        lambda: verifier("countdown", scale=math.inf),
        lambda: verifier("countdown", scale=math.nan),
        lambda: verifier("maze", reward="exakt"),
        lambda: verifier("maths", workers=-1),
        lambda: verifier("gym", dataset="syllogism"),
        lambda: from_function(lambda completion: 1.0, threads=0),
        lambda: from_function(lambda completion: 1.0, sandbox=True),
    ]
    for build in check:
        with pytest.raises(ValueError, match=r"got|did you mean|unknown|top level"):
            build()
