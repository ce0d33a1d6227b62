"""subsets@k: what k samples are worth is your function, evaluated on a fixed design of k-subsets.

    A_i = k ( mean_{I∋i} w_I f(I) - mean_{I∋i} w_I · Σ_{I∌i} w_I f(I) / Σ_{I∌i} w_I ),

over the evaluated sets I, with w_I the product of the set's ratios (1 on policy), is unbiased for
∇E[f] for any design in which each sample is in and out at least once: the first factor of what is
subtracted has ρ_i and else, like the second, nothing of sample i. It is 0 where f is the same on
all sets. Where there are few k-subsets all are evaluated, and on policy this is the canonical form.
An exact procedure g as control lowers the variance: A = A_exact(g) + A_sets(f - g).

The design depends on n, k and the number of sets alone, so that runs repeat and resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from numbers import Real
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import Array, as_numpy
from .importance import pooled
from .majority import MAJ, numbered
from .maximum import MAX
from .procedure import Procedure, by_baseline
from .selection import SELECT
from .symmetric_sums import scaled

CONTROLS = {each.name: each for each in (MAX, SELECT, MAJ)}
Worth = Callable[..., float]
"""(rewards, scores, answers) of k samples, in any order → a number; None for what is not given."""
SETS = 512


@lru_cache(128)
def design(n: int, k: int, sets: int) -> np.ndarray:
    """k-subsets of n samples, (sets, k): all, or random ones with each sample in some, not all."""
    if math.comb(n, k) <= sets:
        return np.array(list(combinations(range(n), k)))
    part = min(k, n - k)
    parts = math.ceil(n / part)
    if sets < parts:
        raise ValueError(
            f"sets={sets} is too few for {k} of {n} samples: each must be in a set and out of "
            f"another, so take at least {parts}"
        )
    rng = np.random.default_rng([n, k, sets])
    chosen = np.sort(np.argsort(rng.random((sets, n)), axis=1)[:, :k], axis=1)
    counts = np.bincount(chosen.reshape(-1), minlength=n)
    if counts.min() == 0 or counts.max() == sets:  # a few sets that cut all samples into parts
        cut = rng.permutation(n)[np.arange(parts * part) % n].reshape(parts, part)
        is_in = np.zeros((parts, n), dtype=bool)
        np.put_along_axis(is_in, cut, True, axis=1)
        chosen[:parts] = np.nonzero(is_in == (part == k))[1].reshape(parts, k)
    return chosen


def worths(
    rewards: np.ndarray,
    k: int,
    *,
    value: Worth,
    sets: int = SETS,
    ends: tuple[float, float] = (-math.inf, math.inf),
    scores: np.ndarray | None = None,
    answers: np.ndarray | None = None,
) -> np.ndarray:
    """value of every set of the design, (g, sets); one outside `ends` is an error."""
    chosen = design(rewards.shape[-1], k, sets)
    result = np.empty((len(rewards), len(chosen)))
    for row, group in enumerate(rewards):
        own = [None if each is None else each[row] for each in (scores, answers)]
        for place, members in enumerate(chosen):
            parts = (None if each is None else each[members] for each in own)
            result[row, place] = _worth(value, (group[members], *parts), ends)
    return result


def _worth(value: Worth, samples: tuple[Any, ...], ends: tuple[float, float]) -> float:
    try:
        worth: Any = value(*samples)
    except Exception as error:
        raise ValueError(
            "value= of subsets@k is called with (rewards, scores, answers) of k = "
            f"{len(samples[0])} samples, and raised {type(error).__name__}: {error}"
        ) from error
    one = worth.item() if getattr(worth, "shape", None) == () else worth
    number = float(one) if isinstance(one, Real) else math.nan
    if not math.isfinite(number):
        raise ValueError(f"value= of subsets@k must return a finite number, got {worth!r:.80}")
    if not ends[0] <= number <= ends[1]:
        raise ValueError(
            f"value= of subsets@k returned {number:g}, outside {ends[0]:g} to {ends[1]:g}: state "
            "the least and the greatest that it can return, --bounds LOW HIGH"
        )
    return number


def _weighted_mean(values: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Means of rows under weights e^logs, of any size."""
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return (shares * values).sum(axis=1) / shares.sum(axis=1)


