"""Maths verdicts that need algebra, in processes that adversarial answers may kill."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards import verifier
from bestofk.rewards.maths.judge_maths import MathsVerifier
from bestofk.types import Prompt, Verdict

CPU_SECONDS = 2.0  # cores shared with others make algebra cost twice its CPU time


@pytest.fixture(scope="module")
def maths() -> Iterator[MathsVerifier]:
    judge = verifier("maths", workers=2, cpu_seconds=10.0)
    assert isinstance(judge, MathsVerifier)
    yield judge
    judge.close()


def ask(judge: MathsVerifier, gold: str, answer: str) -> Verdict:
    return judge([Prompt("p", "", "t", {"expected": gold})], [f"\\boxed{{{answer}}}"])[0]


def nested(start: str, step: str, times: int) -> str:
    for _ in range(times):
        start = step.format(start)
    return start


FRACTION = nested("1", r"1+\frac{{1}}{{{}}}", 15)
MATRIX = r"\begin{{pmatrix}}{}&{}\\{}&{}\end{{pmatrix}}"
FIBONACCI = (573147844013817084101, *[354224848179261915075] * 2, 218922995834555169026)
# Answers that took seconds or never came to an end: expected, right, wrong.
HEAVY = [
    ("10^{2005}-1", "(10^{401}-1)" + "(" + "+".join(f"10^{{{401 * n}}}" for n in range(5)) + ")",
     "10^{2005}"),
    ("2^{2019}", r"\sum_{k=0}^{2019}\binom{2019}{k}", r"\sum_{k=1}^{2019}\binom{2019}{k}"),
    (r"\binom{2020}{1010}", r"\frac{2020!}{1010!^2}", r"\frac{2020!}{1010!}"),
    (r"1-\frac{1}{2024!}", r"\sum_{k=1}^{2023}\frac{k}{(k+1)!}",
     r"\sum_{k=1}^{2022}\frac{k}{(k+1)!}"),
    (r"\frac{9999}{10000}", r"\sum_{k=1}^{9999}\frac{1}{k(k+1)}",
     r"\sum_{k=1}^{9998}\frac{1}{k(k+1)}"),
    (r"\frac{1597}{987}", FRACTION, f"{FRACTION}+1"),
    ("3", r"\log_2 3\cdot\log_3 4\cdot\log_4 5\cdot\log_5 6\cdot\log_6 7\cdot\log_7 8",
     r"\log_2 3\cdot\log_3 4\cdot\log_4 5\cdot\log_5 6\cdot\log_6 7\cdot\log_7 9"),
    (r"\frac{89}{2}", r"\sum_{k=1}^{89}\sin^2 k^\circ", r"\sum_{k=1}^{88}\sin^2 k^\circ"),
    (MATRIX.format(*FIBONACCI), MATRIX.format(1, 1, 1, 0) + "^{100}",
     MATRIX.format(1, 1, 1, 0) + "^{99}"),
    (r"\left[\frac{1}{\sqrt{2}},\sqrt[3]{2+\sqrt{5}}\right]",
     r"[\frac{\sqrt{2}}{2},\frac{1+\sqrt{5}}{2}]",
     r"[\frac{\sqrt{2}}{2},\frac{1+\sqrt{5}}{2})"),
    (r"\sqrt{\sqrt[3]{5}-\sqrt[3]{4}}", r"\frac{\sqrt[3]{2}+\sqrt[3]{20}-\sqrt[3]{25}}{3}",
     r"\frac{\sqrt[3]{2}+\sqrt[3]{20}-\sqrt[3]{24}}{3}"),
]  # fmt: skip

EQUAL = [
    (r"4\sqrt{2}", r"4\sqrt(2)"),
    (r"\frac{1}{2004!}", r"\frac{2005}{2005!}"),
    (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
    ("0", r"\sin(\pi)"),
    ("2i", "(1+i)^2"),
    ("-1", r"e^{i\pi}"),
    (r"1+\sqrt{3}, 1-\sqrt{3}", r"1 \pm \sqrt{3}"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty)\cup(-\infty,2)"),
    ("1", "((((1))))"),
    ("y=2x+1", "2x+1"),
    *[(gold, answer) for gold, answer, _ in HEAVY],
]
DIFFERENT = [
    *[(gold, answer) for gold, _, answer in HEAVY],
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    ("4", r"4\sqrt(2)"),
    ("x", "|x|"),
    ("x+1", "x+1+0.0001"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty, 2] \cup (3, \infty)"),
    (r"\sqrt{2}", r"\sqrt{2} \text{ or } \sqrt{3}"),
    ("1", r"\infty/\infty"),
    ("1", r"0/0"),
    ("5", r"5 \approx 6"),
    ("x+1", r"x+1 \\ y"),
    ("x>3", "x>3_2"),
    ("x>3", r"x>3 \text{ or } x<1"),
    (r"\sqrt{100}", "1'0"),
    ("5", r"6 = 5 = 6"),
    ("5", r"5 \ne 6"),
    ("5", r"5 < 6"),
]


def slow_where_heavy(pairs: list[tuple[str, str]]) -> list[Any]:
    """Two of the heavy ones take seconds of algebra."""
    heavy = {gold for gold, *_ in HEAVY[6:8]}
    return [
        pytest.param(*pair, marks=pytest.mark.slow) if pair[0] in heavy else pair for pair in pairs
    ]


@pytest.mark.parametrize(("gold", "answer"), slow_where_heavy(EQUAL))
def test_equal_answers_score_one(maths: MathsVerifier, gold: str, answer: str) -> None:
    assert ask(maths, gold, answer).status == "correct"


@pytest.mark.parametrize(("gold", "answer"), slow_where_heavy(DIFFERENT))
def test_different_answers_score_zero_with_a_status(
    maths: MathsVerifier, gold: str, answer: str
) -> None:
    verdict = ask(maths, gold, answer)
    assert verdict.reward == 0.0
    assert verdict.status in ("incorrect", "unparsed", "crashed")


def test_an_answer_that_is_not_worked_out_says_so(maths: MathsVerifier) -> None:
    verdict = ask(maths, r"\frac{1}{2}", r"\prod_{n=2}^{\infty}(1-\frac{1}{n^2})")
    assert (verdict.reward, verdict.status) == (0.0, "unparsed")
    assert "not worked out" in verdict.detail


def test_what_the_parser_drops_in_silence_is_noticed() -> None:
    import sympy

    from bestofk.rewards.maths.algebra_worker import _is_read_whole, _parse

    for text in (r"5 \approx 6", "5_8"):
        assert _parse(text) == sympy.Integer(5)
        assert not _is_read_whole(text, _parse(text))
    for text in ("5", r"\frac{1}{2}", "x^2+3x+1", r"\sqrt[3]{2}", r"\log_2 3"):
        assert _is_read_whole(text, _parse(text))


ADVERSARIAL = [
    "(10^8)!",
    "10^8!",
    "9^{9^{9^{9}}}",
    "2^{2^{2^{2^{2^{2^{2}}}}}}",
    "2^{10^9}",
    "((10^{10})!)!",
    "(" * 200 + "1" + ")" * 200,
    "(" * 18 + "x" + ")" * 18,
    "\\sqrt{" * 19 + "2" + "}" * 19,
    "\\frac{1}{" * 19 + "2" + "}" * 19,
    r"\int_0^\infty x^{x^x} dx",
    r"\sum_{n=1}^{1000000000} \frac{1}{n!}",
    r"\binom{10^9}{5\cdot 10^8}",
    "x+" * 400 + "x",
    "(x+1)^{100000}",
    "__import__('os').system('touch /tmp/never')",
    "exec(open('/etc/passwd').read())",
    r"\input{/etc/passwd}",
    "\x00",
    "\ud800",
    "٣",
    "{" * 50,
    "nan",
    "\\" * 500,
]


QUICK = [
    "(10^8)!",
    "(" * 200 + "1" + ")" * 200,
    "exec(open('x').read())",
    "\ud800",
]


@pytest.mark.parametrize(
    "hostile", [QUICK, pytest.param(ADVERSARIAL, marks=pytest.mark.slow)], ids=["quick", "all"]
)
def test_adversarial_answers_score_zero_and_harm_no_neighbour(hostile: list[str]) -> None:
    """All of them at once, each between two good answers; every one is the model's fault."""
    maths = verifier("maths", workers=2, cpu_seconds=CPU_SECONDS)
    prompt = Prompt("p", "", "t", {"expected": r"\sqrt{18}"})
    texts = []
    for i, bad in enumerate(hostile):
        texts += [f"\\boxed{{{i + 1}\\sqrt{{18}}/{i + 1}}}", f"\\boxed{{{bad}}}"]
    before = os.times()
    verdicts = maths([prompt] * len(texts), texts)
    assert all(v.status == "correct" for v in verdicts[::2])
    assert all(v.reward == 0.0 for v in verdicts[1::2]), [v.status for v in verdicts[1::2]]
    assert "timeout" in {v.status for v in verdicts[1::2]}
    spent = os.times()
    ours = spent.user + spent.system - before.user - before.system
    assert ours < 0.5 * CPU_SECONDS * len(hostile)  # the work is done elsewhere
    maths.close()
    ended = os.times().children_user - before.children_user
    assert ended < (CPU_SECONDS + 3.0) * len(hostile)  # three seconds to start a fresh one


