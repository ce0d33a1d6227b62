"""Group semantics: which samples are siblings, which of them are live, which groups are too small.

Formulas in this room see dense arrays (groups, n). This module turns whatever the caller has into
such arrays: groups with the same number of live samples are handled together, so n is always the
live count, and a dead sample is never seen by a formula.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import LARGEST, Array, all_good, as_numpy, constant, live_mask, without_gradient

SmallGroups: TypeAlias = Literal["error", "drop"]


class DroppedGroups(UserWarning):
    """Some groups had too few live samples for the objective, and were left out."""


@dataclass(frozen=True)
class Bucket:
    """Groups with the same live count."""

    n: int
    rows: np.ndarray | None
    """Flat sample indices (groups, n), or None when the input is one dense bucket as it stands."""
    groups: np.ndarray | None
    """Which groups these are, or None for all of them in order."""


@dataclass(frozen=True)
class Layout:
    """How flat samples fall into groups."""

    samples: int
    groups: int
    buckets: tuple[Bucket, ...]
    dropped: int
    """Groups with too few live samples (those without any included)."""
    dead: int
    """Samples that are not live."""


def lay_out(
    rewards: Array,
    *,
    groups: Any = None,
    live: Any = None,
    minimum: int = 1,
    need: str = "more samples per prompt are needed",
    why: str = "",
    small_groups: SmallGroups = "drop",
    check: bool = True,
) -> Layout:
    """Sort samples into buckets of groups with equal live count.

    Args:
        rewards: float64, (..., n), or one row of samples when `groups` is given.
        groups: a group id per sample, in any order, of any sortable kind (integers, strings).
        live: True where a sample counts; NaN rewards never do.
        minimum: the least number of live samples a group must have.
        need: the rule, for the error ("objective max@8 needs more than 8 samples per prompt").
        why: the reason and the way out, for the error.
        small_groups: "error" raises on a group with fewer; "drop" leaves it out with a warning.
        check: False never looks at the rewards: they are taken as finite and all live.

    Raises:
        ValueError: shapes that do not fit; infinite rewards; and, under either policy, a batch in
            which no group would be large enough even if all its samples were live: that is a
            mistake in the set-up, not a lost sample.
    """
    if small_groups not in ("error", "drop"):
        raise ValueError(f"small_groups must be 'error' or 'drop', got {small_groups!r}")
    if rewards.ndim == 0:
        raise ValueError("rewards must have a sample axis: shape (..., n), got a single number")
    if groups is not None and rewards.ndim != 1:
        raise ValueError(f"with groups= rewards are one row of samples, got shape {rewards.shape}")
    shape = tuple(rewards.shape)
    used = np.True_ if live is None else live_mask(live, shape).reshape(-1)
    if not check and (groups is not None or live is not None):
        raise ValueError(
            "check=False takes whole groups, (..., n) with every sample live: groups= and live= "
            "depend on the data and cannot be traced"
        )
    is_clean = not check or all_good(rewards)
    if groups is None and live is None and is_clean:
        n, count = int(shape[-1]), math.prod(shape[:-1])
        if n < minimum:
            raise ValueError(f"{need}, got {n}{why}")
        return Layout(count * n, count, (Bucket(n, None, None),), 0, 0)
    flat = as_numpy(without_gradient(rewards)).reshape(-1)
    infinite = np.isinf(flat) & used
    if infinite.any():
        first = int(infinite.argmax())
        raise ValueError(
            f"rewards must be finite, or NaN where scoring failed; sample {first} is {flat[first]}"
        )
    large = np.flatnonzero((np.abs(flat) > LARGEST) & used)
    if large.size:
        raise ValueError(
            f"rewards must be at most {LARGEST:g} in size, got {flat[large[0]]:g}: divide them all "
            "by a constant"
        )
    ids = _group_ids(shape, groups)
    return _ragged(ids, np.isfinite(flat) & used, minimum, need, why, small_groups)


def _group_ids(shape: tuple[int, ...], groups: Any) -> np.ndarray:
    if groups is None:
        return np.repeat(np.arange(math.prod(shape[:-1])), shape[-1])
    names = as_numpy(groups if hasattr(groups, "shape") else np.array(groups, dtype=object))
    if names.shape != shape:
        raise ValueError(f"groups must name one group per sample, {shape}, got {names.shape}")
    if names.dtype == object or names.dtype.kind == "f":
        _one_kind(names.tolist())
    if names.dtype == object:
        names = np.array(names.tolist())
    return np.unique(names, return_inverse=True)[1].reshape(-1)


def _one_kind(ids: list[Any]) -> None:
    """Ids that NumPy would merge in silence are an error: None, NaN, 1 beside "1"."""
    for each in ids:
        if each is None or each != each:
            raise ValueError(
                f"groups must name a group for every sample, got {each}: give the samples of no "
                "group live=False and any id"
            )
    kinds = sorted({"number" if isinstance(each, int | float) else type(each).__name__
                    for each in ids})  # fmt: skip
    if len(kinds) > 1:
        raise ValueError(f"group ids must be of one kind, got {' and '.join(kinds)}: e.g. all str")


def _ragged(
    ids: np.ndarray, alive: np.ndarray, minimum: int, need: str, why: str, policy: SmallGroups
) -> Layout:
    count = int(ids.max()) + 1 if ids.size else 0
    sizes = np.bincount(ids, minlength=count)
    counts = np.bincount(ids[alive], minlength=count)
    small = counts < minimum
    if count and sizes.max() < minimum:
        raise ValueError(f"{need}, got {int(sizes.max())} in the largest group{why}")
    if small.any():
        first = int(small.argmax())
        message = (
            f"{need}: {int(small.sum())} of {count} groups {'has' if small.sum() == 1 else 'have'} "
            "fewer live samples "
            f"(the first, group {first}, has {int(counts[first])} of {int(sizes[first])})"
        )
        if policy == "error":
            raise ValueError(f"{message}; small_groups='drop' leaves them out")
        warnings.warn(f"{message}; left out", DroppedGroups, stacklevel=4)
    rows = np.flatnonzero(alive)
    rows = rows[np.argsort(ids[rows], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(counts)])
    buckets = []
    for n in np.unique(counts[~small]):
        which = np.flatnonzero((counts == n) & ~small)
        buckets.append(Bucket(int(n), rows[starts[which][:, None] + np.arange(n)], which))
    dead = int(alive.size - alive.sum())
    return Layout(ids.size, count, tuple(buckets), int(small.sum()), dead)


def gather(values: Array, bucket: Bucket) -> Array:
    """The bucket's samples of a per-sample array: (groups, n)."""
    if bucket.rows is None:
        return values.reshape(-1, bucket.n)
    xp = array_namespace(values)
    flat = xp.take(values.reshape(-1), constant(bucket.rows.reshape(-1), values), axis=0)
    return flat.reshape(bucket.rows.shape)


