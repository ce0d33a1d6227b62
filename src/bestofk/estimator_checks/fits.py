"""How the expected update compares with the true gradient: bias, scale, direction, convention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .policies import Outcomes, TabularPolicy

EXACT = 1e-5
"""A relative error below this is rounding: single precision and the usual ε = 1e-6 pass."""


@dataclass(frozen=True)
class Case:
    """One policy: the expected update of the estimator against ∇max@k."""

    label: str
    kind: str
    """"0/1" or "real"."""
    spread: float
    """Standard deviation of the log-ratio; 0 on policy."""
    bias: float
    """|update - gradient| / |gradient|."""
    scale: float
    """The multiple of the gradient that fits the update best."""
    cosine: float
    variance: float
    """E|g|² - |E g|² of the update of one group over |gradient|²; over scale² too, so that a
    constant factor, which a learning rate takes up, does not count."""
    update: tuple[float, ...]
    gradient: tuple[float, ...]


@dataclass(frozen=True)
class Fit:
    """All cases of one kind of rewards together."""

    bias: float
    """The largest over the cases."""
    scale: tuple[float, float]
    """Smallest and largest."""
    cosine: tuple[float, float]
    constant: float | None
    """The one scale that fits every case, or None: then no learning rate makes it unbiased."""
    convention: str
    """What that scale is in n and k, such as "1/n"; "" where it has no name."""
    tolerance: float
    """Relative error that counts as rounding, or as the noise of random draws."""
    variance: float
    """Geometric mean of the cases' relative variances, of policies with three or four answers."""

    @property
    def exact(self) -> bool:
        return self.bias < self.tolerance

    @property
    def right_direction(self) -> bool:
        return self.cosine[0] > 1 - self.tolerance


def case_of_calls(
    policy: TabularPolicy, outcomes: Outcomes, calls: Sequence[np.ndarray], k: int
) -> tuple[Case, float]:
    """The case of the mean over several calls of a function with noise; and how far it may be off
    by chance, relative to the gradient (six standard errors; 0 for one call)."""
    advantages, gradient = np.mean(calls, axis=0), policy.gradient(k)
    update = outcomes.expected_update(policy, advantages)
    size, length = float(np.linalg.norm(gradient)), float(np.linalg.norm(update))
    along, noise = float(update @ gradient), 0.0
    if len(calls) > 1:
        updates = np.array([outcomes.expected_update(policy, each) for each in calls])
        error = np.sqrt(updates.var(axis=0, ddof=1).sum() / len(calls))
        noise = 6 * float(error) / size
    variance = float("nan")
    if along > 0:
        variance = outcomes.variance(policy, advantages) / max(along / size, 1e-300) ** 2
    case = Case(
        policy.label,
        policy.kind,
        policy.spread,
        float(np.linalg.norm(update - gradient)) / size,
        along / size**2,
        along / (size * length) if length > 1e-12 * size else 0.0,
        variance,
        tuple(update.tolist()),
        tuple(gradient.tolist()),
    )
    return case, noise


def fit(cases: Sequence[Case], k: int, n: int, tolerance: float = EXACT) -> Fit | None:
    """Summarise cases of one kind of rewards; None without cases.

    Args:
        tolerance: relative error that counts as none; larger for means over random draws.
    """
    if not cases:
        return None
    scales = [each.scale for each in cases]
    cosines = [each.cosine for each in cases]
    constant = common_scale(cases, tolerance)
    return Fit(
        max(each.bias for each in cases),
        (min(scales), max(scales)),
        (min(cosines), max(cosines)),
        constant,
        "" if constant is None else convention(constant, k, n, tolerance),
        tolerance,
        float(np.exp(np.mean(np.log([max(each.variance, 1e-300) for each in cases])))),
    )


def common_scale(
    cases: Sequence[Case], tolerance: float = EXACT, gradients: Sequence[np.ndarray] | None = None
) -> float | None:
    """The s ≠ 0 with update = s · gradient in every case, or None; of other gradients, if given."""
    targets = np.array([each.gradient for each in cases] if gradients is None else gradients)
    updates = np.array([each.update for each in cases])
    middle = float(np.median((updates * targets).sum(axis=1) / (targets**2).sum(axis=1)))
    if abs(middle) < 1e-9:
        return None
    off = np.linalg.norm(updates - middle * targets, axis=1) / np.linalg.norm(targets, axis=1)
    return middle if off.max() < tolerance * max(1.0, abs(middle)) else None


def drift(cases: Sequence[Case]) -> dict[float, float]:
    """Worst bias at each spread of the log-ratio, apart from the constant factor at spread 0."""
    scale = common_scale([each for each in cases if each.spread == 0])
    worst: dict[float, float] = {}
    for each in cases:
        gradient = (scale or 1.0) * np.array(each.gradient)
        error = np.linalg.norm(np.array(each.update) - gradient) / np.linalg.norm(gradient)
        worst[each.spread] = max(worst.get(each.spread, 0.0), float(error))
    return dict(sorted(worst.items()))


def conventions(k: int, n: int) -> dict[str, float]:
    """Factors that estimators of ∇max@k are found with, in the mean convention."""
    return {
        "1": 1.0,
        "1/n": 1 / n,
        "n": float(n),
        "1/k": 1 / k,
        "k": float(k),
        "k/n": k / n,
        "n/k": n / k,
        "(n-1)/n": (n - 1) / n,
        "n/(n-1)": n / (n - 1) if n > 1 else 0.0,
        "1-k/n": 1 - k / n,
        "n/(n-k)": n / (n - k) if n > k else 0.0,
        "(n-k)/k": (n - k) / k,
        "(1-k/n)/n": (1 - k / n) / n,
        "(n-k)/(kn)": (n - k) / (k * n),
        "1/(kn)": 1 / (k * n),
    }


def convention(scale: float, k: int, n: int, tolerance: float = EXACT) -> str:
    """The name of a factor; the first two where several coincide at this k and n.

    >>> convention(1 / 6, 4, 6), convention(-1.0, 4, 6), convention(0.123, 4, 6)
    ('1/n', '-1', '')
    """
    sign = "-" if scale < 0 else ""
    named = [
        name
        for name, value in conventions(k, n).items()
        if value and abs(abs(scale) / value - 1) < tolerance and (1 < k < n or "k" not in name)
    ]
    if "1" in named:
        return sign + "1"
    return " = ".join(sign + name for name in named[:2])


def other_objective(
    policies: Sequence[TabularPolicy], cases: Sequence[Case], k: int, n: int
) -> tuple[str, float] | None:
    """What the update is the gradient of, up to a constant, if it is not max@k.

    Tried: max@j for every other j ≤ n, and MaxRL's Σ_{j<n} max@j / j.
    """
    tried = {f"max@{j}": [p.gradient(j) for p in policies] for j in range(1, n + 1) if j != k}
    if n > 2:
        tried["Σ_{j<n} max@j / j (MaxRL)"] = [
            np.sum([p.gradient(j) / j for j in range(1, n)], axis=0) for p in policies
        ]
    for name, gradients in tried.items():
        scale = common_scale(cases, gradients=gradients)
        if scale is not None:
            return "the mean reward (max@1)" if name == "max@1" else name, scale
    return None
