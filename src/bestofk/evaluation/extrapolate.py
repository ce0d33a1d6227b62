"""pass@k beyond the n that was sampled: an interval that assumes no shape, and a check on the data.

Everything beyond n hangs on how the problems that were never solved are spread near p = 0, which n
samples cannot show. The interval comes from every distribution of difficulty that the data allow
(`difficulty.profile`). The estimate is that of the likeliest distribution F, and continues the
unbiased curve without a jump:

    pass@K = estimate of pass@n + ∫ (1 − p)^n − (1 − p)^K dF(p).

It is given only where the data tell it: where the integral, over all distributions that they allow,
spans at most AGREED; elsewhere the interval stands alone. The same method is tried on a part of the
samples, where the answer is known. No number is given for k > 16 n, nor where the interval is wider
than one half.

Where problems have clusters, the log-likelihood is divided by the design effect of pass@n: what the
variance over clusters is of that over problems.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bestofk.samples import Samples

from .curves import check_confidence, select
from .difficulty import counts_of, likeliest, profile
from .intervals import LEAST_INFORMATIVE, by_cluster
from .per_problem import pass_curve, passes_and_samples
from .results import Extrapolation, Interval

LARGEST_REACH = 16
"""No number is given for k beyond this many times n."""
WIDEST = 0.5
"""... nor where the interval is wider than this."""
HELD_OUT_REACH = 4
"""The check predicts up to this many times the samples that it was fitted on."""
LEAST_CHECKED = 8
SLACK = 0.01
AGREED = 0.1
"""An estimate is given where the growth beyond n is known to this width."""


def extrapolate(
    samples: Samples,
    k: Sequence[int],
    *,
    threshold: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Extrapolation:
    """pass@k at k > n, with an interval, a hold-out check and a warning.

    Args:
        k: where to predict, each at least 1.
        threshold: reward ≥ threshold passes.
        seed: of the samples that are held out.

    Returns:
        `flags` says for each k why there is no estimate, or no number at all. `unreliable` is set,
        with reasons, when the check fails, and when there were too few samples to check or too few
        solved problems to learn from.

    Raises:
        ValueError: no scored sample.
    """
    check_confidence(confidence, 10**9)
    wanted = np.unique(np.asarray(k, dtype=np.int64))
    kept, _, _ = select(samples, "pass@k", None, "drop")
    passes, n = (column[kept] for column in passes_and_samples(samples, threshold))
    least = int(n.min())
    effect = design_effect(pass_curve(passes, n, least)[:, -1:], samples.cluster_of(kept))
    estimate, interval, growth = predict(passes, n, wanted, confidence, effect)
    flags = _flags(wanted, least, interval, growth)
    given = np.array([not each.startswith(NO_NUMBER) for each in flags])
    held, check = _hold_out(passes, n, confidence, effect, np.random.default_rng(seed))
    reasons = _doubts(passes, n, held, check)

    def shown(values: np.ndarray) -> np.ndarray:
        return np.where(given, values, np.nan)

    return Extrapolation(
        name=samples.name,
        k=wanted,
        estimate=np.where([not each for each in flags], estimate, np.nan),
        interval=Interval(shown(interval.low), shown(interval.high)),
        flags=flags,
        n=(least, int(n.max())),
        problems=len(kept),
        unreliable=bool(reasons),
        reasons=reasons,
        holdout_n=held,
        holdout_k=check[0],
        holdout_predicted=check[1],
        holdout_observed=check[2],
        holdout_interval=check[3],
        confidence=confidence,
        threshold=threshold,
        seed=seed,
    )


def predict(
    passes: np.ndarray, samples: np.ndarray, k: np.ndarray, confidence: float, effect: float = 1.0
) -> tuple[np.ndarray, Interval, Interval]:
    """Estimate and interval of pass@k at each k, and the interval of its growth beyond n.

    Args:
        passes, samples: (P,) of each problem.
        effect: of the design, where problems have clusters.
    """
    least = int(samples.min())
    counts = counts_of(passes, samples, int(k.max()))
    centre = likeliest(counts)
    observed = pass_curve(passes, samples, least).mean(axis=0)
    known = observed[np.minimum(k, least) - 1]
    solved = 1.0 - (1.0 - counts.p) ** k[:, None]
    growth = np.maximum(solved - (1.0 - (1.0 - counts.p) ** least), 0.0)
    estimate = np.clip(known + growth @ centre, 0.0, 1.0)

    low, high = profile(counts, np.concatenate([solved, growth]), confidence, centre, effect)
    (low, low_growth), (high, high_growth) = np.split(low, 2), np.split(high, 2)
    low = np.clip(np.minimum(low, estimate), 0.0, 1.0)
    high = np.clip(np.maximum(high, estimate), 0.0, 1.0)
    return estimate, Interval(low, high), Interval(low_growth, high_growth)


NO_NUMBER = "no number: "


def _flags(k: np.ndarray, least: int, interval: Interval, growth: Interval) -> tuple[str, ...]:
    """For each k, why there is no estimate; empty where there is one."""
    flags = []
    for at, each in enumerate(k.tolist()):
        low, high = max(growth.low[at], 0.0), growth.high[at]
        if each > LARGEST_REACH * least:
            flags.append(f"{NO_NUMBER}k is more than {LARGEST_REACH} times n = {least}")
        elif interval.high[at] - interval.low[at] > WIDEST:
            flags.append(f"{NO_NUMBER}the samples allow an interval wider than {WIDEST:g}")
        elif high - low > AGREED:
            flags.append(f"interval alone: beyond n, pass@k may rise by {low:.2f} to {high:.2f}")
        else:
            flags.append("")
    return tuple(flags)


def design_effect(values: np.ndarray, clusters: np.ndarray | None) -> float:
    """Variance of the mean of values (P, 1) over clusters, over that of independent problems; ≥ 1.

    >>> design_effect(np.array([[0.0], [0.0], [1.0], [1.0]]), np.array([0, 0, 1, 1]))
    3.0
    """
    centred = values - values.mean()
    units, _ = by_cluster(centred, clusters)
    alone, together = (
        float((each**2).sum() / max(len(each) - 1, 1) / len(each)) for each in (centred, units)
    )
    return max(1.0, together / alone) if alone > 0 else 1.0


def _hold_out(
    passes: np.ndarray,
    samples: np.ndarray,
    confidence: float,
    effect: float,
    rng: np.random.Generator,
) -> tuple[int, tuple[np.ndarray, np.ndarray, np.ndarray, Interval]]:
    """Predict from a part of every problem's samples what all of them show."""
    least = int(samples.min())
    if least < LEAST_CHECKED:
        none = np.empty(0)
        return 0, (none.astype(np.int64), none, none, Interval(none, none))
    part = max(2, least // HELD_OUT_REACH)
    k = np.unique(np.round(np.geomspace(part + 1, least, 3)).astype(np.int64))
    observed = pass_curve(passes, samples, least).mean(axis=0)[k - 1]
    fewer = rng.hypergeometric(passes, samples - passes, part)
    predicted, interval, _ = predict(fewer, np.full(len(fewer), part), k, confidence, effect)
    low, high = np.maximum(interval.low - SLACK, 0.0), np.minimum(interval.high + SLACK, 1.0)
    return part, (k, predicted, observed, Interval(low, high))


def _doubts(
    passes: np.ndarray,
    samples: np.ndarray,
    held: int,
    check: tuple[np.ndarray, np.ndarray, np.ndarray, Interval],
) -> tuple[str, ...]:
    """Why not to trust any of the prediction."""
    reasons = []
    least = int(samples.min())
    if held:
        at, predicted, observed, interval = check
        off = (observed < interval.low) | (observed > interval.high)
        if off.any():
            worst = int(np.abs(predicted - observed).argmax())
            reasons.append(
                f"fitted on {held} samples per problem, the model predicts pass@{at[worst]} = "
                f"{predicted[worst]:.3f}; all samples show {observed[worst]:.3f}"
            )
    else:
        reasons.append(f"n = {least} is too few to check the model (8 or more)")
    mixed = int(((passes > 0) & (passes < samples)).sum())
    if mixed < LEAST_INFORMATIVE:
        reasons.append(f"problems solved sometimes but not always: {mixed}, too few to fit")
    return tuple(reasons)
