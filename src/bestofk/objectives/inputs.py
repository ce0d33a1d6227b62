"""What an objective is given beside rewards: log-ratios, entropies, random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from .arrays import Array, as_float64, as_numpy, constant, is_array
from .grouping import Bucket, Layout

INPUTS = ("log_ratio", "entropy", "entropy_threshold", "live", "groups", "progress", "rng",
          "prompt_weights", "check")  # fmt: skip


def finite_ratios(log_ratio: Array) -> None:
    """Every log-ratio of a live sample is a finite number."""
    xp = array_namespace(log_ratio)
    is_finite = xp.isfinite(log_ratio)
    if not bool(xp.all(is_finite)):
        raise ValueError(
            "log_ratio must be finite for every live sample, got "
            f"{float(log_ratio[~is_finite][0])}: give samples without one live=False"
        )


def random_numbers(rng: Any, text: str) -> Any:
    """A generator from a generator or a seed; an array of uniform numbers stays what it is."""
    if rng is None:
        raise ValueError(
            f"objective {text} draws random sets: rng= is needed, a generator or a seed"
        )
    return rng if is_array(rng) else np.random.default_rng(rng)


def group_entropies(
    entropy: Any,
    threshold: Any,
    rewards: Array,
    layout: Layout,
    text: str,
    *,
    check: bool = True,
) -> tuple[Array, Any]:
    """Mean response entropy per group, (groups,), and the threshold to compare it with.

    Args:
        entropy: per group, (groups,) or the leading shape of rewards, or per sample.
        threshold: None takes the median over the groups that are used.
        rewards: (..., n).
        layout: of the rewards.
        text: the objective, for errors.
        check: False stays on the device and needs the threshold.
    """
    if entropy is None:
        raise ValueError(f"objective {text} looks at entropy: entropy= is needed, one per group")
    values, _ = as_float64(entropy, "entropy")
    by_sample = tuple(values.shape) == tuple(rewards.shape)
    if not by_sample and math.prod(values.shape) != layout.groups:
        raise ValueError(
            f"entropy must be per group ({layout.groups} of them) or per sample "
            f"{tuple(rewards.shape)}, got {tuple(values.shape)}"
        )
    if not check:
        if threshold is None:
            raise ValueError(
                f"objective {text} with check=False needs entropy_threshold=: the median over a "
                "batch cannot be taken from one traced group"
            )
        xp = array_namespace(values)
        return (xp.mean(values, axis=-1) if by_sample else values).reshape(-1), threshold
    host = as_numpy(values)
    per_group = _by_group(host, layout) if by_sample else host.reshape(-1)
    kept = [b.groups if b.groups is not None else np.arange(layout.groups) for b in layout.buckets]
    used = per_group[np.concatenate(kept)] if kept else per_group
    if not np.isfinite(used).all():
        raise ValueError(
            "entropy must be finite for every group that is used, got "
            f"{used[~np.isfinite(used)][0]}: leave that group out of the call"
        )
    if threshold is None:
        threshold = np.median(used) if used.size else 0.0
    if not np.isfinite(threshold):
        raise ValueError(
            f"entropy_threshold must be a finite number, got {threshold}; left out, it is the "
            "median over the groups"
        )
    return constant(per_group, rewards), float(threshold)


def _by_group(values: np.ndarray, layout: Layout) -> np.ndarray:
    """Means over the live samples of each group; NaN where a group is left out."""
    result = np.full(layout.groups, np.nan)
    for bucket in layout.buckets:
        if bucket.rows is None:
            return values.reshape(-1, bucket.n).mean(axis=-1)
        result[bucket.groups] = values.reshape(-1)[bucket.rows].mean(axis=-1)
    return result


def group_weights(weights: Any, rewards: Array, layout: Layout, *, check: bool = True) -> Array:
    """What each group counts, (groups,), beside the rewards.

    Args:
        weights: at least 0, one per group: (groups,) or the leading shape of rewards.
        rewards: (..., n).
        layout: of the rewards.
        check: False takes the values as they are.
    """
    values, _ = as_float64(weights, "prompt_weights")
    if math.prod(values.shape) != layout.groups:
        raise ValueError(
            f"prompt_weights must be one number per group, {layout.groups} of them, got shape "
            f"{tuple(values.shape)}"
        )
    if check:
        host = as_numpy(values)
        if not (np.isfinite(host) & (host >= 0)).all():
            odd = host[~(np.isfinite(host) & (host >= 0))][0]
            raise ValueError(f"prompt_weights must be finite and at least 0, got {odd}")
        values = constant(host.reshape(-1), rewards)
    return values.reshape(-1)


def in_bucket(by_group: Array, bucket: Bucket) -> Array:
    """The values of a bucket's groups, of one value per group."""
    if bucket.groups is None:
        return by_group
    xp = array_namespace(by_group)
    return xp.take(by_group, constant(bucket.groups, by_group), axis=0)
