"""The value of every problem at every k: the table (P, K) behind curves and comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from bestofk.messages import unknown
from bestofk.procedures import MAX, PROCEDURES, SELECT, SUBSETS
from bestofk.procedures.estimates import zero_one
from bestofk.procedures.grouping import gather, lay_out, scatter_groups
from bestofk.procedures.majority import ballots, whole_votes
from bestofk.procedures.retries import draws_by_k as expected_draws
from bestofk.procedures.subsets import SETS, Worth, worths
from bestofk.samples import Samples

from .results import METRICS, Metric
from .verdict_words import ATLEAST
from .voting import exact_takes_too_long, numbered_within, vote_in_orders

CurveOf: TypeAlias = Callable[..., np.ndarray]
"""(rewards (g, n), k_max, inputs by name) → (g, k_max), as `Procedure.curve`."""


@dataclass(frozen=True)
class MetricRules:
    """What a metric is defined by beside its name."""

    threshold: float | None = None
    """A reward of at least this passes."""
    price: float = 0.0
    """Of one draw, for retry@k; of one token, for retry@k:tokens."""
    value: Worth | None = None
    """What k samples are worth, for subsets@k."""
    ends: tuple[float, float] = (0.0, 1.0)
    """Between which `value` lies."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Whose function was used."""
        name = getattr(self.value, "__qualname__", repr(self.value))
        said = f"subsets@k is the mean of {name} over sets of k samples: all, or {SETS} or more"
        return () if self.value is None else (said,)


def rules_of(
    metrics: Sequence[str],
    *,
    threshold: float | None = None,
    price: float = 0.0,
    value: Worth | None = None,
    bounds: tuple[float, float] | None = None,
) -> MetricRules:
    """An error where a metric or an option is none, or where an option is missing or is of none."""
    for each in metrics:
        check_metric(each)
    if not 0 <= price < math.inf:
        raise ValueError(f"price is what one draw costs, a number of at least 0, got {price!r}")
    if price and not any(each.startswith("retry@k") for each in metrics):
        raise ValueError(f"a price of draws is for retry@k, and the metric is {metrics[0]}")
    if value is None and SUBSETS.metric in metrics:
        raise ValueError("subsets@k is a function of yours: --value file.py:name, in Python value=")
    if value is not None and SUBSETS.metric not in metrics:
        raise ValueError(f"a function of k samples is for subsets@k, the metric is {metrics[0]}")
    if bounds is not None and not bounds[0] < bounds[1]:
        raise ValueError(f"bounds are a lower and a greater upper end, got {bounds}")
    return MetricRules(threshold, price, value, bounds or (0.0, 1.0))


def options_of(metric: str, price: float, value: Worth | None = None) -> dict[str, Any]:
    """Of price and function those that are the metric's, where several metrics share them."""
    own = value if metric == SUBSETS.metric else None
    return {"price": price * metric.startswith("retry@k"), "value": own}


def passing(samples: Samples, threshold: float | None) -> np.ndarray:
    """(N,) 1 where a sample passes (reward ≥ threshold), 0 where it fails; NaN stays NaN."""
    rewards = samples.rewards
    if threshold is None and not is_zero_one(samples):
        first = int((~np.isin(rewards, (0, 1)) & ~np.isnan(rewards)).argmax())
        problem = samples.problems[int(np.searchsorted(samples.offsets, first, side="right")) - 1]
        raise ValueError(
            f"{samples.name}: pass@k needs a definition of pass; problem {problem!r} has a reward "
            f"of {rewards[first]:g}, neither 0 nor 1: state --threshold (reward ≥ threshold "
            "passes), or ask for max@k, which takes real rewards"
        )
    return zero_one(rewards, threshold, "pass@k", check=False)


def passes_and_samples(samples: Samples, threshold: float | None) -> tuple[np.ndarray, np.ndarray]:
    """(P,) passing and scored samples of each problem."""
    return samples.count(passing(samples, threshold) == 1), samples.live


def is_zero_one(samples: Samples) -> bool:
    """Whether every scored reward is 0 or 1."""
    return bool((np.isin(samples.rewards, (0, 1)) | np.isnan(samples.rewards)).all())


def default_metric(runs: Sequence[Samples], threshold: float | None) -> Metric:
    """pass@k where rewards are 0 and 1 or a threshold is stated, else max@k."""
    return "pass@k" if threshold is not None or all(map(is_zero_one, runs)) else "max@k"


def pass_curve(passes: np.ndarray, samples: np.ndarray, k_max: int) -> np.ndarray:
    """1 - C(n-c, k)/C(n, k) for k = 1..k_max, ragged n ≥ k_max: (P, k_max).

    By the recurrence C(n-c, k+1)/C(n, k+1) = C(n-c, k)/C(n, k) · (n-c-k)/(n-k).
    """
    j = np.arange(k_max)
    c, n = passes[:, None], samples[:, None]
    missed = np.maximum(n - c - j, 0) / (n - j)
    return 1.0 - np.cumprod(missed, axis=1, out=missed)


