"""Which samples go on the page, and how much of each.

A page that opens at once cannot hold a million completions. It holds, of every problem it can, the
best sample of each run, those that were the best of the first 1, 2, 4, … drawn, and the first ones;
of a long completion its beginning and its end. What was left out is said on the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bestofk.types import reaches

from .sources import Source

HEAD = 2000
TAIL = 1000
"""Characters kept of a longer completion: answers stand at the end."""
MESSAGES = 16
"""Messages of a longer trajectory: its first and its last ones."""
LEAST = 2
"""Samples per problem and run worth showing at all."""


def bests(rewards: np.ndarray) -> list[tuple[int, int]]:
    """(k, index of the best of the first k) at every power of two below n, and at n.

    The first of equals counts, as it would for somebody who draws one after another; an unscored
    sample never does.

    >>> bests(np.array([0.0, 0.5, np.nan, 1.0, 1.0]))
    [(1, 0), (2, 1), (4, 3), (5, 3)]
    """
    depths = sorted({2**i for i in range(64) if 2**i < rewards.size} | {rewards.size})
    result = []
    for k in depths:
        first = rewards[:k]
        if not np.isnan(first).all():
            result.append((k, int(np.nanargmax(first))))
    return result


def choose(rewards: np.ndarray, quota: int) -> list[int]:
    """Up to `quota` indices: the best of all, the bests of the first 1, 2, 4, …, then the first.

    >>> choose(np.array([0.0, 0.0, 0.5, 0.0, 0.0, 1.0]), 3)
    [0, 2, 5]
    """
    winners = [index for _, index in reversed(bests(rewards))]
    order = dict.fromkeys([*winners[:1], *winners[:0:-1], *range(rewards.size)])
    return sorted(list(order)[:quota])


def shares(
    groups: Sequence[int], interesting: Sequence[bool], runs: int, limit: int
) -> tuple[list[int], int]:
    """Which problems to show and how many samples of each run, within `limit` samples.

    Problems that some runs solve and others do not come first, the rest evenly spread over the set.
    """
    affordable = limit // (LEAST * max(runs, 1))
    if affordable >= len(groups):
        return list(groups), limit // max(1, len(groups) * runs)
    first = [p for p, mark in zip(groups, interesting) if mark][:affordable]
    rest = [p for p, mark in zip(groups, interesting) if not mark]
    picks = np.linspace(0, len(rest) - 1, affordable - len(first)).round().astype(int)
    return sorted({*first, *(rest[i] for i in picks)}), LEAST


def cut(text: str, head: int = HEAD, tail: int = TAIL) -> dict[str, Any]:
    """A completion, or its beginning and end with the number of characters between.

    >>> cut("short"), cut("a long one", 3, 2)
    ({'t': 'short', 'e': None, 'cut': 0}, {'t': 'a l', 'e': 'ne', 'cut': 5})
    """
    if len(text) <= head + tail:
        return {"t": text, "e": None, "cut": 0}
    return {"t": text[:head], "e": text[-tail:], "cut": len(text) - head - tail}


def fair_share(sizes: Sequence[int], room: int) -> int:
    """The most that one text may have so that all together fit: short ones leave theirs to others.

    >>> fair_share([10, 900, 500], 1000)
    495
    """
    for place, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - place)
        if size > share:
            return share
        room -= size
    return room + max(sizes, default=0)


def conversation(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A trajectory's first and last messages, cut so that together they have a completion's room.

    >>> talk = conversation([{"role": "assistant", "content": "2?"}] * 30)
    >>> len(talk["messages"]), talk["omitted"], talk["messages"][0]["t"]
    (16, 14, '2?')
    """
    omitted = max(0, len(messages) - MESSAGES)
    ends = [*messages[: MESSAGES // 2], *messages[MESSAGES // 2 + omitted :]]
    texts = [str(each.get("content") or "") for each in ends]
    share = fair_share([len(text) for text in texts], HEAD + TAIL)
    shown = [
        {
            "role": str(each.get("role")),
            "name": each.get("name"),
            **cut(text, share - share // 3, share // 3),
        }
        for each, text in zip(ends, texts)
    ]
    return {"messages": shown, "omitted": omitted}


def item(index: int, reward: float, status: int | None, row: Mapping[str, Any]) -> dict[str, Any]:
    """One sample as the page reads it; `row` is what its file says."""
    answer, messages = row.get("answer"), row.get("messages")
    if isinstance(messages, list) and all(isinstance(each, Mapping) for each in messages):
        ending = {name: row.get(name) for name in ("ended_by", "turns", "tool_errors")}
        shown = ending | conversation(messages)
    else:
        shown = cut(str(row.get("completion") or ""))
    return {
        "i": index + 1,
        "r": reward,
        "s": status,
        "a": None if answer is None else str(answer)[:200],
        "f": row.get("finish_reason"),
        "n": row.get("n_tokens"),
        **{name: row[name] for name in ("score", "seed") if row.get(name) is not None},
        **shown,
    }


def excerpts(
    sources: Sequence[Source],
    problems: Sequence[str],
    passes: np.ndarray,
    threshold: float | None,
    limit: int,
) -> dict[str, Any] | None:
    """The samples that go on the page, at most about `limit`, grouped by problem and run; None
    where there are none to show.

    Args:
        problems: every problem of any run; the page knows a problem by its place in it.
        passes: (runs with samples, problems) passing samples, NaN where a run has none of it.
    """
    sampled = [(i, source.samples) for i, source in enumerate(sources) if source.samples]
    if not sampled or limit < 1:
        return None
    hits = np.nan_to_num(passes) > 0
    split = hits.any(axis=0) & ~hits.all(axis=0)
    chosen, quota = shares(range(len(problems)), split.tolist(), len(sampled), limit)
    if not chosen:
        return None
    shown: dict[int, dict[str, Any]] = {
        place: {"problem": place, "prompt": None, "runs": []} for place in chosen
    }
    statuses: dict[str, int] = {}
    for run, samples in sampled:
        row_of = {problem: row for row, problem in enumerate(samples.problems)}
        spans = {
            place: samples.of(row_of[problems[place]])
            for place in chosen
            if problems[place] in row_of
        }
        picks = {place: choose(samples.rewards[at], quota) for place, at in spans.items()}
        flat = [spans[place].start + index for place, picked in picks.items() for index in picked]
        rows = sources[run].fetch(flat)
        for place, at in spans.items():
            texts = {index: rows.get(at.start + index, {}) for index in picks[place]}
            group = group_of(run, samples.rewards[at], texts, threshold, statuses)
            shown[place]["runs"].append(group)
            reported = (row["prompt"] for row in texts.values() if row.get("prompt") is not None)
            shown[place]["prompt"] = shown[place]["prompt"] or next(
                map(prompt_text, reported), None
            )
    return {
        "problems": list(shown.values()),
        "statuses": list(statuses),
        "total": sum(samples.rewards.size for _, samples in sampled),
        "shown": sum(len(group["items"]) for one in shown.values() for group in one["runs"]),
        "rule": rule(len(chosen), len(problems)),
    }


def group_of(
    run: int,
    rewards: np.ndarray,
    texts: Mapping[int, Mapping[str, Any]],
    threshold: float | None,
    statuses: dict[str, int],
) -> dict[str, Any]:
    """One problem's samples in one run; `statuses` numbers the statuses met, and grows."""
    scored = rewards[~np.isnan(rewards)]
    items = []
    for index, row in texts.items():
        status = row.get("status")
        number = None if status is None else statuses.setdefault(str(status), len(statuses))
        items.append(item(index, float(rewards[index]), number, row))
    return {
        "run": run,
        "n": int(rewards.size),
        "scored": int(scored.size),
        "passed": None if threshold is None else int(reaches(scored, threshold).sum()),
        "best_reward": float(scored.max()) if scored.size else None,
        "best": [(k, index + 1) for k, index in bests(rewards)],
        "items": items,
    }


def prompt_text(prompt: Any) -> str:
    """A prompt as text: chat messages one after another, each under its role.

    >>> print(prompt_text([{"role": "user", "content": "2 + 2?"}]))
    [user]
    2 + 2?
    """
    if isinstance(prompt, str):
        return cut_middle(prompt)
    if isinstance(prompt, list | tuple) and all(isinstance(m, Mapping) for m in prompt):
        parts = (f"[{m.get('role', '?')}]\n{m.get('content', '')}" for m in prompt)
        return cut_middle("\n\n".join(parts))
    return cut_middle(json.dumps(prompt, ensure_ascii=False, default=str))


def cut_middle(text: str) -> str:
    parts = cut(text)
    if not parts["cut"]:
        return text
    return f"{parts['t']}\n… {parts['cut']} characters are left out here …\n{parts['e']}"


def rule(shown: int, problems: int) -> str:
    """What is on the page, in a sentence."""
    which = "each problem" if shown == problems else f"{shown} of {problems} problems"
    first = "" if shown == problems else " (those that only some runs solve first)"
    return (
        f"Shown for {which}{first}: the best sample, the best of the first 1, 2, 4, … drawn, and "
        f"the first few. Completions above {HEAD + TAIL} characters show their first {HEAD} and "
        f"last {TAIL}."
    )