def _control(
    name: str, rewards: np.ndarray, k: int, sets: np.ndarray, beside: dict[str, Any], logs: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The control's exact advantages (g, n), and its value of every set (g, sets)."""
    procedure = CONTROLS[name]
    needed = {each: beside[each] for each in procedure.needs}
    for each, values in needed.items():
        if values is None:
            raise ValueError(f"control={name!r} needs {each}=, one per sample")
    if "answers" in needed:
        needed["answers"] = numbered(needed["answers"])
    parts = {each: values[:, sets].reshape(-1, k) for each, values in needed.items()}
    of_sets = procedure.curve(rewards[:, sets].reshape(-1, k), k, **parts)[:, -1]
    if logs is None:
        exact = procedure.weights["canonical"](rewards, k, **needed)
    else:
        assert procedure.off_policy is not None
        exact = procedure.off_policy(rewards, k=k, log_ratio=logs, baseline="canonical", **needed)
    return exact, of_sets.reshape(len(rewards), -1)


def weights(
    rewards: Array,
    k: int,
    *,
    value: Worth,
    sets: int = SETS,
    control: str | None = None,
    scores: Array | None = None,
    answers: np.ndarray | None = None,
    log_ratio: Array | None = None,
    log_alpha: Array | None = None,
    baseline: str = "canonical",
    self_normalise: bool = False,
    check: bool = True,
) -> Array:
    """Advantages (g, n), k < n, on policy or with log-ratios; computed on the host.

    `log_alpha` as in `Procedure`: divided by what the sets of the design weigh on average.
    """
    if self_normalise:
        raise ValueError("subsets@k has no self-normalised form: use truncate= to bound the ratios")
    if log_alpha is not None:
        log_ratio = pooled(log_ratio, log_alpha, k)
    host, logs = as_numpy(rewards), None if log_ratio is None else as_numpy(log_ratio)
    chosen = design(host.shape[-1], k, sets)
    inside = np.zeros((len(chosen), host.shape[-1]))
    np.put_along_axis(inside, chosen, 1.0, axis=1)
    beside: dict[str, Any] = {
        "scores": None if scores is None else as_numpy(scores),
        "answers": answers,
    }
    worth, exact = worths(host, k, value=value, sets=sets, **beside), np.zeros(host.shape)
    if control is not None:
        exact, control_worth = _control(control, host, k, chosen, beside, logs)
        worth = worth - control_worth
    worth = worth - worth[:, :1]  # a constant changes nothing; equal values become zeros
    of_sets = np.zeros(worth.shape) if logs is None else logs[:, chosen].sum(axis=-1)
    out = [_weighted_mean(worth[:, each], of_sets[:, each]) for each in inside.T == 0]
    largest = of_sets.max(axis=1, keepdims=True)
    product = np.exp(of_sets - largest)
    lead = (product * worth) @ inside - (product @ inside) * np.stack(out, axis=1)
    xp = array_namespace(rewards)
    lead = k * lead / inside.sum(axis=0)
    if log_alpha is not None:
        shares = as_numpy(pooled(0.0 * log_alpha, log_alpha, k))[:, chosen].sum(axis=-1)
        weight = (np.exp(shares) @ inside / inside.sum(axis=0)).mean(axis=1, keepdims=True)
        lead = lead / weight
    result = exact + scaled(lead, largest)
    return xp.asarray(result, device=device(rewards))


def value_by_k(
    rewards: Array, k_max: int, *, value: Worth, sets: int = SETS, **beside: Any
) -> np.ndarray:
    """The mean of value over the design, for k = 1..k_max: (g, k_max)."""
    given: Any = {"value": value, "sets": sets, **{n: beside.get(n) for n in ("scores", "answers")}}
    of_k = (worths(as_numpy(rewards), k, **given) for k in range(1, k_max + 1))
    return np.stack([each.mean(axis=1) for each in of_k], axis=1)


SUBSETS = Procedure(
    name="subsets",
    meaning="the expected value of a function of k samples",
    curve=value_by_k,
    weights=by_baseline(weights, "canonical"),
    off_policy=weights,
    needs=("samples",),
    weighs_sizes=True,
)
