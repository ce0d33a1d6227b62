"""max@k of a new policy from samples of an old one, or a refusal when they are too far apart."""

from __future__ import annotations

import numpy as np

from bestofk.objectives.off_policy import effective_sample_size, value

from .curves import check_confidence, reward_bounds, select
from .intervals import bounds_of_means, tail_rank
from .results import OffPolicy, Samples

LEAST_SHARE = 0.1
"""Of the k-subsets must effectively count, on average over problems."""


def off_policy(
    samples: Samples,
    k: int,
    *,
    self_normalise: bool = True,
    least_share: float = LEAST_SHARE,
    bounds: tuple[float, float] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> OffPolicy:
    """Estimate max@k under the policy of `new_logprobs` from samples drawn under `logprobs`.

    Every k-subset is weighted by the product of its ratios π_new/π_old. Self-normalised (default)
    the estimate stays inside the range of the rewards, is consistent and slightly biased; without,
    it is unbiased and can leave the range. 0/1 rewards give pass@k.

    The effective sample size of the subsets, e_k(ρ)²/(C(n,k) e_k(ρ²)), says what share of them
    still counts. Below `least_share`, averaged over problems, a few samples decide the result and
    no interval is honest: refused.

    Raises:
        ValueError: log-probabilities missing; n < k; too small an effective share, with the largest
            k that would be answered.
    """
    check_confidence(confidence, resamples)
    if samples.logprobs is None or samples.new_logprobs is None:
        missing = "logprob_sum" if samples.logprobs is None else "new_logprob_sum"
        raise ValueError(
            f"{samples.name}: the off-policy estimate needs two log-probabilities per sample, "
            f"under the policy that sampled and under the new one; there is no {missing}: name "
            f"the column with --columns {missing}=..."
        )
    kept, _, _ = select(samples, "max@k", k, "error")
    groups = [_live(samples, int(problem)) for problem in kept]
    share = np.array([float(effective_sample_size(ratio, k)) for _, ratio in groups])
    if share.mean() < least_share:
        fits = _largest_k(groups, k, least_share)
        way = f"k ≤ {fits} would do" if fits else "not even k = 1 would do"
        raise ValueError(
            f"{samples.name}: the policies are too far apart for max@{k}: only {share.mean():.1%} "
            f"of the {k}-subsets effectively count (at least {least_share:.0%} must); {way}, or "
            "sample from the new policy"
        )
    values = np.array(
        [float(value(r, ratio, k, self_normalise=self_normalise)) for r, ratio in groups]
    )
    ends, _ = reward_bounds(samples, "max@k", bounds)
    if not self_normalise:  # such an estimate can leave the range of the rewards
        ends = min(ends[0], float(values.min())), max(ends[1], float(values.max()))
    low, high = bounds_of_means(values[:, None], ends, resamples, np.random.default_rng(seed))
    rank = tail_rank((1.0 - confidence) / 2, resamples)
    sizes = [len(rewards) for rewards, _ in groups]
    return OffPolicy(
        name=samples.name,
        k=k,
        estimate=float(values.mean()),
        low=float(np.sort(low[:, 0])[resamples - 1 - rank]),
        high=float(np.sort(high[:, 0])[rank]),
        ess=share,
        problems=tuple(samples.problems[p] for p in kept),
        n=(min(sizes), max(sizes)),
        self_normalised=self_normalise,
        confidence=confidence,
    )


def _live(samples: Samples, problem: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and log-ratios of a problem's scored samples.

    Raises:
        ValueError: a scored sample without finite log-probabilities.
    """
    assert samples.logprobs is not None
    assert samples.new_logprobs is not None
    span = samples.of(problem)
    scored = ~np.isnan(samples.rewards[span])
    ratio = (samples.new_logprobs[span] - samples.logprobs[span])[scored]
    if not np.isfinite(ratio).all():
        raise ValueError(
            f"{samples.name}: problem {samples.problems[problem]!r} has a scored sample without "
            "finite log-probabilities under both policies"
        )
    return samples.rewards[span][scored], ratio


def _largest_k(groups: list[tuple[np.ndarray, np.ndarray]], k: int, least: float) -> int:
    """The largest k' < k whose mean effective share is enough, by bisection; 0 if none."""
    low, high = 0, k
    while high - low > 1:
        middle = (low + high) // 2
        share = np.mean([float(effective_sample_size(ratio, middle)) for _, ratio in groups])
        low, high = (middle, high) if share >= least else (low, middle)
    return low
