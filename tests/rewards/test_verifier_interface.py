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
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards import (
    TooManyUnscored,
    UnscoredGuard,
    combined,
    from_function,
    gated,
    prepare,
    refusals,
    score,
    verifier,
    weighted,
)
from bestofk.rewards.base import RETRIES, BatchVerifier
from bestofk.types import Completion, Group, Prompt, Verdict

PROMPT = Prompt("p", "say", "test", {"expected": "7"}, reference="<answer>7</answer>")


def fixed(reward: float) -> BatchVerifier:
    return from_function(lambda prompt, text: reward)


def test_bool_float_and_verdict_are_verdicts() -> None:
    said: dict[str, Any] = {"a": True, "b": 0.25, "c": 0, "d": Verdict(0.0, "timeout")}
    verdicts = from_function(lambda prompt, text: said[text])([PROMPT] * 4, list("abcd"))
    assert [v.reward for v in verdicts] == [1.0, 0.25, 0.0, 0.0]
    assert [v.status for v in verdicts] == ["correct", "partial", "incorrect", "timeout"]


@pytest.mark.parametrize("bad", [None, "1.0", math.inf, -math.inf, [1]])
def test_what_is_no_reward_is_unscored_not_zero(bad: Any) -> None:
    (verdict,) = from_function(lambda prompt, text: bad)([PROMPT], ["x"])
    assert verdict.status == "unscored"
    assert math.isnan(verdict.reward)


def test_a_judge_that_raises_is_tried_again_and_then_unscored() -> None:
    calls: list[str] = []

    def judge(prompt: Prompt, text: str) -> bool:
        calls.append(text)
        if text == "broken" or (text == "flaky" and calls.count("flaky") <= RETRIES):
            raise OSError("no worker")
        return True

    verdicts = from_function(judge)([PROMPT] * 3, ["broken", "fine", "flaky"])
    assert [v.status for v in verdicts] == ["unscored", "correct", "correct"]
    assert calls.count("broken") == RETRIES + 1
    assert calls.count("flaky") == RETRIES + 1
    assert "no worker" in verdicts[0].detail
    assert "p" in verdicts[0].detail


def test_lengths_and_types_of_a_batch_are_checked() -> None:
    judge = fixed(1.0)
    with pytest.raises(ValueError, match="got 1 prompts and 2 completions"):
        judge([PROMPT], ["a", "b"])
    with pytest.raises(TypeError, match="int at position 1"):
        judge([PROMPT] * 2, ["a", 3])  # type: ignore[list-item]
    assert judge([], []) == []


def test_a_reply_without_text_is_the_models_failure() -> None:
    for name in ("countdown", "maze", "maths", "exact", "knights"):
        spec = {"numbers": [1], "target": 1, "operators": "+", "grid": ["SE"], "expected": "1"}
        prompt = Prompt("p", "", name, {**spec, "solution": {"Ava": "knight"}})
        assert verifier(name)([prompt], [None])[0].status == "unparsed"


def test_a_verifier_that_miscounts_is_an_error() -> None:
    class Short(BatchVerifier):
        def judge_batch(self, prompts: Any, texts: Any) -> list[Verdict]:
            return []

    with pytest.raises(RuntimeError, match="0 verdicts for 1"):
        Short()([PROMPT], ["x"])


REWARD = st.one_of(st.just(math.nan), st.floats(0, 1), st.sampled_from([0.0, 1.0]))


@given(st.lists(st.tuples(st.floats(0.01, 100), REWARD), min_size=1, max_size=5))
def test_a_weighted_reward_is_nan_exactly_when_a_part_is(parts: list[tuple[float, float]]) -> None:
    (verdict,) = weighted(*((w, fixed(r)) for w, r in parts))([PROMPT], ["x"])
    rewards = [r for _, r in parts]
    if any(map(math.isnan, rewards)):
        assert verdict.status == "unscored"
        assert math.isnan(verdict.reward)
    else:
        mean = math.fsum(w * r for w, r in parts) / math.fsum(w for w, _ in parts)
        assert verdict.reward == pytest.approx(mean, abs=1e-9)
        assert (verdict.reward == 1.0) == all(r == 1.0 for r in rewards)


