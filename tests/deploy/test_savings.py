"""What the first pass saves: the table of docs/deploy.md, and races in a time of their own."""

from __future__ import annotations

import asyncio
import random
import re
import selectors
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bestofk.deploy.choosing import rounds
from bestofk.deploy.racing import race

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
K, SHORTEST, LONGEST = 8, 51, 150


class NoWait(selectors.DefaultSelector):
    """Skips the time in which nothing happens, and counts it."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.skipped += max(timeout or 0.0, 0.0)
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.waits = NoWait()
        super().__init__(self.waits)

    def time(self) -> float:
        return self.waits.skipped


async def cost(p: float, at_once: int, rng: random.Random) -> tuple[int, float, float]:
    """Samples that were drawn, tokens that were decoded, and tokens of all K: a token a second."""
    lengths = [rng.randint(SHORTEST, LONGEST) for _ in range(K)]
    passes, loop = [rng.random() < p for _ in range(K)], asyncio.get_running_loop()
    decoded = list[float]()

    async def draw(number: int) -> dict[str, Any]:
        begin = loop.time()
        try:
            await asyncio.sleep(lengths[number])
        finally:
            decoded.append(loop.time() - begin)
        return {"sample_id": number, "reward": float(passes[number]), "answer": None}

    options: Any = {"threshold": 1.0, "at_once": at_once, "seconds": 1e6}
    result = await race(draw, K, "verifier", **options)
    return len(result.lines), sum(decoded), sum(lengths)


def side_by_side(p: float) -> float:
    """The expected share of tokens saved where all K are decoded at once: a sample ends at its own
    length, or with the shortest that passes."""
    lengths = np.arange(SHORTEST, LONGEST + 1)
    each = len(lengths)
    longer = (lengths[-1] - lengths) / each  # P(length > t)
    alive = (1 - p) + p * longer  # nothing of it has passed by t
    survives = np.concatenate([np.ones(SHORTEST), alive])  # at t = 0, 1, ...
    unfinished = np.concatenate([np.ones(SHORTEST), longer])
    # a token t + 1 of a sample is decoded where it is longer than t, and no other passed by t
    decoded = (unfinished[:-1] * survives[:-1] ** (K - 1)).sum()
    return 1 - decoded / lengths.mean()


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
def test_races_cost_what_the_formulas_of_the_page_say(p: float) -> None:
    for at_once in (1, K):

        async def all_of(at_once: int = at_once) -> list[tuple[int, float, float]]:
            rng = random.Random(f"{p} {at_once}")
            return [await cost(p, at_once, rng) for _ in range(600)]

        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            draws, decoded, whole = np.array(runner.run(all_of())).T
        if at_once == 1:
            expected, measured = (1 - (1 - p) ** K) / p, draws
        else:
            expected, measured = 1 - side_by_side(p), decoded / (K * (SHORTEST + LONGEST) / 2)
        assert abs(measured.mean() - expected) < 4 * measured.std() / 600**0.5
        assert (decoded <= whole).all()


def test_the_table_of_the_page_is_what_the_formulas_say() -> None:
    rows = re.findall(r"^\| (0\.\d+) \|(.+)\|$", PAGE.read_text(), re.M)
    assert [float(p) for p, _ in rows] == [0.05, 0.1, 0.3, 0.5, 0.7, 0.9]
    for text, cells in rows:
        p, fails = float(text), 1 - float(text)
        one_by_one = (1 - fails**K) / p
        in_rounds = sum(len(numbers) * fails**numbers.start for numbers in rounds(K, "verifier"))
        assert [cell.strip() for cell in cells.split("|")] == [
            f"{1 - fails**K:.2f}",
            f"{one_by_one:.2f}", f"{1 - one_by_one / K:.0%}",
            f"{in_rounds:.2f}", f"{1 - in_rounds / K:.0%}",
            f"{side_by_side(p):.0%}",
        ]  # fmt: skip
