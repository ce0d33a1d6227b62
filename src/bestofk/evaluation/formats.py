"""Which file is this, and which of its columns means what?

A format is a name, the columns it is known by, and a mapping from our roles to its columns. Files
of no known format are mapped by common names; any mapping can be overridden.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bestofk.common import choices

Record: TypeAlias = Mapping[str, Any]

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
)
UNIFORM = ("task", "data_source", "filter", "step", "model", "run_id", "temperature", "sampling")
"""Columns that must not change within one run: a curve is about one policy on one task."""

ALIASES: dict[str, tuple[str, ...]] = {
    "problem_id": (
        *("problem_id", "prompt_id", "task_id", "question_id", "doc_id", "uid", "id", "problem"),
        *("question", "prompt", "input"),
    ),
    "sample_id": ("sample_id", "sample", "sample_idx", "sample_index", "completion_id"),
    "prompt": ("prompt", "input", "question"),
    "completion": ("completion", "output", "response", "solution", "generation", "text"),
    "answer": ("answer", "extracted_answer", "pred", "prediction", "parsed"),
    "reward": (
        *("reward", "rewards", "score", "correct", "passed", "is_correct", "acc", "accuracy"),
        *("exact_match", "success", "pass"),
    ),
    "status": ("status",),
    "finish_reason": ("finish_reason", "stop_reason"),
    "n_tokens": ("n_tokens", "tokens", "num_tokens", "completion_tokens", "response_length"),
    "logprob_sum": ("logprob_sum", "logprob", "sum_logprob", "log_prob"),
    "new_logprob_sum": ("new_logprob_sum", "new_logprob"),
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


def settle(record: Record, overrides: Mapping[str, str]) -> Mapped:
    """The mapping for a file whose first record this is.

    Raises:
        ValueError: an override that names no role or no column; no problem id or reward found.
    """
    for role, column in overrides.items():
        if role not in ROLES:
            raise ValueError(f"unknown role {role!r} in --columns; {choices(role, ROLES)}")
        if column and column not in record:
            raise ValueError(f"no column {column!r} for {role}; {choices(column, list(record))}")
    known = next((each for each in FORMATS if each.known_by <= record.keys()), None)
    columns = dict(known.columns) if known else _guess(record)
    columns.update(overrides)
    notes: tuple[str, ...] = ()
    if known and known.name == "TRL completions" and "reward" not in overrides:
        columns["reward"] = _trl_reward(record)
    if known and known.name == "lm-evaluation-harness":
        columns["reward"] = overrides.get("reward") or _lm_eval_metric(record)
        notes += _lm_eval_notes(record, columns["reward"])
    else:
        columns = {role: column for role, column in columns.items() if column in record}
    for role, why in (("problem_id", "which problem a sample answers"), ("reward", "its score")):
        if role not in columns:
            raise ValueError(
                f"no column says {why}; the columns are {', '.join(record)}: name one with "
                f"--columns {role}=..." + _unscored_hint(record, role)
            )
    name = known.name if known else "columns found by name"
    return Mapped(name, columns, known.expand if known else None, notes)


def _guess(record: Record) -> dict[str, str]:
    found = {}
    for role, names in ALIASES.items():
        column = next((name for name in names if name in record), None)
        if column is not None:
            found[role] = column
    return found


def _unscored_hint(record: Record, role: str) -> str:
    if role == "reward" and {"completion", "solution", "output"} & record.keys():
        return (
            ". These samples were never scored: run the tool that scores them (for HumanEval, "
            "evaluate_functional_correctness; for evalplus, evalplus.evaluate) and read its result"
        )
    return ""


# TRL: step, prompt, completion, one column per reward function, extra columns, advantage


def _trl_reward(record: Record) -> str:
    taken = {"step", "prompt", "completion", "advantage"}
    numeric = [
        name
        for name, value in record.items()
        if name not in taken and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if "reward" in numeric:
        return "reward"
    if len(numeric) != 1:
        raise ValueError(
            f"TRL logs one column per reward function and not their weights; this file has "
            f"{', '.join(numeric) or 'none'}: choose one with --columns reward=..."
        )
    return numeric[0]


# lm-evaluation-harness: one record per document and filter, all its responses in `resps`


def _lm_eval_metric(record: Record) -> str:
    metrics = [str(name) for name in record.get("metrics", ())]
    preferred = ("pass@1", "pass_at_1", "exact_match", "acc")
    for name in (*preferred, *metrics):
        if name in metrics and isinstance(record.get(name), int | float):
            return name
    if len(_responses(record)) > 1:
        return "filtered_resps == target"
    raise ValueError(
        f"no metric of this record is a number ({', '.join(metrics) or 'none'}): "
        "name one with --columns reward=..."
    )


def _lm_eval_notes(record: Record, reward: str) -> tuple[str, ...]:
    if len(_responses(record)) < 2:
        return ()
    if reward in ("pass@1", "pass_at_1"):
        return (f"lm-eval keeps one {reward} per document: the passes are counted from it",)
    return ("each filtered response is compared with the target, as text",)


def _responses(record: Record) -> list[Any]:
    resps = record.get("resps") or [[]]
    return list(resps[0]) if isinstance(resps[0], list) else list(resps)


def _lm_eval(record: Record, columns: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    texts = _responses(record)
    problem = record[columns["problem_id"]]
    reward = columns["reward"]
    filtered = record.get("filtered_resps") or [None]
    answers = filtered[0] if isinstance(filtered[0], list) else filtered
    if len(texts) == 1:
        scores: list[Any] = [record.get(reward, _MISSING)]
    elif reward in ("pass@1", "pass_at_1"):
        passes = round(float(record[reward]) * len(texts))
        scores = [1.0] * passes + [0.0] * (len(texts) - passes)
        answers = [None] * len(texts)  # which samples passed is not recorded
    elif len(answers) == len(texts):
        target = str(record.get("target")).strip()
        scores = [float(str(answer).strip() == target) for answer in answers]
    else:
        raise ValueError(
            f"document {problem} has {len(texts)} responses, but the filter "
            f"{record.get('filter')!r} kept {len(answers)}, so they cannot be scored one by one: "
            "choose a filter that keeps all with --where filter=..."
        )
    for number, (text, score) in enumerate(zip(texts, scores)):
        answer = answers[number] if number < len(answers) else None
        yield {"problem_id": problem, "completion": text, "reward": score, "answer": answer}


# evalplus: one JSON document, {"eval": {task: [{solution, base_status, plus_status}, ...]}}


def evalplus_records(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """One record per solution of an evalplus `*_eval_results.json`.

    passed: base and plus tests, as evalplus counts its headline number.
    """
    for task, results in document["eval"].items():
        for result in results:
            plus = result.get("plus_status")
            base = result.get("base_status") == "pass"
            passed = base and (plus is None or plus == "pass")
            yield {
                "task_id": task,
                "solution": result.get("solution"),
                "passed": passed,
                "base_passed": base,
            }


_MISSING = object()
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
        _lm_eval,
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
        if math.isinf(value):
            raise ValueError("the reward is infinite; write null where a sample was not scored")
        return float(value)
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