def at_least_curve(passes: np.ndarray, samples: np.ndarray, m: int, k_max: int) -> np.ndarray:
    """Chance that m or more of k pass, for k = 1..k_max, ragged n ≥ k_max: (P, k_max).

    Σ over the draw that brings the m-th pass: of d before it exactly m - 1 pass, with chance h_d,
    and it passes, with chance (c-m+1)/(n-d). h_{d+1}/h_d = (d+1)/(d-m+2) · (n-c-d+m-1)/(n-d).
    """
    c, n = passes[:, None], samples[:, None]
    chances = np.zeros((len(passes), k_max))
    d, first = np.arange(m - 1, k_max), np.arange(m - 1)
    h = np.prod(np.maximum(c - first, 0) / np.maximum(n - first, 1), axis=1, keepdims=True)
    growth = (d + 1) / (d - m + 2) * np.maximum(n - c - d + m - 1, 0) / (n - d)
    h = h * np.cumprod(np.concatenate([np.ones_like(h), growth[:, :-1]], axis=1), axis=1)
    chances[:, m - 1 :] = np.cumsum(h * np.maximum(c - m + 1, 0) / (n - d), axis=1)
    return chances


def values_by_k(
    samples: Samples,
    metric: Metric,
    rows: np.ndarray,
    k: np.ndarray,
    rules: MetricRules,
    *,
    seed: int = 0,
) -> np.ndarray:
    """The unbiased estimate of `metric` for each problem of `rows` and every k: (P', K).

    Args:
        rows: indices of the problems that count; each has at least as many scored samples as the
            largest k.
    """
    if metric == SUBSETS.metric:
        return _of_own(np.mean, samples, rows, k, rules)
    k_max, threshold = int(k.max()), rules.threshold
    if metric.startswith(("pass", "atleast")):
        passes, live = passes_and_samples(samples, threshold)
        passes, live = passes[rows], live[rows]
        if metric == "pass@k":
            return pass_curve(passes, live, k_max)[:, k - 1]
        if count := ATLEAST.fullmatch(metric):
            return at_least_curve(passes, live, int(count[1]), k_max)[:, k - 1]
        return 1.0 - pass_curve(live - passes, live, k_max)[:, k - 1]
    how, rewards, needs, groups = _what_is_used(samples, metric, rows, threshold)
    if "answers" in needs:
        answers, votes = ballots(needs["answers"], needs.get("scores"))
        sizes = np.bincount(groups)
        if exact_takes_too_long(sizes, votes, k_max):
            ties = how.arguments["ties"]  # type: ignore[attr-defined]
            return vote_in_orders(rewards, answers, votes, sizes, k_max, seed, ties)[:, k - 1]
    values = _by_problem(how, k_max, groups, rewards, **needs)
    if rules.price and metric.startswith("retry@k"):
        tokens = tokens_of(samples) if metric == "retry@k:tokens" else None
        values = values - rules.price * draws_by_k(samples, rows, k_max, threshold, tokens)
    return values[:, k - 1]


def _of_own(
    statistic: Callable[..., np.ndarray],
    samples: Samples,
    rows: np.ndarray,
    k: np.ndarray,
    rules: MetricRules,
) -> np.ndarray:
    """A statistic over sets of what one's own function says of them: (P', K)."""
    values = np.empty((len(rows), len(k)))
    for place, row in enumerate(rows):
        at = samples.offsets[row] + np.flatnonzero(~np.isnan(samples.rewards[samples.of(row)]))
        scores = None if samples.scores is None else samples.scores[None, at]
        answers = None if samples.answers is None else samples.answers[None, at].astype(object)
        if answers is not None:
            answers[answers < 0] = None
        own: Any = {"value": rules.value, "ends": rules.ends, "scores": scores, "answers": answers}
        own["sets"] = max(SETS, len(at))  # a design needs them for k = 1
        sets = (worths(samples.rewards[None, at], int(each), **own) for each in k)
        values[place] = [statistic(each) for each in sets]
    return values


def variance_of_own(
    samples: Samples, rows: np.ndarray, k: np.ndarray, rules: MetricRules
) -> np.ndarray:
    """At most Var(estimate) of each problem by one's own function: (P', K).

    As for other metrics from the spread over sets of k, and a little more, because not all sets may
    be evaluated. Where k is over half of the samples, the largest variance there can be.
    """
    live = samples.live[rows].astype(float)[:, None]
    largest = (rules.ends[1] - rules.ends[0]) ** 2 / 4
    share = k / np.maximum(live - k, 1.0) + 1.0 / SETS
    spread = share * _of_own(np.var, samples, rows, k, rules)
    return np.where(2 * k <= live, np.minimum(spread, largest), largest)


def tokens_of(samples: Samples) -> np.ndarray:
    """Tokens of each sample, or an error where one has none."""
    scored = ~np.isnan(samples.rewards)
    if samples.tokens is None or not (samples.tokens[scored] >= 0).all():
        raise ValueError(
            f"{samples.name}: retry@k:tokens needs the tokens of every scored sample, and not all "
            "have some: name their column with --map n_tokens=COLUMN"
        )
    return samples.tokens


