"""How other tools write samples: an entry of `TOOLS` each, and a function where that is too little.

A new tool needs an entry: the columns that it is known by, and role → column. If a record holds
several samples, or a score of its own kind, `samples` turns it into samples by role; if the column
of the reward depends on the file, `choose` finds it. Records are read as the tool writes them:
whatever a damaged one raises becomes an error with its line (`files`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]
Columns: TypeAlias = Mapping[str, str]
SampleFields: TypeAlias = Iterable[dict[str, Any]]
"""The samples of a record, each by role."""
Choice: TypeAlias = tuple[dict[str, str], tuple[str, ...]]
"""Columns, and notes for whoever reads the numbers."""


def plain(record: Record, columns: Columns) -> SampleFields:
    """A record that is one sample."""
    fields = {role: record.get(column) for role, column in columns.items()}
    for role in ("problem_id", "reward"):
        if fields[role] is None and columns[role] not in record:
            raise ValueError(
                f"no field {columns[role]!r}, which holds the {role} of other lines: add it"
                + (" (null where a sample was not scored)" if role == "reward" else "")
                + f", or name another column with --map {role}=..."
            )
    if fields.get("status") == "unscored":
        fields["reward"] = None
    completion = fields.get("completion")
    if isinstance(completion, list):  # chat messages: what the assistant wrote
        fields["completion"] = "\n".join(
            str(message.get("content") or "")
            for message in completion
            if isinstance(message, Mapping) and message.get("role") in (None, "assistant")
        )
    yield fields


def the_only(names: Sequence[str], overrides: Columns, problem: str) -> str:
    """The column of the reward: the one that was named, or the only one there is.

    Args:
        problem: what the names are, with {} in their place.
    """
    if "reward" in overrides:
        return overrides["reward"]
    if len(names) != 1:
        listed, first = ", ".join(names) or "none", names[0] if names else "..."
        raise ValueError(f"{problem.format(listed)}: choose one with --map reward={first}")
    return names[0]


@dataclass(frozen=True)
class Tool:
    """How one tool writes samples."""

    name: str
    known_by: str
    """Columns that every record has."""
    mapping: str
    """Words role=column, or the name of both."""
    samples: Callable[[Record, Columns], SampleFields] = plain
    choose: Callable[[Record, Columns], Choice] | None = None
    """(record, overrides) → the columns that depend on the file."""
    inside: bool = False
    """Columns name something inside a record: a metric, a reward function."""

    def wrote(self, record: Record) -> bool:
        return set(self.known_by.split()) <= record.keys()

    @property
    def columns(self) -> dict[str, str]:
        """Role → column."""
        pairs = (word.partition("=") for word in self.mapping.split())
        return {role: column or role for role, _, column in pairs}


# Any tool: one record per problem, with an array of rewards, or with counts

LIST_ROLES = ("completion", "answer", "score", "status", "n_tokens", "logprob_sum")
MOST_COUNTED = 10_000_000


def arrays(record: Record, columns: Columns) -> SampleFields:
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
            if role in LIST_ROLES and isinstance(value, list | tuple):
                if len(value) != len(rewards):
                    raise ValueError(
                        f"{column!r} has {len(value)} entries and {columns['reward']!r} "
                        f"{len(rewards)}: arrays of one record must be equally long"
                    )
                sample[role] = value[number]
            else:  # said once per problem: no fact about the sample
                sample[role] = None if role in LIST_ROLES else value
        yield sample


def counts(record: Record, columns: Columns) -> SampleFields:
    """A record that says only how many of n samples passed."""
    n, c = (record.get(columns[role]) for role in ("n", "c"))
    try:
        total, passed = int(float(n)), int(float(c))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"n and c are whole numbers, got {n!r} and {c!r}") from None
    if not 0 <= passed <= total <= MOST_COUNTED:
        raise ValueError(f"c of n samples passed, so 0 ≤ c ≤ n; got c = {passed}, n = {total}")
    for reward in _counted(passed, total):
        yield {"problem_id": record.get(columns["problem_id"]), "reward": reward}


def _counted(passed: int, total: int) -> list[float]:
    """Scores of samples of which only the number that passed is known."""
    return [1.0] * passed + [0.0] * (total - passed)


# Responses that a tool did not score one by one: `--judge` compares each with the target

BY_JUDGE = "judged by "
JUDGE_NOTE = "each response is {} and compared with the target, as text"
JUDGE_HINT = (
    "state how to judge each response, with --judge 'regex:answer is (.+)' (its first group is "
    "compared with the target), or --judge target (the whole response is)"
)


def judged(texts: Sequence[Any], rule: str, targets: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The answer that each response gives, or None, and whether it is one of the targets.

    >>> judged(["the answer is 42.", "no"], r"judged by regex:answer is (\\d+)", [42])
    [('42', 1.0), (None, 0.0)]
    """
    right = {stripped(target) for target in targets}
    _, is_pattern, pattern = rule.partition("regex:")
    answers: list[str | None] = [stripped(text) for text in texts]
    if is_pattern:
        matches = [re.search(pattern, str(text)) for text in texts]
        answers = [match and match.group(1 if match.re.groups else 0) for match in matches]
    return [(answer, float(answer is not None and stripped(answer) in right)) for answer in answers]


