"""Populations to draw runs from, and references by brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from bestofk.evaluation import Samples, samples

Population = Callable[..., Samples]


@pytest.fixture
def drawn() -> Population:
    """A run of `problems` × `n` 0/1 samples whose difficulty is Beta(a, b)."""

    def make(problems: int, n: int, a: float, b: float, seed: int, name: str = "run") -> Samples:
        rng = np.random.default_rng(seed)
        chance = rng.beta(a, b, problems)
        return samples((rng.random((problems, n)) < chance[:, None]).astype(float), name=name)

    return make


@pytest.fixture
def vote() -> Callable[[list[str | None], list[float]], float]:
    """Is the plurality answer right; ties broken evenly; None does not vote."""

    def right(answers: list[str | None], correct: list[float]) -> float:
        marks = dict(zip(answers, correct))
        counts = Counter(answer for answer in answers if answer is not None)
        if not counts:
            return 0.0
        top = max(counts.values())
        leaders = [answer for answer, count in counts.items() if count == top]
        return float(np.mean([marks[leader] for leader in leaders]))

    return right
