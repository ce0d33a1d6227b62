"""Which file is this, and which of its columns means what?

A format is a name, the columns it is known by, and a mapping from our roles to its columns. Files
of no known format are mapped by common names; any mapping can be overridden.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bestofk.common import choices

from .inspect_logs import scores_in
from .lighteval_details import lighteval, lighteval_metric, lighteval_notes
from .tool_formats import (
    Record,
    check_judge,
    counts,
    lm_eval,
    lm_eval_metric,
    lm_eval_notes,
    per_problem_arrays,
    trl_reward,
    verifiers_episode,
)

ROLES = (
    "problem_id",
    "sample_id",
    "prompt",
    "completion",
    "answer",
    "reward",
    "status",
    "finish_reason",
    "n_tokens",
    "logprob_sum",
    "new_logprob_sum",
    "n",
    "c",
)
UNIFORM = ("task", "data_source", "filter", "step", "model", "run_id", "temperature", "sampling")
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
    "status": ("status",),
    "finish_reason": ("finish_reason", "stop_reason"),
    "n_tokens": ("n_tokens", "tokens", "num_tokens", "completion_tokens", "response_length"),
    "logprob_sum": ("logprob_sum", "logprob", "sum_logprob", "log_prob"),
    "new_logprob_sum": ("new_logprob_sum", "new_logprob"),
    "n": ("n", "num_samples", "n_samples"),
    "c": ("c", "num_correct", "n_correct", "num_passed"),
}


@dataclass(frozen=True)
class Format:
    """How one tool writes samples."""

    name: str
    known_by: frozenset[str]
    """Columns that every record has."""
    columns: Mapping[str, str]
    """Role: column."""
    expand: Callable[[Record, Mapping[str, str]], Iterable[dict[str, Any]]] | None = None
    """A record of many samples → samples by role; None where a record is one sample."""


@dataclass(frozen=True)
class Mapped:
    """A format settled for one file."""

    format: str
    columns: Mapping[str, str]
    expand: Callable[[Record, Mapping[str, str]], Iterable[dict[str, Any]]] | None = None
    notes: tuple[str, ...] = field(default=())

    def shown(self) -> str:
        """The mapping for people."""
        pairs = ", ".join(f"{role}={column}" for role, column in self.columns.items())
        return f"{self.format}: {pairs}"


def settle(record: Record, overrides: Mapping[str, str], judge: str | None = None) -> Mapped:
    """The mapping for a file whose first record this is.

    Args:
        overrides: role → column; an empty column leaves the role out.
        judge: how the responses of lm-eval and lighteval are scored one by one.

    Raises:
        ValueError: an override that names no role or no column; no problem id or reward found.
    """
    known = next((each for each in FORMATS if each.known_by <= record.keys()), None)
    _check_overrides(record, overrides, known)
    check_judge(judge)
    if judge and (known is None or known.name not in JUDGED):
        raise ValueError(f"--judge is for files of {' and '.join(JUDGED)}: this file has scores")
    columns = dict(known.columns) if known else _guess(record)
    columns.update(overrides)
    notes: tuple[str, ...] = ()
    name, expand = (known.name, known.expand) if known else ("columns found by name", None)
    if known and known.name == "TRL completions" and "reward" not in overrides:
        columns["reward"] = trl_reward(record)
    if known and known.name.startswith("inspect"):
        columns |= _inspect_score(record, overrides)
    if known and known.name == "lm-evaluation-harness":
        columns["reward"] = overrides.get("reward") or lm_eval_metric(record, judge)
        notes += lm_eval_notes(record, columns["reward"])
    elif known and known.name == "lighteval details":
        columns["reward"] = overrides.get("reward") or lighteval_metric(record, judge)
        notes += lighteval_notes(record, columns["reward"])
    elif not (known and known.name == "verifiers traces"):
        columns = {role: column for role, column in columns.items() if column in record}
    if "reward" not in columns and {"n", "c"} <= columns.keys():
        name, expand = "counts of passes", counts
        columns = {role: columns[role] for role in ("problem_id", "n", "c") if role in columns}
    elif isinstance(record.get(columns.get("reward", "")), list | tuple) and expand is None:
        name, expand = "one array per problem", per_problem_arrays
    if expand is not counts:
        columns = {role: column for role, column in columns.items() if role not in ("n", "c")}
    needed = ("problem_id", "which problem a sample answers"), ("reward", "its score")
    for role, why in needed[: 1 if expand is counts else 2]:
        if role not in columns:
            raise ValueError(
                f"no column says {why}; the columns are {', '.join(record)}: name one with "
                f"--map {role}=..." + _unscored_hint(record, role)
            )
    return Mapped(name, columns, expand, notes)


def _check_overrides(record: Record, overrides: Mapping[str, str], known: Format | None) -> None:
    free = known is not None and known.name in ("verifiers traces", "lighteval details")
    for role, column in overrides.items():
        if role not in ROLES:
            raise ValueError(f"unknown role {role!r} in --map; {choices(role, ROLES)}")
        if column and column not in record and not free:
            raise ValueError(f"no column {column!r} for {role}; {choices(column, list(record))}")


def _inspect_score(record: Record, overrides: Mapping[str, str]) -> dict[str, str]:
    """The scorer of an inspect log, and its answers."""
    scores = scores_in(record)
    if "reward" in overrides:
        reward = overrides["reward"]
    elif len(scores) == 1:
        reward = scores[0]
    else:
        listed = ", ".join(scores)
        raise ValueError(
            f"the log has {len(scores)} scores ({listed or 'none'}): choose one with "
            f"--map reward={scores[0] if scores else '...'}"
        )
    answer = overrides.get("answer", f"answer_{reward.removeprefix('score_').partition('.')[0]}")
    return {"reward": reward, "answer": answer}


def _guess(record: Record) -> dict[str, str]:
    """Columns by common names; capitals, spaces and dashes do not matter."""
    plain = {re.sub(r"[\s-]+", "_", name.strip().lower()): name for name in reversed(list(record))}
    result = {}
    for role, names in ALIASES.items():
        column = next((plain[name] for name in names if name in plain), None)
        if column is not None:
            result[role] = column
    return result


def _unscored_hint(record: Record, role: str) -> str:
    if role == "reward" and {"completion", "solution", "output"} & record.keys():
        return (
            ". These samples were never scored: run the tool that scores them (for HumanEval, "
            "evaluate_functional_correctness; for evalplus, evalplus.evaluate) and read its result"
        )
    return ""


FORMATS = (
    Format(
        "bestofk samples",
        frozenset({"problem_id", "sample_id", "reward", "completion"}),
        {role: role for role in ROLES},
    ),
    Format(
        "bestofk run",
        frozenset({"prompt_id", "sample", "reward", "completion"}),
        {
            **{role: role for role in ROLES},
            "problem_id": "prompt_id",
            "sample_id": "sample",
            "n_tokens": "tokens",
            "logprob_sum": "logprob",
        },
    ),
    Format(
        "lm-evaluation-harness",
        frozenset({"doc_id", "resps", "filtered_resps"}),
        {"problem_id": "doc_id"},
        lm_eval,
    ),
    Format(
        "lighteval details",
        frozenset({"doc", "metric", "model_response"}),
        {"problem_id": "doc"},
        lighteval,
    ),
    Format(
        "inspect log",
        frozenset({"id", "epoch", "target", "log", "completion"}),
        {"problem_id": "id", "sample_id": "epoch", "prompt": "input", "completion": "completion"},
    ),
    Format(
        "inspect samples_df",
        frozenset({"sample_id", "eval_id", "id", "epoch"}),
        {"problem_id": "id", "sample_id": "epoch", "prompt": "input"},
    ),
    Format(
        "verifiers traces",
        frozenset({"task", "traces", "env"}),
        {"problem_id": "task", "reward": "rewards"},
        verifiers_episode,
    ),
    Format(
        "verifiers results",
        frozenset({"example_id", "prompt", "completion", "reward"}),
        {
            "problem_id": "example_id",
            "prompt": "prompt",
            "completion": "completion",
            "reward": "reward",
        },
    ),
    Format(
        "verl rollouts",
        frozenset({"input", "output", "score"}),
        {
            "problem_id": "input",
            "prompt": "input",
            "completion": "output",
            "reward": "score",
            "answer": "pred",
        },
    ),
    Format(
        "TRL completions",
        frozenset({"step", "prompt", "completion", "advantage"}),
        {"problem_id": "prompt", "prompt": "prompt", "completion": "completion"},
    ),
    Format(
        "HumanEval results",
        frozenset({"task_id", "completion", "passed"}),
        {"problem_id": "task_id", "completion": "completion", "reward": "passed"},
    ),
    Format(
        "evalplus results",
        frozenset({"task_id", "solution", "passed", "base_passed"}),
        {"problem_id": "task_id", "completion": "solution", "reward": "passed"},
    ),
)
JUDGED = ("lm-evaluation-harness", "lighteval details")
"""Formats whose responses `--judge` can score."""


def problem_name(value: Any) -> str:
    """A problem id from any value: texts too long for a name are cut and get a hash.

    >>> problem_name(7), problem_name("q" * 100)[:12], len(problem_name("q" * 100))
    ('7', 'qqqqqqqqqqqq', 73)
    """
    text = value if isinstance(value, str) else _plain(value)
    text = " ".join(text.split()) if "\n" in text else text
    if len(text) <= 80:
        return text
    return f"{text[:60]}… {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:11]}"


def _plain(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, list) and all(isinstance(m, Mapping) and "content" in m for m in value):
        return "\n".join(str(message["content"]) for message in value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


WORDS = {"true": 1.0, "false": 0.0, "pass": 1.0, "passed": 1.0, "fail": 0.0, "failed": 0.0}


def reward_of(value: Any) -> float:
    """A reward from what the file says; null, NaN and empty = unscored.

    Raises:
        ValueError: anything that is not a finite number, a boolean, or pass/fail.
    """
    if value is None or value == "":
        return math.nan
    if isinstance(value, str):
        word = WORDS.get(value.strip().lower())
        if word is not None:
            return word
        try:
            value = float(value)
        except ValueError:
            raise ValueError(
                f"the reward {value!r} is not a number; write null where a sample was not scored"
            ) from None
    if isinstance(value, bool | int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise ValueError(
                "the reward is infinite or too large for a float; write null where a sample was "
                "not scored"
            )
        return number
    raise ValueError(f"the reward is {type(value).__name__}, not a number: {str(value)[:60]}")


def answer_label(value: Any) -> int:
    """A number for an answer: equal for equal answers; -1 for none."""
    if value is None or value == "" or value == "[invalid]":
        return -1
    text = value if isinstance(value, str) else _plain(value)
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
