"""The details of lighteval: one record per document, with all its responses and one metric each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .tool_formats import Record, judged, plain

COUNTED = re.compile(r"(pass@k:k=1&n=|avg@n:n=)\d+")
"""Metrics that are a mean over the responses, so that the passes can be counted from them."""


def lighteval_metric(record: Record, judge: str | None) -> str:
    """The metric that scores a document, or how its responses are judged one by one.

    Raises:
        ValueError: no metric is a number, or several are and none is preferred.
    """
    if judge:
        return f"judged by {judge}"
    metrics = [name for name, value in _table(record, "metric").items() if _is_number(value)]
    counted = [name for name in metrics if COUNTED.fullmatch(name)]
    if len(_texts(record)) > 1 and counted:
        return counted[0]
    if len(metrics) == 1:
        return metrics[0]
    listed = ", ".join(metrics)
    raise ValueError(
        f"the document has {len(metrics)} metrics ({listed or 'none'}): choose one with "
        f"--map reward={metrics[0] if metrics else '...'}"
    )


def lighteval_notes(record: Record, reward: str) -> tuple[str, ...]:
    if reward.startswith("judged by"):
        return (f"each response is {reward} and compared with the target, as text",)
    if len(_texts(record)) < 2:
        return ()
    return (
        f"lighteval keeps one {reward} per document: the passes are counted from it, "
        "with scores of 0 and 1",
    )


def lighteval(record: Record, columns: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    """The responses of one document.

    Raises:
        ValueError: several responses, and a metric from which no passes can be counted.
    """
    document, reward, texts = _table(record, "doc"), columns["reward"], _texts(record)
    about = {"problem_id": document.get("id"), "prompt": document.get("query")}
    if not reward.startswith("judged by "):
        for text, score in zip(texts, _scores(record, reward, len(texts))):
            yield {**about, "completion": text, "reward": score}
        return
    golds = _golds(document)
    for text in texts:
        answer = judged(text, reward.removeprefix("judged by "))
        right = float(answer is not None and plain(answer) in golds)
        yield {**about, "completion": text, "reward": right, "answer": answer}


def _scores(record: Record, reward: str, responses: int) -> list[Any]:
    metrics = _table(record, "metric")
    if reward not in metrics:
        raise ValueError(f"no metric {reward!r} in this document; have {', '.join(metrics)}")
    value = metrics[reward]
    if responses == 1 or not _is_number(value):
        return [value if _is_number(value) else None] * responses
    passes = round(value * responses)
    if not COUNTED.fullmatch(reward) or not math.isclose(passes, value * responses, abs_tol=1e-6):
        raise ValueError(
            f"document {record['doc'].get('id')} has {responses} responses and one {reward} of "
            f"{value}, from which passes cannot be counted: state how to judge each response, with "
            "--judge 'regex:answer is (.+)' (its first group is compared with the target), or "
            "--judge target (the whole response is)"
        )
    return [1.0] * passes + [0.0] * (responses - passes)


def _table(record: Record, name: str) -> Mapping[str, Any]:
    value = record[name]
    if not isinstance(value, Mapping):
        raise ValueError(f"{name!r} of a lighteval record is a table, got {str(value)[:60]!r}")
    return value


def _texts(record: Record) -> list[Any]:
    response = _table(record, "model_response")
    texts = response.get("text_post_processed") or response.get("text") or []
    return list(texts) if isinstance(texts, list | tuple) else [texts]


def _golds(document: Mapping[str, Any]) -> set[str]:
    at = document.get("gold_index")
    chosen = at if isinstance(at, list | tuple) else [at]
    try:
        return {plain(document["choices"][index]) for index in chosen}
    except (KeyError, IndexError, TypeError):
        raise ValueError(
            "the document has no choice at its gold_index, so --judge has no target"
        ) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)