def stripped(value: Any) -> str:
    return str(value).strip()


# lm-evaluation-harness: one record per document and filter, all its responses in `resps`

PASS_AT_1 = ("pass@1", "pass_at_1")


def lm_eval_metric(record: Record, overrides: Columns) -> Choice:
    """The metric that scores a document."""
    many = len(_listed(record, "resps")) > 1
    names = [str(name) for name in record.get("metrics", ())]
    numeric = [name for name in names if isinstance(record.get(name), int | float)]
    preferred = [name for name in (*PASS_AT_1, "exact_match", "acc") if name in numeric]
    reward = next(iter([*filter(None, [overrides.get("reward")]), *preferred, *numeric]), "")
    if reward and reward not in record:
        raise ValueError(f"no column {reward!r} for reward; have {', '.join(record)}")
    if not reward and not many:
        raise ValueError(
            f"no metric of this record is a number ({', '.join(names) or 'none'}): "
            "name one with --map reward=..."
        )
    note = "each filtered response is compared with the target, as text"
    if reward in PASS_AT_1:
        note = f"lm-eval keeps one {reward} per document: the passes are counted from it"
    return {"reward": reward or "filtered_resps == target"}, (note,) if many else ()


def _listed(record: Record, name: str) -> list[Any]:
    """A list, which is the first of a list in most files."""
    value = record.get(name) or []
    return list(value[0]) if value and isinstance(value[0], list) else list(value)


def lm_eval(record: Record, columns: Columns) -> SampleFields:
    """The responses of one document."""
    texts, reward, target = _listed(record, "resps"), columns["reward"], record.get("target")
    filtered, scored = _listed(record, "filtered_resps") or [None], list[tuple[Any, Any]]()
    if reward.startswith(BY_JUDGE):
        scored = judged(texts, reward, [target])
    elif len(texts) == 1:
        scored = [(filtered[0], record.get(reward))]
    elif reward in PASS_AT_1:  # which samples passed is not recorded
        passes = round(float(record[reward]) * len(texts))
        scored = [(None, score) for score in _counted(passes, len(texts))]
    elif len(filtered) == len(texts):
        scored = [(each, float(stripped(each) == stripped(target))) for each in filtered]
    else:
        raise ValueError(
            f"document {record['doc_id']} has {len(texts)} responses, and the filter "
            f"{record.get('filter')!r} kept {len(filtered)}: {JUDGE_HINT}"
        )
    for text, (answer, score) in zip(texts, scored):
        about = {"problem_id": record["doc_id"], "completion": text}
        yield {**about, "reward": score, "answer": answer}


# lighteval details: one record per document, with all its responses and one metric each

COUNTED = re.compile(r"(pass@k:k=1&n=|avg@n:n=)\d+")
"""Metrics that are a mean over the responses, so that the passes can be counted from them."""


def lighteval_metric(record: Record, overrides: Columns) -> Choice:
    """The metric that scores a document."""
    metrics = [name for name, value in record["metric"].items() if _is_number(value)]
    many = len(_texts(record)) > 1
    counted = [name for name in metrics if many and COUNTED.fullmatch(name)]
    problem = f"the document has {len(metrics)} metrics ({{}})"
    reward = the_only(counted[:1] or metrics, overrides, problem)
    note = (
        f"lighteval keeps one {reward} per document: the passes are counted from it, "
        "with scores of 0 and 1"
    )
    return {"reward": reward}, (note,) if many else ()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def _texts(record: Record) -> list[Any]:
    response = record["model_response"]
    texts = response.get("text_post_processed") or response.get("text") or []
    return list(texts) if isinstance(texts, list | tuple) else [texts]


