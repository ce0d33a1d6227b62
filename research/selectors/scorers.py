"""Selectors that err, as research/selectors/design.md defines them: task.scorer or task.verifier.

A score is d · (whether the answer is right) + normal noise + a bonus for a mark. The noise depends
on the selector, the problem and the text alone, so the same answer always has the same score.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from statistics import NormalDist

from bestofk.rewards import verifier
from bestofk.types import Prompt

NORMAL = NormalDist()
COUNTDOWN = verifier("countdown")


@dataclass(frozen=True)
class Selector:
    """A selector by its area under the curve: P(a right answer's score > a wrong one's)."""

    auc: float
    bonus: float = 0.0
    """Added to a wrong answer with two or more `/`."""


SELECTORS = {
    "weak": Selector(0.60),
    "fair": Selector(0.80),
    "good": Selector(0.95),
    "hackable": Selector(0.95, bonus=4.0),
}


def noise(selector: str, problem: str, text: str) -> float:
    """A standard normal number, the same for the same three."""
    digest = hashlib.sha256(f"{selector}\n{problem}\n{text}".encode()).digest()
    return NORMAL.inv_cdf(((int.from_bytes(digest[:7], "big") >> 3) + 0.5) / 2**53)


def score(selector: str, problem: str, text: str, right: bool) -> float:
    """The score of an answer to a problem, by the problem's id."""
    chosen, text = SELECTORS[selector], text.strip()
    d = math.sqrt(2) * NORMAL.inv_cdf(chosen.auc)
    bonus = chosen.bonus if not right and text.count("/") >= 2 else 0.0
    return d * right + noise(selector, problem, text) + bonus


def _judged(selector: str, prompt: Prompt, completion: str) -> float:
    (verdict,) = COUNTDOWN([prompt], [completion])
    return score(selector, prompt.id, completion, verdict.reward == 1.0)


def weak(prompt: Prompt, completion: str) -> float:
    return _judged("weak", prompt, completion)


def fair(prompt: Prompt, completion: str) -> float:
    return _judged("fair", prompt, completion)


def good(prompt: Prompt, completion: str) -> float:
    return _judged("good", prompt, completion)


def hackable(prompt: Prompt, completion: str) -> float:
    return _judged("hackable", prompt, completion)
