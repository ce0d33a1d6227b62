"""pass@k beyond the n that was sampled: an interval that assumes no shape, and a check on the data.

Everything beyond n hangs on how the problems that were never solved are spread near p = 0, which n
samples cannot show. So the estimate is an average over families of distributions, by how well each
explains the counts (`mixing.families`), and continues the unbiased curve without a jump:

    pass@K = estimate of pass@n + Σ_f w_f ( m_f(K) − m_f(n) ),    m_f(k) = ∫ 1 − (1 − p)^k dF_f(p),

while the interval comes from every distribution that the data allow (`mixing.profile`): it is wide
where families disagree. The same method is tried on a part of the samples, where the answer is
known. No number is given for k > 16 n, nor where the interval is wider than one half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .betabinomial import fit
from .curves import check_confidence, select
from .intervals import LEAST_INFORMATIVE
from .mixing import counts_of, families, likeliest, profile
from .results import Extrapolation, Interval, Samples
from .values import pass_curve, passes_and_samples

LARGEST_REACH = 16
"""No number is given for k beyond this many times n."""
WIDEST = 0.5
"""... nor where the interval is wider than this."""
HELD_OUT_REACH = 4
"""The check predicts up to this many times the samples that it was fitted on."""
LEAST_CHECKED = 8
SLACK = 0.01


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
        k: where to predict.
        threshold: reward ≥ threshold passes.
        seed: of the samples that are held out.

    Returns:
        NaN at the k where no number can be given. `unreliable` is set, with reasons, when that is
        so at some k, when the check fails, and when there were too few samples to check or too few
        solved problems to learn from.

    Raises:
        ValueError: k < 1; no scored sample.
    """
    check_confidence(confidence, 10**9)
    wanted = np.unique(np.asarray(k, dtype=np.int64))
    if not wanted.size or wanted[0] < 1:
        raise ValueError(f"k must be at least 1, got {list(k)}")
    kept, _, _ = select(samples, "pass@k", None, "drop")
    passes, n = (column[kept] for column in passes_and_samples(samples, threshold))
    least = int(n.min())
    estimate, interval, guesses = predict(passes, n, wanted, confidence)
    given = (wanted <= LARGEST_REACH * least) & (interval.high - interval.low <= WIDEST)
    held, check = _hold_out(passes, n, confidence, np.random.default_rng(seed))
    reasons = _doubts(passes, n, wanted, given, held, check)
    shape = fit(passes, n, np.ones((1, len(passes))))[0]

    def shown(values: np.ndarray) -> np.ndarray:
        return np.where(given, values, np.nan)

    return Extrapolation(
        name=samples.name,
        k=wanted,
        estimate=shown(estimate),
        interval=Interval(shown(interval.low), shown(interval.high)),
        families={name: shown(guess) for name, guess in guesses.items()},
        a=float(shape[0]),
        b=float(shape[1]),
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
    passes: np.ndarray, samples: np.ndarray, k: np.ndarray, confidence: float
) -> tuple[np.ndarray, Interval, dict[str, np.ndarray]]:
    """Estimate and interval of pass@k at each k, and what each family says.

    Args:
        passes, samples: (P,) of each problem.
    """
    least = int(samples.min())
    counts = counts_of(passes, samples, int(k.max()))
    observed = pass_curve(passes, samples, least).mean(axis=0)
    below = k <= least
    known = observed[np.minimum(k, least) - 1]
    at = np.maximum(k, least)
    solved = 1.0 - (1.0 - counts.p) ** at[:, None]
    growth = solved - (1.0 - (1.0 - counts.p) ** least)
    fitted = families(counts)
    worth = np.array([counts.likelihood(weights) for weights in fitted.values()])
    share = np.exp(worth - worth.max())
    share /= share.sum()
    guesses = {
        name: np.clip(known + growth @ weights, 0.0, 1.0) for name, weights in fitted.items()
    }
    estimate = np.clip(share @ np.stack(list(guesses.values())), 0.0, 1.0)
    centre = likeliest(counts)
    ends = np.array(
        [profile(counts, 1.0 - (1.0 - counts.p) ** each, confidence, centre) for each in k]
    )
    low, high = np.minimum(ends[:, 0], estimate), np.maximum(ends[:, 1], estimate)
    return np.where(below, known, estimate), Interval(low, high), guesses


def _hold_out(
    passes: np.ndarray, samples: np.ndarray, confidence: float, rng: np.random.Generator
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
    predicted, interval, _ = predict(fewer, np.full(len(fewer), part), k, confidence)
    low, high = np.maximum(interval.low - SLACK, 0.0), np.minimum(interval.high + SLACK, 1.0)
    return part, (k, predicted, observed, Interval(low, high))


def _doubts(
    passes: np.ndarray,
    samples: np.ndarray,
    k: np.ndarray,
    given: np.ndarray,
    held: int,
    check: tuple[np.ndarray, np.ndarray, np.ndarray, Interval],
) -> tuple[str, ...]:
    """Why not to trust the prediction, or why there is none."""
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
    wide = ~given & (k <= LARGEST_REACH * least)
    if wide.any():
        reasons.append(
            f"at k = {int(k[wide][0])} the samples allow an interval wider than {WIDEST:g}: "
            "draw more samples"
        )
    return tuple(reasons)
