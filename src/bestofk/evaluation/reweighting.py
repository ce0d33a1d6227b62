"""max@k of a new policy from samples of an old one; an error where they are too far apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bestofk.objectives.off_policy import effective_sample_size, value

from .curves import check_confidence, reward_bounds, select
from .intervals import bounds_of_means, tail_rank
from .results import ReweightedEstimate, Samples

LEAST_SHARE = 0.1
"""Of all k-subsets of all problems must effectively count."""
EVENNESS = 2.5
"""... and this many times as large a share of the problems: a few must not outweigh the rest."""


def off_policy(
    samples: Samples,
    k: int,
    *,
    self_normalise: bool = False,
    least_share: float = LEAST_SHARE,
    bounds: tuple[float, float] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> ReweightedEstimate:
    """Estimate max@k under the policy of `new_logprobs` from samples drawn under `logprobs`.

    Every k-subset is weighted by the product w of its ratios π_new/π_old, which makes the mean over
    problems unbiased. Self-normalised, each problem's estimate stays inside the range of the
    rewards, but is biased by O(1/n), and averaging over problems does not remove that. 0/1 rewards
    give pass@k.

    The effective sample size (Σ w)²/(count · Σ w²), over the subsets of all problems, says what
    share of them still counts. Below `least_share` a few samples decide the result and no interval
    would hold, so that is an error.

    Raises:
        ValueError: log-probabilities missing; n < k; too small an effective share, with the largest
            k that would be answered.
    """
    check_confidence(confidence, resamples)
    _require_logprobs(samples)
    kept, _, _ = select(samples, "max@k", k, "error")
    groups = [_live(samples, int(problem)) for problem in kept]
    ratios = [ratio for _, ratio in groups]
    share = _own_share(ratios, k)
    effective, _ = effective_share(ratios, k)
    if not usable(ratios, k, least_share):
        raise ValueError(_too_far(samples.name, ratios, k, least_share))
    values = _by_size(
        [np.stack(group) for group in groups],
        lambda both: value(both[:, 0], both[:, 1], k, self_normalise=self_normalise),
    )
    ends, _ = reward_bounds(samples, "max@k", bounds)
    if not self_normalise:  # such an estimate can leave the range of the rewards
        ends = min(ends[0], float(values.min())), max(ends[1], float(values.max()))
    low, high = bounds_of_means(values[:, None], ends, resamples, np.random.default_rng(seed))
    rank = tail_rank((1.0 - confidence) / 2, resamples)
    sizes = [len(rewards) for rewards, _ in groups]
    return ReweightedEstimate(
        name=samples.name,
        k=k,
        estimate=float(values.mean()),
        low=float(np.sort(low[:, 0])[resamples - 1 - rank]),
        high=float(np.sort(high[:, 0])[rank]),
        ess=share,
        effective=effective,
        problems=tuple(samples.problems[p] for p in kept),
        n=(min(sizes), max(sizes)),
        self_normalised=self_normalise,
        confidence=confidence,
    )


def _require_logprobs(samples: Samples) -> None:
    if samples.logprobs is None or samples.new_logprobs is None:
        missing = "logprob_sum" if samples.logprobs is None else "new_logprob_sum"
        raise ValueError(
            f"{samples.name}: the off-policy estimate needs two log-probabilities per sample, "
            f"under the policy that sampled and under the new one; there is no {missing}: name "
            f"the column with --map {missing}=..."
        )


def _too_far(name: str, ratios: list[np.ndarray], k: int, least: float) -> str:
    effective, even = effective_share(ratios, k)
    fits = _largest_k(ratios, k, least)
    way = f"k ≤ {fits} would do" if fits else "not even k = 1 would do"
    return (
        f"{name}: the policies are too far apart for max@{k}: only {effective:.1%} of the "
        f"{k}-subsets and {even:.0%} of the problems effectively count (at least {least:.0%} and "
        f"{EVENNESS * least:.0%} must); {way}, or sample from the new policy"
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


def effective_share(ratios: list[np.ndarray], k: int) -> tuple[float, float]:
    """The effective share of all k-subsets, and of the problems.

    (Σ w)²/(count · Σ w²), with w the product of a subset's ratios over the k-subsets of all
    problems, and the same with one w per problem, the mean over its subsets. A problem's own share
    would not tell: at k = n there is one subset, and it counts fully, however large its weight. 0
    where the weights do not fit into floats.
    """
    try:
        weight = _by_size(ratios, lambda ratio: value(np.ones_like(ratio), ratio, k))
    except ValueError:
        return 0.0, 0.0
    own = _own_share(ratios, k)
    scale = weight.max()
    if scale <= 0:
        return 0.0, 0.0
    weight = weight / scale
    squares = np.divide(weight**2, own, out=np.zeros_like(own), where=own > 0).mean()
    subsets = weight.mean() ** 2 / squares if squares > 0 else 0.0
    problems = weight.mean() ** 2 / (weight**2).mean()
    return float(subsets), float(problems)


def _own_share(ratios: list[np.ndarray], k: int) -> np.ndarray:
    """(P,) effective share of each problem's own subsets."""
    return _by_size(ratios, lambda ratio: effective_sample_size(ratio, k))


def _by_size(groups: list[np.ndarray], function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """A function of stacked groups, called once per size: one value per group, in their order."""
    sizes = np.array([group.shape[-1] for group in groups])
    result = np.empty(len(groups))
    for size in np.unique(sizes):
        which = np.flatnonzero(sizes == size)
        result[which] = function(np.stack([groups[at] for at in which]))
    return result


def usable(ratios: list[np.ndarray], k: int, least: float) -> bool:
    """Whether enough subsets, and enough problems, still count."""
    subsets, problems = effective_share(ratios, k)
    return subsets >= least and problems >= EVENNESS * least


def _largest_k(ratios: list[np.ndarray], k: int, least: float) -> int:
    """The largest k' < k whose effective share is enough, by bisection; 0 if none."""
    low, high = 0, k
    while high - low > 1:
        middle = (low + high) // 2
        enough = usable(ratios, middle, least)
        low, high = (middle, high) if enough else (low, middle)
    return low