def test_algebra_works_from_a_thread(maths: MathsVerifier) -> None:
    seen: list[Verdict] = []
    thread = threading.Thread(target=lambda: seen.append(ask(maths, r"\sqrt{50}", r"5\sqrt{2}")))
    thread.start()
    thread.join(900)
    assert [v.status for v in seen] == ["correct"]


def children() -> set[int]:
    """By their parent's id: `task/*/children` misses those whose thread is about to end."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            after_name = (process / "stat").read_text().rpartition(")")[2].split()
            found |= {int(process.name)} if int(after_name[1]) == os.getpid() else set()
    return found


def test_a_worker_killed_in_the_middle_is_replaced_and_the_verdict_stands() -> None:
    judge = verifier("maths", workers=1, cpu_seconds=60.0)
    assert isinstance(judge, MathsVerifier)
    before = children()
    assert ask(judge, r"\sqrt{8}", r"2\sqrt{2}").reward == 1.0
    (worker,) = children() - before
    os.kill(worker, signal.SIGKILL)
    assert ask(judge, r"\sqrt{12}", r"2\sqrt{3}").reward == 1.0
    (second,) = children() - before
    os.kill(second, signal.SIGSTOP)  # it does not answer before it is killed
    killer = threading.Timer(0.3, os.kill, (second, signal.SIGKILL))
    killer.start()
    assert ask(judge, r"\sqrt{20}", r"2\sqrt{5}").reward == 1.0
    killer.join()
    assert second not in children()
    judge.close()
    assert not children() - before


def test_workers_that_are_always_killed_leave_the_pair_unscored() -> None:
    judge = verifier("maths", workers=1, cpu_seconds=60.0)
    assert isinstance(judge, MathsVerifier)
    before, stop = children(), threading.Event()

    def hunt() -> None:
        while not stop.wait(0.02):
            for child in children() - before:
                os.kill(child, signal.SIGKILL)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        verdicts = judge(
            [Prompt("p", "", "t", {"expected": r"\sqrt{8}"})] * 2, [r"\boxed{2\sqrt{2}}", "none"]
        )
    finally:
        stop.set()
        hunter.join()
    assert [v.status for v in verdicts] == ["unscored", "unparsed"]
    assert math.isnan(verdicts[0].reward)
    assert ask(judge, r"\sqrt{8}", r"2\sqrt{2}").reward == 1.0  # and recovers
    judge.close()


def test_closing_ends_every_worker_and_a_closed_verifier_starts_again() -> None:
    before = children()
    judge = verifier("maths", workers=2)
    assert isinstance(judge, MathsVerifier)
    assert ask(judge, r"\sqrt{8}", r"2\sqrt{2}").reward == 1.0
    assert children() - before
    judge.close()
    assert not children() - before
    assert ask(judge, r"\sqrt{27}", r"3\sqrt{3}").reward == 1.0
    del judge
    deadline = time.monotonic() + 900
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not children() - before


def test_a_prompt_without_an_expected_answer_is_our_failure() -> None:
    (verdict,) = verifier("maths")([Prompt("bare", "", "t")], [r"\boxed{1}"])
    assert verdict.status == "unscored"
    assert "bare" in verdict.detail


@pytest.mark.skipif("BESTOFK_DATA" not in os.environ, reason="BESTOFK_DATA names no data folder")
@pytest.mark.parametrize("most", [200, pytest.param(None, marks=pytest.mark.slow)])
def test_every_gsm8k_reference_scores_one_by_box_and_by_its_own_solution(most: int | None) -> None:
    from bestofk.rewards import prepare
    from bestofk.tasks import task

    gsm8k = task("gsm8k")
    with verifier("maths") as judge:
        for split in gsm8k.splits:
            prompts = gsm8k.split(split)[:most]
            assert prepare(judge, prompts) == prompts
            worked = [f"step by step\n#### {prompt.spec['expected']}" for prompt in prompts]
            assert all(v.reward == 1.0 for v in judge(prompts, worked))
            shifted = [f"#### {p.spec['expected']}1" for p in prompts]
            assert all(v.reward == 0.0 for v in judge(prompts, shifted))
