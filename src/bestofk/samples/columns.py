"""Which column of a file means what, and what its values say.

A tool that is known by its columns (`tool_formats.TOOLS`) brings its mapping from our roles to its
columns; other files are mapped by common names; any mapping can be overridden.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from bestofk.messages import choices

from .tool_formats import BY_JUDGE, JUDGE_NOTE, JUDGED, TOOLS, Record, Tool, arrays, counts, plain

UNIFORM = (
    *("task", "data_source", "filter", "step", "model", "run_id", "temperature", "sampling"),
    *("provider", "promptIdx"),
)
"""Columns that must not change within one run: a curve is about one policy on one task."""
ALIASES: dict[str, tuple[str, ...]] = {
    "problem_id": (
        *("problem_id", "prompt_id", "task_id", "question_id", "example_id", "doc_id", "uid"),
        *("id", "problem", "question", "prompt", "input"),
    ),
    "sample_id": ("sample_id", "sample", "sample_idx", "sample_index", "completion_id", "epoch"),
    "prompt": ("prompt", "input", "question"),
    "completion": (
        *("completion", "output", "response", "solution", "generation", "text"),
        *("output_list", "completions", "outputs", "responses", "generations", "code_list"),
    ),
    "answer": (
        *("answer", "extracted_answer", "pred", "prediction", "parsed"),
        *("answers", "extracted_answers", "preds", "predictions"),
    ),
    "reward": (
        *("reward", "rewards", "score", "correct", "passed", "is_correct", "acc", "accuracy"),
        *("exact_match", "success", "pass", "graded_list", "scores", "correctness"),
    ),
    "score": ("selector_score", "rm_score", "judge_score"),
    "status": ("status",),
    "finish_reason": ("finish_reason", "stop_reason"),
    "n_tokens": ("n_tokens", "tokens", "num_tokens", "completion_tokens", "response_length"),
    "logprob_sum": ("logprob_sum", "logprob", "sum_logprob", "log_prob"),
    "turns": ("num_turns", "n_turns"),
    "n": ("n", "num_samples", "n_samples"),
    "c": ("c", "num_correct", "n_correct", "num_passed"),
}
"""By role, the names that columns of files of no known tool are found by."""


NEVER_SCORED = (
    "; if these samples were never scored, run the tool that scores them (for HumanEval, "
    "evaluate_functional_correctness; for evalplus, evalplus.evaluate) and read its result"
)


@dataclass(frozen=True)
class Mapped:
    """How the columns of one file are understood."""

    format: str
    columns: Mapping[str, str]
    """Role → column."""
    samples: Callable[[Record, Mapping[str, str]], Iterable[dict[str, Any]]]
    """A record → its samples, by role."""
    notes: tuple[str, ...] = ()


def settle(record: Record, overrides: Mapping[str, str], judge: str | None = None) -> Mapped:
    """The mapping for a file whose first record this is.

    Args:
        overrides: role → column; an empty column leaves the role out.
        judge: how the responses of lm-eval and lighteval are scored one by one.
    """
    tool = next((each for each in TOOLS if each.wrote(record)), None)
    _check_overrides(record, overrides, tool)
    name, samples = (tool.name, tool.samples) if tool else ("columns found by name", plain)
    columns = {**(tool.columns if tool else _guess(record)), **overrides}
    notes: tuple[str, ...] = ()
    if judge:
        _check_judge(judge, tool)
        columns["reward"] = BY_JUDGE + judge
        notes = (JUDGE_NOTE.format(BY_JUDGE + judge),)
    elif tool and tool.choose:
        chosen, notes = tool.choose(record, overrides)
        columns |= chosen
    if not (tool and tool.inside):
        columns = {
            role: column
            for role, column in columns.items()
            if column in record or role == "score"  # ours leave it out of unscored samples
        }
    if "reward" not in columns and {"n", "c"} <= columns.keys():
        columns = {role: columns[role] for role in ("problem_id", "n", "c") if role in columns}
        name, samples, needed = "counts of passes", counts, ["problem_id"]
    else:
        columns = {role: column for role, column in columns.items() if role not in ("n", "c")}
        needed = ["problem_id", "reward"]
        if samples is plain and isinstance(record.get(columns.get("reward", "")), list | tuple):
            name, samples = "one array per problem", arrays
    for role in needed:
        if role not in columns:
            what = "which problem a sample answers" if role == "problem_id" else "its score"
            raise ValueError(
                f"no column says {what}; the columns are {', '.join(record)}: name one with "
                f"--map {role}=..." + (NEVER_SCORED if role == "reward" else "")
            )
    return Mapped(name, columns, samples, notes)


def _check_overrides(record: Record, overrides: Mapping[str, str], tool: Tool | None) -> None:
    for role, column in overrides.items():
        if role not in ALIASES:
            raise ValueError(f"unknown role {role!r} in --map; {choices(role, ALIASES)}")
        if column and column not in record and not (tool and tool.inside):
            raise ValueError(f"no column {column!r} for {role}; {choices(column, list(record))}")


def _check_judge(judge: str, tool: Tool | None) -> None:
    if tool is None or tool.name not in JUDGED:
        raise ValueError(f"--judge is for files of {' and '.join(JUDGED)}: this file has scores")
    if judge != "target" and not judge.startswith("regex:"):
        raise ValueError(f"--judge is 'target' or 'regex:PATTERN', got {judge!r}")
    try:
        re.compile(judge.removeprefix("regex:"))
    except re.error as error:
        raise ValueError(f"--judge has a pattern that is not valid ({error}): {judge!r}") from None


def _guess(record: Record) -> dict[str, str]:
    """Columns by common names; capitals, spaces and dashes do not matter."""
    spelled = {re.sub(r"[\s-]+", "_", name.strip().lower()): name for name in reversed([*record])}
    columns = {
        role: next((spelled[name] for name in names if name in spelled), None)
        for role, names in ALIASES.items()
    }
    return {role: column for role, column in columns.items() if column is not None}


def problem_name(value: Any) -> str:
    """A problem id from any value: texts too long for a name are cut and get a hash.

    >>> problem_name(7), problem_name("q" * 100)[:12], len(problem_name("q" * 100))
    ('7', 'qqqqqqqqqqqq', 73)
    """
    text = value if isinstance(value, str) else _as_text(value)
    text = " ".join(text.split()) if "\n" in text else text
    if len(text) <= 80:
        return text
    return f"{text[:60]}… {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:11]}"


def _as_text(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, list) and all(isinstance(m, Mapping) and "content" in m for m in value):
        return "\n".join(str(message["content"]) for message in value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


WORDS = {
    **dict.fromkeys(("true", "pass", "passed", "yes", "correct"), 1.0),
    **dict.fromkeys(("false", "fail", "failed", "no", "incorrect"), 0.0),
}


def reward_of(value: Any) -> float:
    """A reward from what the file says; null, NaN and empty = unscored."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value == "":
        return math.nan
    if isinstance(value, str):
        word = WORDS.get(value.strip().lower())
        if word is not None:
            return word
    elif not isinstance(value, bool | int | float | Decimal):
        raise ValueError(f"the reward is {type(value).__name__}, not a number: {str(value)[:60]}")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(
            f"the reward {value!r} is not a number; write null where a sample was not scored"
        ) from None
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise ValueError(
            "the reward is infinite or too large for a float; write null where a sample was "
            "not scored"
        )
    return number


def answer_label(value: Any) -> int:
    """A number for an answer: equal for equal answers; -1 for none."""
    if value is None or value == "" or value == "[invalid]":
        return -1
    text = value if isinstance(value, str) else _as_text(value)
    digest = hashlib.blake2b(text.strip().encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def number_of(value: Any) -> float:
    """A number, or NaN where there is none."""
    if isinstance(value, list):
        return float(len(value))
    try:
        return math.nan if value is None or value == "" else float(value)
    except (TypeError, ValueError):
        return math.nan


def sample_number(value: Any) -> int:
    """A whole number of at most 62 bits."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 1 << 62
    if abs(number) >= 1 << 62:
        raise ValueError(
            f"the sample number {str(value)[:60]!r} is not a whole number of at most 62 bits: "
            "leave it out with --map sample_id="
        )
    return number
