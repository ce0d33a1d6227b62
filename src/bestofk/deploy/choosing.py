"""Keep one of k: how many samples are drawn together, which is kept, what to expect of it.

With a verifier a problem ends at its first pass. Samples are drawn in rounds that double (1, 1, 2,
4, …): in few rounds at most twice as many as one by one. A vote and a score see all k.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bestofk.samples import Samples
from bestofk.types import reaches

Line = Mapping[str, Any]
"""A scored sample, as in the file of samples."""
Chooser = Literal["verifier", "vote", "score"]


def rounds(k: int, by: Chooser) -> list[range]:
    """Numbers of the samples that are drawn together.

    >>> rounds(6, "verifier")
    [range(0, 1), range(1, 2), range(2, 4), range(4, 6)]
    >>> rounds(6, "vote")
    [range(0, 6)]
    """
    ends = [k] if by != "verifier" else [*(2**i for i in range(k.bit_length()) if 2**i < k), k]
    return [range(first, end) for first, end in zip([0, *ends], ends)]


BY_PROCEDURE: Mapping[str, Chooser] = {
    "max": "verifier", "pass": "verifier", "retry": "verifier", "select": "score", "maj": "vote",
}  # fmt: skip


def deployed(procedure: str) -> tuple[Chooser, int]:
    """What chooses among how many, by the name that training and evaluation have for it.

    >>> deployed("select@8"), deployed("retry@4")
    (('score', 8), ('verifier', 4))
    """
    name, _, k = procedure.partition("@")
    if name not in BY_PROCEDURE or not (k.isascii() and k.isdigit()):
        known = ", ".join(f"{each}@8" for each in BY_PROCEDURE)
        raise ValueError(
            f"a procedure that chooses is {known}, or with another k, got {procedure!r}"
        )
    return BY_PROCEDURE[name], int(k)


def check_drawing(k: int, temperature: float, threshold: float) -> None:
    """An error for settings under which there is nothing to choose."""
    if type(k) is not int or k < 1:
        raise ValueError(f"k is a whole number of at least 1, got {k!r}")
    if k > 1 and temperature == 0:
        raise ValueError(f"at temperature 0 all {k} samples are one: raise it, or take k = 1")
    if not math.isfinite(threshold):
        raise ValueError(f"threshold is the reward that passes, got {threshold!r}")


def check_comparing(judge: Any, by: Chooser) -> None:
    """An error where a judge that compares samples would see a part of them."""
    if judge.compares and by != "score":
        raise ValueError(
            f"{judge.name}: samples are compared once all k are drawn, so the score chooses alone: "
            "--by score, for bestofk serve --scorer without --verifier, in Python scorer= alone"
        )


def choose(lines: Sequence[Line], by: Chooser, threshold: float = 1.0) -> tuple[Line, str]:
    """The sample that is kept, and why: "pass", "reward", "score", "vote" or "first".

    Without a pass a verifier leaves the choice to the reward, where rewards differ, then to scores,
    then to the vote. A choice by score takes the reward where there is no other score. Of equal
    samples the first is kept, as by somebody who draws one by one.

    Args:
        lines: at least one, in the order in which they were drawn.
    """
    scored = [line for line in lines if line["reward"] is not None]
    if by == "verifier" and scored:
        best = max(scored, key=lambda line: line["reward"])
        if reaches(best["reward"], threshold):
            return next(line for line in scored if reaches(line["reward"], threshold)), "pass"
        if any(line["reward"] < best["reward"] for line in scored):
            return best, "reward"
    with_score = [line for line in lines if line.get("score") is not None]
    if by != "vote" and with_score:
        return max(with_score, key=lambda line: line["score"]), "score"
    if by == "score" and scored:
        return max(scored, key=lambda line: line["reward"]), "reward"
    answers = [line["answer"] for line in lines if line["answer"] not in (None, "")]
    if answers:
        ((winner, _),) = Counter(answers).most_common(1)  # of equal counts, the first met
        return next(line for line in lines if line["answer"] == winner), "vote"
    return lines[0], "first"


def answer_line(lines: Sequence[Line], by: Chooser, threshold: float = 1.0) -> dict[str, Any]:
    """One line of the file of answers: the chosen sample, and what its problem has cost."""
    lines = sorted(lines, key=lambda line: line["sample_id"])
    chosen, why = choose(lines, by, threshold)
    names = ("problem_id", "prompt", "completion", "answer", "reward", "status")
    return {
        **{name: chosen[name] for name in names},
        "chosen_by": why,
        "sample": chosen["sample_id"],
        "draws": len(lines),
        "drawn_tokens": sum(line["n_tokens"] or 0 for line in lines),
        "model": chosen["model"],
        "sampling": chosen["sampling"],
    }


METRICS: Mapping[Chooser, Literal["pass@k", "maj@k", "select@k"]] = {
    "verifier": "pass@k",
    "vote": "maj@k",
    "score": "select@k",
}
"""What each chooser is worth."""


@dataclass(frozen=True)
class Planned:
    """What an earlier evaluation says of a procedure, before it is run."""

    metric: str
    value: float
    low: float
    high: float
    draws: float
    """Per problem."""


def planned(pilot: Samples, k: int, by: Chooser, threshold: float | None = None) -> Planned:
    """What to expect of k samples: unbiased estimates from at least k of each problem.

    A round is drawn where all before it failed, so its cost is its size times 1 - pass@(before).
    """
    from bestofk.evaluation import curve

    metric = METRICS[by]
    result = curve(pilot, metric, k_max=k, threshold=threshold)
    failed = np.concatenate([[1.0], 1.0 - np.asarray(result.estimate)])
    draws = sum(len(numbers) * failed[numbers.start] for numbers in rounds(k, by))
    interval = result.interval
    value, low, high = (float(each[-1]) for each in (result.estimate, interval.low, interval.high))
    return Planned(metric.replace("@k", f"@{k}"), value, low, high, float(draws))
