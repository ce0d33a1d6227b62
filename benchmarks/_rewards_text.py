"""Verdicts per second and core of the verifiers that read text, as ratios in one run.

Maths is compared with math-verify alone on the same GSM8K-style answers; countdown and maze with a
floor of 20,000 verdicts a second. CPU time of this process is counted, so other load does not
matter. Ends with status 1 when a ratio is below its floor.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Callable, Sequence

from _measure import machine, table
from bestofk.rewards import verifier
from bestofk.tasks import task
from bestofk.types import Prompt

FLOOR_MATHS = 5.0
FLOOR_PUZZLES = 20_000.0


def gsm8k_style(count: int, rng: random.Random) -> tuple[list[Prompt], list[str]]:
    """Short worked answers that end in a number: boxed, after ####, with units, right and wrong."""
    prompts, texts = [], []
    for i in range(count):
        gold = rng.randrange(1, 100_000)
        said = gold if rng.random() < 0.6 else gold + rng.randrange(1, 50)
        form = rng.choice(
            ("\\boxed{%d}", "#### %d", "\\boxed{\\$%d}", "\\boxed{%d.00}", "The answer is %d.")
        )
        work = " ".join(f"Step {s}: {s * 3} + {s} = {s * 4}." for s in range(rng.randrange(3, 12)))
        prompts.append(Prompt(str(i), "", "gsm8k", {"expected": f"{gold:,}"}))
        texts.append(f"{work}\n{form % said}")
    return prompts, texts


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """The least CPU time of some runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def math_verify_alone(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[bool]:
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return [
        verify(parse(prompt.spec["expected"]), parse(text))
        for prompt, text in zip(prompts, texts, strict=True)
    ]


def main() -> int:
    rng = random.Random(0)
    rows = [("verdicts per second and core", "ours", "against", "ratio", "wanted")]
    failed = False

    def compare(what: str, rate: float, peer: str, peer_rate: float, floor: float) -> None:
        nonlocal failed
        failed |= rate < floor * peer_rate
        against = f"{peer} {peer_rate:,.0f}"
        rows.append((what, f"{rate:,.0f}", against, f"{rate / peer_rate:.1f}", f">= {floor:g}"))

    prompts, texts = gsm8k_style(2000, rng)
    few = 200  # math-verify takes long enough on these
    alone = few / seconds(lambda: math_verify_alone(prompts[:few], texts[:few]), repeats=2)
    maths = verifier("maths")
    rate = len(texts) / seconds(lambda: maths(prompts, texts))
    compare("maths, GSM8K-style answers", rate, "math-verify alone", alone, FLOOR_MATHS)
    for name, kinds in (("countdown", ("exact", "closeness")), ("maze", ("exact", "progress"))):
        split = task(name).split("train")[:2000]
        said = [prompt.reference or "" for prompt in split]  # right answers take the most work
        for kind in kinds:
            judge = verifier(name, reward=kind)
            judge(split, said)  # distances of a maze are remembered for its whole group
            rate = len(said) / seconds(lambda judge=judge, p=split, t=said: judge(p, t))
            compare(f"{name}, {kind}", rate, "floor", FLOOR_PUZZLES, 1.0)
    table(f"Verifiers that read text ({machine()})", rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