def lighteval(record: Record, columns: Columns) -> SampleFields:
    """The responses of one document."""
    document, metrics, reward = record["doc"], record["metric"], columns["reward"]
    texts = _texts(record)
    about = {"problem_id": document.get("id"), "prompt": document.get("query")}
    if reward.startswith(BY_JUDGE):
        at = document["gold_index"]
        golds = [document["choices"][index] for index in (at if isinstance(at, list) else [at])]
        for text, (answer, right) in zip(texts, judged(texts, reward, golds)):
            yield {**about, "completion": text, "reward": right, "answer": answer}
        return
    if reward not in metrics:
        raise ValueError(f"no metric {reward!r} in this document; have {', '.join(metrics)}")
    value = metrics[reward] if _is_number(metrics[reward]) else None
    scores: list[Any] = [value] * len(texts)
    if len(texts) > 1 and value is not None:
        passes = round(value * len(texts))
        countable = math.isclose(passes, value * len(texts), abs_tol=1e-6)
        if not (countable and COUNTED.fullmatch(reward)):
            raise ValueError(
                f"document {document.get('id')} has {len(texts)} responses and one {reward} of "
                f"{value}, from which passes cannot be counted: {JUDGE_HINT}"
            )
        scores = _counted(passes, len(texts))
    for text, score in zip(texts, scores):
        yield {**about, "completion": text, "reward": score}


# inspect_ai: a log has one record per sample and epoch, with a score and an answer per scorer

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partial, incorrect and no answer, at the values that inspect gives them."""


def inspect_record(sample: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """A sample of a log (`spec` is its "eval") with its scores in columns of their own."""
    output = sample.get("output") or {}
    text = output.get("completion") or next(
        ((each.get("message") or {}).get("content") for each in output.get("choices") or ()), None
    )
    if isinstance(text, list):
        text = "".join(str(part.get("text", "")) for part in text)
    record: dict[str, Any] = {
        **{name: sample.get(name) for name in ("id", "epoch", "input", "target", "metadata")},
        **{name: spec.get(name) for name in ("model", "task")},
        "completion": text,
        "log": "inspect",
    }
    for scorer in spec.get("scorers") or ():  # a sample that failed has no scores
        record[f"score_{scorer.get('name')}"] = None
    for name, score in (sample.get("scores") or {}).items():
        value = score.get("value")
        if isinstance(value, Mapping):
            record.pop(f"score_{name}", None)
        for part, each in (value if isinstance(value, Mapping) else {"": value}).items():
            record[f"score_{name}" + (f".{part}" if part else "")] = each
        record[f"answer_{name}"] = score.get("answer")
    return record


def inspect_scorer(record: Record, overrides: Columns) -> Choice:
    """The scorer of a log, and its answers."""
    scores = [name for name in record if name.startswith("score_")]
    reward = the_only(scores, overrides, f"the log has {len(scores)} scores ({{}})")
    answer = f"answer_{reward.removeprefix('score_').partition('.')[0]}"
    return {"reward": reward, "answer": overrides.get("answer", answer)}, ()


def inspect_sample(record: Record, columns: Columns) -> SampleFields:
    """One sample; letters count by their value, and NaN is unscored."""
    fields = {role: record.get(column) for role, column in columns.items()}
    value = fields["reward"]
    if isinstance(value, str):
        fields["reward"] = GRADES.get(value.strip().upper(), value)
    yield fields


# evalplus: one JSON document, {"eval": {task: [{solution, base_status, plus_status}, ...]}}


def evalplus_records(results: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """One record per solution; it passes with base and plus tests, as evalplus counts."""
    for task, solutions in results.items():
        for one in solutions:
            base, plus = one.get("base_status") == "pass", one.get("plus_status")
            passed = {"passed": base and plus in (None, "pass"), "base_passed": base}
            yield {"task_id": task, "solution": one.get("solution"), **passed}


def openai_matches(
    lines: Iterable[tuple[int, dict[str, Any]]],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines of a log of OpenAI evals, known by the specification in its first one: its matches,
    one per sample drawn. Lines of other files as they are."""
    spec: Record | None = None
    for number, record in lines:
        if isinstance(record.get("spec"), Mapping) and "eval_name" in record["spec"]:
            spec = record["spec"]
        elif spec is None:
            yield number, record
        elif record.get("type") == "match":
            about = {
                "openai_eval": spec["eval_name"],
                "model": (spec.get("completion_fns") or [""])[0],
            }
            yield number, {**about, "sample_id": record["sample_id"], **record["data"]}


def promptfoo(result: Record, columns: Columns) -> SampleFields:
    """A result of promptfoo; a request that failed (failureReason 2) is unscored."""
    response, prompt = result.get("response") or {}, result.get("prompt") or {}
    broken = result.get("failureReason") == 2 or (result.get("error") and not response)
    raw = prompt.get("raw") if isinstance(prompt, Mapping) else prompt
    yield {
        "problem_id": result["vars"] or raw,
        "prompt": raw,
        "completion": response.get("output") if isinstance(response, Mapping) else response,
        "reward": None if broken else result[columns["reward"]],
    }


