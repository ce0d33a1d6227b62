"""reasoning-gym's puzzles behind an allow-list, judged by its scorers in the sandbox.

Of its tasks only those are allowed whose own answer scores 1, whose scorer neither executes the
answer nor pays for garbage or hedges, and that come out the same twice (`gym_audit`; a test derives
the list again). Its partial credit is mostly a ratio of lengths, so only a full score counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from bestofk.common import unknown
from bestofk.rewards.base import BatchVerifier, right, wrong
from bestofk.rewards.extract import answer_of
from bestofk.rewards.sandboxed import LazySandbox, caused_by_text
from bestofk.types import Prompt, Verdict

MAX_ANSWER = 20_000
# Derived by gym_audit from reasoning-gym 0.1.25.
# fmt: off
ALLOWED = (
    "aiw", "arc_1d", "base_conversion", "bf", "binary_alternation", "caesar_cipher",
    "calendar_arithmetic", "chain_sum", "color_cube_rotation", "count_bits", "count_primes",
    "cryptarithm", "decimal_arithmetic", "decimal_chain_sum", "dice", "emoji_mystery",
    "family_relationships", "figlet_font", "futoshiki", "group_anagrams", "jugs", "largest_island",
    "lcm", "leg_counting", "manipulate_matrix", "mini_sudoku", "modulo_grid", "needle_haystack",
    "number_filtering", "number_format", "number_sequence", "palindrome_generation",
    "palindrome_partitioning", "path_star", "polynomial_equations", "pool_matrix", "power_function",
    "products", "rectangle_count", "rotate_matrix", "rotten_oranges", "sentence_reordering",
    "simple_equations", "simple_geometry", "string_manipulation", "string_splitting",
    "string_synthesis", "sudoku", "tower_of_hanoi", "tsumego", "word_sequence_reversal",
    "zebra_puzzles",
)
# fmt: on


class GymVerifier(BatchVerifier):
    """Judges answers to one reasoning-gym task; `spec["entry"]` is the entry it came from."""

    def __init__(self, dataset: str, config: Mapping[str, Any], tier: int) -> None:
        if find_spec("reasoning_gym") is None:
            raise ValueError("this needs reasoning-gym: pip install 'bestofk[gym]'")
        if dataset not in ALLOWED:
            raise unknown("or untrustworthy reasoning-gym task", dataset, ALLOWED)
        self.name = f"gym {dataset}"
        self._dataset, self._config = dataset, dict(config)
        self._sandbox = LazySandbox(
            tier=tier, packages="all", preload=("bestofk.rewards.puzzles.gym_scorer",)
        )

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        verdicts: list[Verdict | None] = []
        batch: list[list[Any]] = []
        for prompt, text in zip(prompts, texts, strict=True):
            answer = answer_of(prompt, text)
            if not answer:
                verdicts.append(wrong("no answer", "unparsed"))
            elif len(answer) > MAX_ANSWER:
                verdicts.append(wrong(f"longer than {MAX_ANSWER} characters", "unparsed"))
            else:
                verdicts.append(None)
                batch.append([self._dataset, self._config, prompt.spec["entry"], answer])
        if not batch:
            return [verdict for verdict in verdicts if verdict is not None]
        outcomes = iter(
            self._sandbox.get().call_many("bestofk.rewards.puzzles.gym_scorer:score", batch)
        )
        return [_verdict(next(outcomes)) if verdict is None else verdict for verdict in verdicts]

    def close(self) -> None:
        self._sandbox.close()


def _verdict(outcome: Any) -> Verdict:
    if outcome.status == "unscored":
        return Verdict.unscored(outcome.detail or "the sandbox failed")
    if outcome.status != "ok":  # audited scorers raise on nothing but what the text did to them
        return caused_by_text(outcome)
    full = isinstance(outcome.value, float) and outcome.value == 1.0
    verdict = right() if full else wrong("another answer")
    return Verdict(
        verdict.reward,
        verdict.status,
        passed=verdict.passed,
        total=1,
        cpu_seconds=outcome.cpu_seconds,
        tier=outcome.tier,
        detail=verdict.detail,
    )


def verifier(
    *, dataset: str, config: Mapping[str, Any] | None = None, tier: int = 1
) -> GymVerifier:
    """Judge a reasoning-gym task.

    Args:
        dataset: its name in reasoning-gym, one of the allowed.
        config: its settings, as the task was made with.
        tier: the least sandbox tier that will do.
    """
    return GymVerifier(dataset, config or {}, tier)