@given(REWARD, REWARD)
def test_a_gate_lets_through_or_gives_zero_and_keeps_nan(first: float, second: float) -> None:
    (verdict,) = gated(fixed(first), fixed(second))([PROMPT], ["x"])
    if math.isnan(first):
        assert math.isnan(verdict.reward)
    elif first == 1.0:
        assert verdict.reward == second or math.isnan(verdict.reward) == math.isnan(second)
    else:
        assert verdict.reward == 0.0


def test_only_what_passes_the_gate_is_judged_further() -> None:
    seen: list[str] = []

    def judge(prompt: Prompt, text: str) -> bool:
        seen.append(text)
        return True

    gate = from_function(lambda prompt, text: text.startswith("<"))
    rewards = [v.reward for v in gated(gate, from_function(judge))([PROMPT] * 3, ["<a", "b", "<c"])]
    assert rewards == [1.0, 0.0, 1.0]
    assert seen == ["<a", "<c"]


def test_a_reward_declared_as_in_a_recipe() -> None:
    reward = combined(
        [
            {"verifier": "format", "gate": True, "tags": ["think", "answer"]},
            {"verifier": "exact", "weight": 3},
            {"verifier": "exact", "weight": 1, "ignore_case": True},
        ]
    )
    prompt = Prompt("p", "", "test", {"expected": "Yes"})
    texts = ["<think>a</think><answer>Yes</answer>", "<think></think><answer>yes</answer>", "Yes"]
    assert [v.reward for v in reward([prompt] * 3, texts)] == [1.0, 0.25, 0.0]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"verifier": "exakt"}], "did you mean 'exact'"),
        ([{"verifier": "exact", "ignore_cas": True}], "did you mean 'ignore_case'"),
        ([{"weight": 1}], "names its verifier"),
        ([{"verifier": "exact", "gate": True}], "only gates"),
        ([{"verifier": "exact", "gate": True, "weight": 1}], "states both"),
        ([{"verifier": "exact"}, {"verifier": "maze", "weight": 0}], "positive"),
    ],
)
def test_a_mistyped_reward_says_what_to_type(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        combined(parts)


def test_a_judging_function_is_found_by_its_path() -> None:
    judge = verifier("operator:contains")  # any importable function of two arguments would do
    assert judge([PROMPT], ["x"])[0].status == "unscored"  # no prompt contains: broken, not wrong
    with pytest.raises(ValueError, match="cannot load verifier"):
        verifier("os.path:exsts")


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
    no_tests = from_function(lambda prompt, text: Verdict(1.0, "correct", total=0))
    assert refusals(no_tests, good[:1]) == {"g0": "no tests"}


def test_groups_are_scored_as_one_batch_in_order() -> None:
    sizes: list[int] = []

    class Counting(BatchVerifier):
        def judge_batch(self, prompts: Any, texts: Any) -> list[Verdict]:
            sizes.append(len(texts))
            return [Verdict(float(t) / 10, "partial") for t in texts]

    groups = [
        Group(PROMPT, tuple(Completion(str(i)) for i in range(a, b))) for a, b in ((1, 4), (4, 6))
    ]
    rewards = [[v.reward for v in row] for row in score(groups, Counting())]
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
    for i in range(40):
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
        return await asyncio.gather(judge.score(prompts, texts), judge.score(prompts, texts))

    assert asyncio.run(twice()) == [verdicts] * 2


def _questions(first: int) -> tuple[list[Prompt], list[str]]:
    """Sixteen that need algebra, right and wrong in turn."""
    numbers = range(first, first + 16)
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
    assert [v.reward for v in judge(*_questions(first))] == [1.0, 0.0] * 8
    assert queue.get(timeout=900) == [1.0, 0.0] * 8
    child.join(900)
    assert child.exitcode == 0
    assert [v.reward for v in judge(*_questions(first + 50))] == [1.0, 0.0] * 8


def test_threads_of_a_function_verifier_overlap_and_keep_order() -> None:
    barrier = threading.Barrier(3, timeout=900)  # passes only if three calls run at once

    def judge(prompt: Prompt, text: str) -> float:
        barrier.wait()
        return float(text)

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
        lambda: verifier("sudoku", reward="part"),
        lambda: verifier("knights", rewards="exact"),
        lambda: verifier("maths", workers=-1),
        lambda: verifier("gym", dataset="syllogism"),
        lambda: from_function(lambda prompt, text: 1.0, threads=0),
        lambda: from_function(lambda prompt, text: 1.0, sandbox=True),
    ]
    for build in check:
        with pytest.raises(ValueError, match=r"got|did you mean|unknown|top level"):
            build()
