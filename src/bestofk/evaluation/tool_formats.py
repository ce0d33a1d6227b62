"""Records of many samples, as tools write them: lm-eval, evalplus, verifiers, arrays and counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]
LIST_ROLES = ("completion", "answer", "status", "n_tokens", "logprob_sum", "new_logprob_sum")
MOST_COUNTED = 10_000_000


# TRL: step, prompt, completion, one column per reward function, extra columns, advantage


def trl_reward(record: Record) -> str:
    """The column of TRL's only reward function."""
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
            f"{', '.join(numeric) or 'none'}: choose one with --map reward=..."
        )
    return numeric[0]


# lm-evaluation-harness: one record per document and filter, all its responses in `resps`


def lm_eval_metric(record: Record, judge: str | None) -> str:
    """The metric that scores a document, or how its responses are judged one by one."""
    if judge:
        return f"judged by {judge}"
    metrics = [str(name) for name in record.get("metrics", ())]
    preferred = ("pass@1", "pass_at_1", "exact_match", "acc")
    for name in (*preferred, *metrics):
        if name in metrics and isinstance(record.get(name), int | float):
            return name
    if len(responses(record)) > 1:
        return "filtered_resps == target"
    raise ValueError(
        f"no metric of this record is a number ({', '.join(metrics) or 'none'}): "
        "name one with --map reward=..."
    )


def lm_eval_notes(record: Record, reward: str) -> tuple[str, ...]:
    if reward.startswith("judged by"):
        return (f"each response is {reward} and compared with the target, as text",)
    if len(responses(record)) < 2:
        return ()
    if reward in ("pass@1", "pass_at_1"):
        return (f"lm-eval keeps one {reward} per document: the passes are counted from it",)
    return ("each filtered response is compared with the target, as text",)


def responses(record: Record) -> list[Any]:
    """All responses to a document."""
    return _listed(record, "resps", [])


def _listed(record: Record, name: str, default: list[Any]) -> list[Any]:
    """A list, which is the first of a list in most files."""
    value = record.get(name) or default
    if not isinstance(value, list):
        raise ValueError(f"{name} is a list of responses, got {value!r:.60}")
    return list(value[0]) if value and isinstance(value[0], list) else list(value)


def lm_eval(record: Record, columns: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    """The responses of one document.

    Raises:
        ValueError: a filter kept fewer responses than there are, and nothing says how to judge.
    """
    texts = responses(record)
    problem = record[columns["problem_id"]]
    reward = columns["reward"]
    target = plain(record.get("target"))
    answers = _listed(record, "filtered_resps", [None])
    if reward.startswith("judged by "):
        answers = [judged(text, reward.removeprefix("judged by ")) for text in texts]
        scores: list[Any] = [float(a is not None and plain(a) == target) for a in answers]
    elif len(texts) == 1:
        scores = [record.get(reward, float("nan"))]
    elif reward in ("pass@1", "pass_at_1"):
        passes = round(float(record[reward]) * len(texts))
        scores = [1.0] * passes + [0.0] * (len(texts) - passes)
        answers = [None] * len(texts)  # which samples passed is not recorded
    elif len(answers) == len(texts):
        scores = [float(plain(answer) == target) for answer in answers]
    else:
        raise ValueError(
            f"document {problem} has {len(texts)} responses, and the filter "
            f"{record.get('filter')!r} kept {len(answers)}: state how to judge each response, with "
            "--judge 'regex:answer is (.+)' (its first group is compared with the target), or "
            "--judge target (the whole response is)"
        )
    for number, (text, score) in enumerate(zip(texts, scores)):
        answer = answers[number] if number < len(answers) else None
        yield {"problem_id": problem, "completion": text, "reward": score, "answer": answer}


def judged(text: Any, judge: str) -> str | None:
    """The answer that a response gives, or None.

    >>> judged("the answer is 42.", r"regex:answer is (\\d+)"), judged("yes ", "target")
    ('42', 'yes')
    """
    if judge == "target":
        return str(text).strip()
    result = re.search(judge.removeprefix("regex:"), str(text))
    if result is None:
        return None
    return result.group(1) if result.re.groups else result.group(0)


def check_judge(judge: str | None) -> None:
    """
    Raises:
        ValueError: a rule that does not exist, or a pattern that is not one.
    """
    if not judge or judge == "target":
        return
    if not judge.startswith("regex:"):
        raise ValueError(f"--judge is 'target' or 'regex:PATTERN', got {judge!r}")
    try:
        re.compile(judge.removeprefix("regex:"))
    except re.error as error:
        raise ValueError(f"--judge has a pattern that is not valid ({error}): {judge!r}") from None


def plain(value: Any) -> str:
    return str(value).strip()


# evalplus: one JSON document, {"eval": {task: [{solution, base_status, plus_status}, ...]}}


def is_evalplus(document: Any) -> bool:
    results = document.get("eval") if isinstance(document, Mapping) else None
    return (
        isinstance(results, Mapping)
        and bool(results)
        and all(
            isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows)
            for rows in results.values()
        )
    )


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