def in_bucket(by_group: Array, bucket: Bucket) -> Array:
    """The values of a bucket's groups, of one value per group."""
    if bucket.groups is None:
        return by_group
    xp = array_namespace(by_group)
    return xp.take(by_group, constant(bucket.groups, by_group), axis=0)


def scatter(pieces: Sequence[Array], layout: Layout, like: Array) -> Array:
    """Per-sample results of every bucket, back in the caller's order; 0 where not live."""
    if len(layout.buckets) == 1 and layout.buckets[0].rows is None:
        return pieces[0].reshape(like.shape)
    rows = [bucket.rows for bucket in layout.buckets]
    flat = [piece.reshape(-1) for piece in pieces]
    return _place(flat, rows, layout.samples, 0.0, like).reshape(like.shape)


def scatter_groups(pieces: Sequence[Array], layout: Layout, like: Array) -> Array:
    """Per-group results (groups, ...) of every bucket, in order of the groups; NaN if dropped."""
    if len(layout.buckets) == 1 and layout.buckets[0].groups is None:
        return pieces[0]
    return _place(pieces, [bucket.groups for bucket in layout.buckets], layout.groups, np.nan, like)


def _place(
    pieces: Sequence[Array], indices: Sequence[Any], size: int, empty: float, like: Array
) -> Array:
    xp = array_namespace(like)
    where = np.full(size, sum(index.size for index in indices))
    start = 0
    for index in indices:
        where[index.reshape(-1)] = np.arange(start, start + index.size)
        start += index.size
    tail = tuple(pieces[0].shape[1:]) if pieces else ()
    hole = xp.full((1, *tail), empty, dtype=xp.float64, device=device(like))
    values = xp.concat([*pieces, hole], axis=0)
    return xp.take(values, constant(where, values), axis=0)
