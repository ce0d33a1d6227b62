"""pass@k beyond the n that was sampled: a model, checked on the data, never a bare number.

p ~ Beta(a, b) over problems is fitted to the passes (empirical Bayes); a problem with c of n passes
then has p ~ Beta(a + c, b + n - c), and

    pass@K = mean over problems of 1 - B(a + c, b + n - c + K) / B(a + c, b + n - c).

Everything beyond n hangs on how the problems that were never solved are spread near p = 0, which n
samples cannot show. So the same method is tried on fewer samples, where the answer is known: it is
fitted to a random part of each problem's samples and has to predict the unbiased estimate from all
of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .betabinomial import fit, miss
from .curves import check_confidence, select
from .intervals import LEAST_INFORMATIVE, tail_rank
from .results import Extrapolation, Interval, Samples
from .values import pass_curve, passes_and_samples

LARGEST_REACH = 16
"""Predictions for k beyond this many times n are always called unreliable."""
HELD_OUT_REACH = 4
"""The check predicts up to this many times the samples that it was fitted on."""


def extrapolate(
    samples: Samples,
    k: Sequence[int],
    *,
    threshold: float | None = None,
    confidence: float = 0.95,
    resamples: int = 400,
    seed: int = 0,
) -> Extrapolation:
    """pass@k at any k, also k > n, with an interval, a hold-out check and a warning.

    Args:
        k: where to predict.
        threshold: reward ≥ threshold passes.
        resamples: of the problems; the model is refitted in each.

    `unreliable` is set, with reasons, when the check fails, when there were too few samples to
    check or too few solved problems to learn from, and for k > 16 n.

    Raises:
        ValueError: k < 1; no scored sample.
    """
    check_confidence(confidence, resamples)
    wanted = np.unique(np.asarray(k, dtype=np.int64))
    if not wanted.size or wanted[0] < 1:
        raise ValueError(f"k must be at least 1, got {list(k)}")
    kept, _, _ = select(samples, "pass@k", None, "drop")
    passes, n = (column[kept] for column in passes_and_samples(samples, threshold))
    rng = np.random.default_rng(seed)
    estimate, interval, shape = predict(passes, n, wanted, confidence, resamples, rng)
    held, check = _hold_out(passes, n, confidence, resamples, rng)
    reasons = _doubts(passes, n, wanted, held, check)
    return Extrapolation(
        name=samples.name,
        k=wanted,
        estimate=estimate,
        interval=interval,
        a=float(shape[0]),
        b=float(shape[1]),
        n=(int(n.min()), int(n.max())),
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
        resamples=resamples,
        seed=seed,
    )


def predict(
    passes: np.ndarray,
    samples: np.ndarray,
    k: np.ndarray,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, Interval, np.ndarray]:
    """Estimate and interval of pass@k at each k, and the fitted (a, b).

    The interval resamples problems with Dirichlet weights and one problem more that could have been
    anything (never solved below, always solved above), as the bounded bootstrap does.
    """
    problems = len(passes)
    weights = rng.standard_exponential((resamples, problems + 1))
    weights /= weights.sum(axis=1, keepdims=True)
    everything = np.concatenate([np.full((1, problems), 1 / problems), weights[:, :-1]])
    shapes = fit(passes, samples, everything)
    kinds, where = np.unique(np.stack([passes, samples]), axis=1, return_inverse=True)
    shares = np.zeros((len(everything), kinds.shape[1]))
    for kind in range(kinds.shape[1]):
        shares[:, kind] = everything[:, where.reshape(-1) == kind].sum(axis=1)
    c, n = kinds
    a, b = shapes[:, :1] + c, shapes[:, 1:] + n - c
    missed = np.stack([(shares * miss(a, b, each)).sum(axis=1) for each in k], axis=1)
    estimate = 1.0 - missed[0]
    seen = weights[:, :-1].sum(axis=1, keepdims=True) - missed[1:]
    low, high = np.sort(seen, axis=0), np.sort(seen + weights[:, -1:], axis=0)
    rank = tail_rank((1.0 - confidence) / 2, resamples)
    return estimate, Interval(low[resamples - 1 - rank], np.minimum(high[rank], 1.0)), shapes[0]


def _hold_out(
    passes: np.ndarray,
    samples: np.ndarray,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[int, tuple[np.ndarray, np.ndarray, np.ndarray, Interval]]:
    """Fit on a part of every problem's samples; predict what all of them show.

    The interval is for the observed curve, so it is wide enough for both curves: the prediction's
    over problems would be too wide (both see the same problems), so only its spread *given* the
    problems counts: how much the part that was drawn, by chance, changes the prediction.
    """
    least = int(samples.min())
    part = max(2, least // HELD_OUT_REACH)
    if least < 8:
        none = np.empty(0)
        return 0, (none.astype(np.int64), none, none, Interval(none, none))
    k = np.unique(np.round(np.geomspace(part + 1, least, 6)).astype(np.int64))
    observed = pass_curve(passes, samples, least).mean(axis=0)[k - 1]
    draws = np.stack([_predict_part(passes, samples, part, k, rng) for _ in range(40)])
    predicted = draws.mean(axis=0)
    quantile = 2.0 if confidence <= 0.95 else 3.0
    half = quantile * draws.std(axis=0, ddof=1) + 0.01
    return part, (k, predicted, observed, Interval(predicted - half, predicted + half))


def _predict_part(
    passes: np.ndarray, samples: np.ndarray, part: int, k: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """pass@k predicted from `part` samples of each problem, drawn without replacement."""
    fewer = rng.hypergeometric(passes, samples - passes, part)
    size = np.full(len(fewer), part)
    shape = fit(fewer, size, np.ones((1, len(fewer))))[0]
    counts = np.bincount(fewer, minlength=part + 1) / len(fewer)
    c = np.arange(part + 1)
    missed = miss(shape[0] + c, shape[1] + part - c, k[:, None])
    return 1.0 - missed @ counts


def _doubts(
    passes: np.ndarray,
    samples: np.ndarray,
    k: np.ndarray,
    held: int,
    check: tuple[np.ndarray, np.ndarray, np.ndarray, Interval],
) -> tuple[str, ...]:
    """Why not to trust the prediction."""
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
        reasons.append(f"{least} samples per problem are too few to check the model (8 or more)")
    mixed = int(((passes > 0) & (passes < samples)).sum())
    if mixed < LEAST_INFORMATIVE:
        reasons.append(f"only {mixed} problems are sometimes but not always solved: too few to fit")
    if int(k[-1]) > LARGEST_REACH * least:
        reasons.append(f"k = {int(k[-1])} is more than {LARGEST_REACH} times n = {least}")
    return tuple(reasons)