# verifiers: one line per episode, with the trace of every agent


def verifiers_episode(record: Record, columns: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    """The rollouts of one episode; a rollout that did not end well is unscored.

    The reward is the weighted sum of the reward functions, or one of them by name.
    """
    task = record["task"]
    data = task.get("data") or {}
    problem = task.get("key") or data.get("id") or data.get("idx") or data.get("prompt")
    if data.get("idx") is not None and not task.get("key"):
        problem = data["idx"]
    chosen = columns["reward"]
    for trace in record["traces"]:
        rewards = {name: each for name, each in (trace.get("rewards") or {}).items() if each}
        if chosen != "rewards" and chosen not in rewards and rewards:
            raise ValueError(
                f"no reward function {chosen!r} in this rollout; have {', '.join(rewards)}"
            )
        wanted = rewards if chosen == "rewards" else {chosen: rewards.get(chosen)}
        scored = bool(trace.get("ok")) and bool(rewards)
        total = sum(
            float(each["score"]) * (float(each.get("weight", 1.0)) if chosen == "rewards" else 1.0)
            for each in wanted.values()
            if each
        )
        stated = [
            node["message"].get("content")
            for node in trace.get("nodes") or ()
            if (node.get("message") or {}).get("role") == "assistant"
        ]
        yield {
            "problem_id": problem,
            "prompt": data.get("prompt"),
            "completion": stated[-1] if stated else None,
            "reward": total if scored else None,
        }


# Any tool: one record per problem, with an array of rewards, or with counts


def per_problem_arrays(record: Record, columns: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    """A record whose reward is an array: one sample per entry.

    Other columns that are arrays of the same length belong to the samples, the rest to the problem.
    """
    rewards = record.get(columns["reward"])
    if not isinstance(rewards, list | tuple):
        raise ValueError(
            f"{columns['reward']!r} is an array in other records, and "
            f"{type(rewards).__name__} here: every record needs one reward per sample"
        )
    for number, reward in enumerate(rewards):
        sample = {"problem_id": record.get(columns["problem_id"]), "reward": reward}
        for role, column in columns.items():
            if role in sample or role == "sample_id":
                continue
            value = record.get(column)
            if isinstance(value, list | tuple) and role in LIST_ROLES:
                if len(value) != len(rewards):
                    raise ValueError(
                        f"{column!r} has {len(value)} entries and {columns['reward']!r} "
                        f"{len(rewards)}: arrays of one record must be equally long"
                    )
                value = value[number]
            elif role in LIST_ROLES:
                value = None  # said once per problem: not a fact about the sample
            sample[role] = value
        yield sample


def counts(record: Record, columns: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    """A record that says only how many of n samples passed."""
    n, c = (record.get(columns[role]) for role in ("n", "c"))
    try:
        total, passed = int(float(n)), int(float(c))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"n and c are whole numbers, got {n!r} and {c!r}") from None
    if not 0 <= passed <= total <= MOST_COUNTED:
        raise ValueError(f"c of n samples passed, so 0 ≤ c ≤ n; got c = {passed}, n = {total}")
    problem = record.get(columns["problem_id"])
    for number in range(total):
        yield {"problem_id": problem, "reward": float(number < passed)}
