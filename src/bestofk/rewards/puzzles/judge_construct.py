"""Construction problems: a list of items is worth its value over the best one, or nothing where it
breaks a rule. The best value comes with the problem, so that judging takes microseconds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from functools import partial as bind
from typing import Any

from bestofk.messages import one_of
from bestofk.rewards.base import PairVerifier, right, wrong
from bestofk.rewards.text import final_text
from bestofk.types import ALMOST_ONE, Prompt, Verdict

REWARDS = ("ratio", "best")
MAX_ANSWER = 1000
"""Characters. Far more than a list of all items of a problem needs."""
FLOOR_LIMIT = 0.6
"""Mean reward of a constant answer above which the problems are not worth training on."""
CONSTANTS = 1000
_MARK = "ANSWER:"
_LINE = re.compile(r"[A-Za-z0-9]+(?:(?: |, ?)[A-Za-z0-9]+)*")
_WHOLE = re.compile(r"[0-9]+(?: [0-9]+)*")
_ITEM = re.compile(r"[A-Za-z0-9]+")

Spec = Mapping[str, Any]


def independent(spec: Spec, chosen: Sequence[int]) -> int:
    among = set(chosen)
    return 0 if any(a in among and b in among for a, b in spec["edges"]) else len(chosen)


def cut(spec: Spec, chosen: Sequence[int]) -> int:
    among = set(chosen)
    return sum((a in among) != (b in among) for a, b in spec["edges"])


def sidon(spec: Spec, chosen: Sequence[int]) -> int:
    numbers = sorted(spec["numbers"][item] for item in chosen)
    differences = [y - x for place, y in enumerate(numbers) for x in numbers[:place]]
    return len(chosen) if len(set(differences)) == len(differences) else 0


def cover(spec: Spec, chosen: Sequence[int]) -> int:
    jobs = {job for item in chosen for job in spec["teams"][item]}
    return len(chosen) if len(jobs) == spec["jobs"] else 0


def path(spec: Spec, chosen: Sequence[int]) -> int:
    roads = {(a, b) for a, b in spec["edges"]}
    steps = zip(chosen, chosen[1:])
    return len(chosen) if all((min(step), max(step)) in roads for step in steps) else 0


def knapsack(spec: Spec, chosen: Sequence[int]) -> int:
    if sum(spec["weights"][item] for item in chosen) > spec["limit"]:
        return 0
    return sum(spec["values"][item] for item in chosen)


VALUES: dict[str, tuple[Callable[[Spec, Sequence[int]], int], str]] = {
    "independent": (independent, "two of them do not get along"),
    "cut": (cut, "no pair is parted"),
    "sidon": (sidon, "two differences are equal"),
    "cover": (cover, "a job is left undone"),
    "path": (path, "no road joins two that follow each other"),
    "knapsack": (knapsack, "too heavy"),
}
"""Value of different items, 0 where they break the rule; and what that rule is."""


def listed(text: str, answer: str) -> list[str] | str:
    """The items that a completion lists, or why it does not.

    `answer` is "line" (one line "ANSWER: Bo Ka", the last one after the thinking; commas, one
    pair of brackets and a full stop at the end are allowed) or "whole" (the completion is the
    list, with single spaces).

    >>> listed("So I invite two.\\nANSWER: Bo, Ka\\n", "line"), listed("1 5 6", "whole")
    (['Bo', 'Ka'], ['1', '5', '6'])
    """
    line, form = text.strip() if answer == "whole" else final_text(text).rstrip(), _WHOLE
    if answer != "whole":
        start, form = line.find(_MARK), _LINE
        if start < 0:
            return f"no line with {_MARK}"
        if line.rfind(_MARK) != start:
            return f"{_MARK} occurs more than once"
        if line[:start].rpartition("\n")[2].strip():
            return f"{_MARK} does not begin its line"
        line = line[start + len(_MARK) :].lstrip(" \t").removesuffix(".")
        if line.startswith("[") and line.endswith("]"):
            line = line[1:-1]
    if len(line) > MAX_ANSWER:
        return f"longer than {MAX_ANSWER} characters"
    if not form.fullmatch(line):
        return "not one list of items"
    return _ITEM.findall(line)


def judge(prompt: Prompt, text: str, *, reward: str) -> Verdict:
    """The value of the listed items over the best value (for `cover` the lowest cost over theirs).

    `spec`: kind, items (their names), best, what the kind's rule is about, and answer ("line" or
    "whole"). An item that is not there or is named twice breaks a rule. With reward="best" only an
    optimum earns.
    """
    spec = prompt.spec
    names = listed(text, spec.get("answer", "line"))
    if isinstance(names, str):
        return wrong(names, "unparsed")
    return _judged(spec, {name: at for at, name in enumerate(spec["items"])}, names, reward)


def _judged(spec: Spec, places: Mapping[str, int], names: Sequence[str], reward: str) -> Verdict:
    chosen = [places.get(name, -1) for name in names]
    if -1 in chosen:
        return _FOREIGN
    if len(set(chosen)) < len(chosen):
        return _TWICE
    value_of, rule = VALUES[spec["kind"]]
    value = value_of(spec, chosen)
    return _verdict(value, spec["best"], spec["kind"] == "cover", reward) if value else wrong(rule)


_FOREIGN, _TWICE = wrong("names an item that is not there"), wrong("names an item twice")


@lru_cache(maxsize=4096)
def _verdict(value: int, best: int, is_cost: bool, reward: str) -> Verdict:
    worse, better = (best, value) if is_cost else (value, best)
    if worse > better:
        raise ValueError(f"the problem states {best} as the best, and {value} is possible")
    if worse == better:
        return right()
    detail = f"{value}, the best is {best}"
    if reward == "best":
        return wrong(detail)
    return Verdict(min(worse / better, ALMOST_ONE), "partial", worse, better, detail=detail)


class ConstructVerifier(PairVerifier):
    """Judges answers, and knows what a constant answer would earn."""

    def __init__(self, reward: str) -> None:
        needed = ("kind", "items", "best")
        super().__init__(bind(judge, reward=reward), name="construct", needed=needed)
        self.reward = reward

    def floor(self, prompts: Sequence[Prompt]) -> tuple[float, str]:
        """What the best of a thousand constant answers earns on average of these prompts, and that
        answer: references of them, and parts of references, down to single items."""
        rng = random.Random(0)
        references = [str(prompt.reference) for prompt in prompts]
        constants = dict.fromkeys(references[:CONSTANTS])
        for draw in range(20 * CONSTANTS):
            if len(constants) >= CONSTANTS:
                break
            mark, space, line = references[draw % len(references)].rpartition(_MARK + " ")
            items = line.split(" ")
            part = [item for item in items if rng.random() < draw / (20 * CONSTANTS)]
            constants[mark + space + " ".join(part or items[:1])] = None
        rows = [(p.spec, {name: at for at, name in enumerate(p.spec["items"])}) for p in prompts]
        form = prompts[0].spec.get("answer", "line")

        def mean(text: str) -> float:
            names = listed(text, form)
            return sum(_judged(*row, names, self.reward).reward for row in rows) / len(rows)

        earned = {text: mean(text) for text in constants}
        best = max(earned, key=earned.__getitem__)
        return earned[best], best

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        earned, constant = self.floor(prompts)
        return [f"a constant answer earns {earned:.3f} at most, of 1,000 tried: {constant}"]

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        super().check_prompts(prompts)
        for why in self.doubts(prompts).values():
            raise ValueError(why)

    def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
        """All prompts, where a constant answer earns most of what they pay. Those of `cut` are the
        contrast, in which every answer earns."""
        graded = [prompt for prompt in prompts if prompt.spec.get("kind") != "cut"]
        if len(graded) < 32:
            return {}
        earned, constant = self.floor(graded[:128])
        if earned <= FLOOR_LIMIT:
            return {}
        why = (
            f"the constant answer {constant!r} earns {earned:.2f} on average, more than "
            f"{FLOOR_LIMIT:g}: take larger sizes, or the style chat or text, in which items have "
            "names of their own in each problem"
        )
        return dict.fromkeys((prompt.id for prompt in graded), why)


def verifier(*, reward: str = "ratio") -> ConstructVerifier:
    """Judge construction problems: reward "ratio" (value over the best) or "best" (0 or 1)."""
    one_of("reward of construct", reward, REWARDS)
    return ConstructVerifier(reward)