def costs_of_a_draw(samples: Samples, metric: Metric) -> tuple[float, float]:
    """The least and the most that a draw takes, in what has the price."""
    if metric != "retry@k:tokens":
        return 1.0, 1.0
    tokens = tokens_of(samples)
    return float(np.nanmin(tokens)), float(np.nanmax(tokens))


def _what_is_used(
    samples: Samples, metric: Metric, rows: np.ndarray, threshold: float | None
) -> tuple[CurveOf, np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """The curve of how one of k is chosen; and of the scored samples their rewards, what chooses by
    its name, and the place of their problem in `rows`."""
    rewards, groups, live = _scored(samples, rows)
    if metric in ("max@k", "mean"):
        return MAX.curve, rewards, {}, groups
    if metric.startswith("retry@k"):  # the first that passes, else the best
        passed = passing(samples, threshold)[live] == 1
        return SELECT.curve, rewards, {"scores": np.where(passed, np.inf, rewards)}, groups
    procedure, needs = PROCEDURES[metric], {}
    if "answers" in procedure.needs:
        if samples.answers is None:
            raise ValueError(
                f"{samples.name}: {metric} needs the answers that vote, and no column that all "
                "samples have was read for them: name it with --map answer=..."
            )
        needs["answers"] = numbered_within(samples.answers[live], np.bincount(groups))
    if "scores" in procedure.needs:
        needs["scores"] = _scores(samples, metric, live, rows[groups])
    if "answers" in needs or threshold is not None:
        rewards = passing(samples, threshold)[live]
    return procedure.curve, rewards, needs, groups


def _scores(samples: Samples, metric: Metric, live: np.ndarray, problems: np.ndarray) -> np.ndarray:
    """The scores of the scored samples, and an error where one has none."""
    if samples.scores is None:
        raise ValueError(
            f"{samples.name}: {metric} needs the scores that choose, and no column with "
            "numbers was read for them: name it with --scores COLUMN, or --map score=COLUMN"
        )
    scores = samples.scores[live]
    if np.isnan(scores).any():
        problem = samples.problems[problems[np.isnan(scores).argmax()]]
        way_out = "0, and it does not vote" if "weighted" in metric else "-Infinity"
        raise ValueError(
            f"{samples.name}: {metric} needs a score for every scored sample, and a sample of "
            f"problem {problem!r} has none: give one that cannot be chosen {way_out}"
        )
    if "weighted" in metric:
        try:
            whole_votes(scores)
        except ValueError as error:
            raise ValueError(f"{samples.name}: {error}") from None
    return scores


def _by_problem(
    curve: CurveOf, k_max: int, groups: np.ndarray, rewards: np.ndarray, **needs: np.ndarray
) -> np.ndarray:
    """The curve of every problem, (P', k_max), from arrays of samples; it takes problems of one
    size together, as (g, n)."""
    layout = lay_out(rewards, groups=groups, minimum=k_max, small_groups="error")
    pieces = []
    for bucket in layout.buckets:
        named = {name: gather(each, bucket) for name, each in needs.items()}
        pieces.append(curve(gather(rewards, bucket), k_max, **named))
    return np.asarray(scatter_groups(pieces, layout, rewards))


def draws_by_k(
    samples: Samples,
    rows: np.ndarray,
    k_max: int,
    threshold: float | None,
    costs: np.ndarray | None = None,
) -> np.ndarray:
    """Expected cost of drawing until a sample passes, at most k: (P', k_max); by default, draws."""
    _, groups, live = _scored(samples, rows)
    passed = passing(samples, threshold)[live]
    tokens = np.ones(len(passed)) if costs is None else costs[live]
    return _by_problem(expected_draws, k_max, groups, passed, tokens=tokens)


def _scored(samples: Samples, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scored rewards of the problems in `rows`, for each the place of its problem there, and where
    in the samples they stand."""
    place = np.full(len(samples.problems), -1)
    place[rows] = np.arange(len(rows))
    groups = np.repeat(place, samples.sizes)
    live = (groups >= 0) & ~np.isnan(samples.rewards)
    return samples.rewards[live], groups[live], live


def variance_of_one(
    samples: Samples, metric: Metric, rows: np.ndarray, k_max: int, rules: MetricRules
) -> np.ndarray:
    """Var(result of k) over the k-subsets of each problem: (P', k_max). For the fixed-set interval.

    The price of draws adds at most what one that costs least or k that cost most would.
    """
    how, rewards, scores, groups = _what_is_used(samples, metric, rows, rules.threshold)
    above = rewards - rewards.min()
    first, second = (_by_problem(how, k_max, groups, each, **scores) for each in (above, above**2))
    spread = np.sqrt(np.maximum(second - first**2, 0.0))
    cheapest, dearest = costs_of_a_draw(samples, metric) if rules.price else (0.0, 0.0)
    return np.asarray(
        (spread + rules.price * (dearest * np.arange(1, k_max + 1) - cheapest) / 2) ** 2
    )


def check_metric(metric: str) -> None:
    """Raise an error for an unknown metric, naming the nearest."""
    if metric not in METRICS and not ATLEAST.fullmatch(metric):
        raise unknown("metric", metric, (*METRICS, "atleast2@k"))