# verifiers: one line per episode, with the trace of every agent; or one line per rollout


def verifiers_episode(record: Record, columns: Columns) -> SampleFields:
    """The rollouts of one episode; a rollout that did not end well is unscored.

    The reward is the weighted sum of the reward functions, or one of them by name.
    """
    task, chosen = record["task"], columns["reward"]
    data = task.get("data") or {}
    named = task.get("key") or data.get("idx")
    problem = named if named is not None else data.get("id") or data.get("prompt")
    for trace in record["traces"]:
        rewards = {name: each for name, each in (trace.get("rewards") or {}).items() if each}
        if chosen == "rewards":
            parts = [float(r["score"]) * float(r.get("weight", 1.0)) for r in rewards.values()]
        elif not rewards or chosen in rewards:
            parts = [float(rewards[chosen]["score"])] if rewards else []
        else:
            raise ValueError(
                f"no reward function {chosen!r} in this rollout; have {', '.join(rewards)}"
            )
        texts = [
            node["message"].get("content")
            for node in trace.get("nodes") or ()
            if (node.get("message") or {}).get("role") == "assistant"
        ]
        yield {
            "problem_id": problem,
            "prompt": data.get("prompt"),
            "completion": texts[-1] if texts else None,
            "reward": sum(parts) if trace.get("ok") and rewards else None,
        }


def verifiers_rollout(record: Record, columns: Columns) -> SampleFields:
    """One rollout; one that broke is neither right nor wrong."""
    for fields in plain(record, columns):
        yield {**fields, "reward": None if record.get("error") else fields["reward"]}


# TRL: step, prompt, completion, one column per reward function, extra columns, advantage


def trl_reward(record: Record, overrides: Columns) -> Choice:
    """The column of TRL's only reward function."""
    other_columns = {"step", "prompt", "completion", "advantage"}
    numeric = [
        name
        for name, value in record.items()
        if name not in other_columns
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ]
    problem = "TRL logs one column per reward function and not their weights; this file has {}"
    names = ["reward"] if "reward" in numeric else numeric
    return {"reward": the_only(names, overrides, problem)}, ()


OURS = (
    "prompt completion answer reward score status finish_reason messages ended_by turns tool_errors"
)
LM_EVAL, LIGHTEVAL = "lm-evaluation-harness", "lighteval details"
JUDGED = (LM_EVAL, LIGHTEVAL)
"""Tools whose responses `--judge` can score."""
# fmt: off
TOOLS = (
    Tool("bestofk samples", "problem_id sample_id reward completion",
         f"problem_id sample_id {OURS} n_tokens logprob_sum"),
    Tool("bestofk run", "prompt_id sample reward completion",
         f"problem_id=prompt_id sample_id=sample {OURS} n_tokens=tokens logprob_sum=logprob"),
    Tool(LM_EVAL, "doc_id resps filtered_resps", "problem_id=doc_id",
         lm_eval, lm_eval_metric, inside=True),
    Tool(LIGHTEVAL, "doc metric model_response", "problem_id=doc",
         lighteval, lighteval_metric, inside=True),
    Tool("inspect log", "id epoch target log completion",
         "problem_id=id sample_id=epoch prompt=input completion", inspect_sample, inspect_scorer),
    Tool("inspect samples_df", "sample_id eval_id id epoch",
         "problem_id=id sample_id=epoch prompt=input", inspect_sample, inspect_scorer),
    Tool("verifiers traces", "task traces env", "problem_id=task reward=rewards",
         verifiers_episode, inside=True),
    Tool("verifiers results", "example_id prompt completion reward",
         "problem_id=example_id prompt completion reward", verifiers_rollout),
    Tool("verl rollouts", "input output score",
         "problem_id=input prompt=input completion=output reward=score answer=pred"),
    Tool("TRL completions", "step prompt completion advantage",
         "problem_id=prompt prompt completion", choose=trl_reward),
    Tool("HumanEval results", "task_id completion passed",
         "problem_id=task_id completion reward=passed"),
    Tool("OpenAI evals log", "openai_eval sample_id correct",
         "problem_id=sample_id completion=sampled answer=picked reward=correct"),
    Tool("promptfoo results", "vars provider success",
         "problem_id=vars prompt completion=response reward=success", promptfoo),
    Tool("evalplus results", "task_id solution passed base_passed",
         "problem_id=task_id completion=solution reward=passed"),
)
# fmt: on
