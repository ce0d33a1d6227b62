"""The result of a judgement: data, and the text a person reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from .behaviour import Finding
from .calling import CannotCall, Request
from .fits import EXACT, Case, Fit, drift

Verdict: TypeAlias = Literal[
    "exact", "scaled", "this n only", "in part", "0/1 only", "other objective", "varying scale",
    "on policy only", "biased", "no signal", "unusable",
]  # fmt: skip
"""What the enumeration shows:
exact: unbiased for ∇max@k in the mean convention;
scaled: the same up to a constant factor;
this n only: exact or scaled with the n judged, and not with another;
in part: exact or scaled on what was enumerated, with a silent defect elsewhere or in a loss;
0/1 only: unbiased, up to a constant, on 0/1 rewards, and biased on real ones;
other objective: unbiased, up to a constant, for something else than max@k;
varying scale: the right direction under every policy, times a factor that depends on the policy;
on policy only: unbiased, up to a constant, until the policy moves away from the one that sampled;
biased: the direction is off;
no signal: the expected update is zero;
unusable: no way of calling it gave one number per sample."""


@dataclass(frozen=True)
class Conformance:
    """What exact enumeration found out about one estimator. `print` it to read it."""

    name: str
    k: int
    n: int
    off_policy: bool
    verdict: Verdict
    summary: str
    """One sentence."""
    called_with: str
    """"NumPy arrays (groups, n)", "plain lists (n,)", …"""
    outcomes: int
    """How many outcomes each policy was enumerated over."""
    ordered: bool
    """Every ordered draw, or every multiset with its count."""
    zero_one: Fit | None
    real: Fit | None
    """None where real rewards are not accepted."""
    cases: tuple[Case, ...]
    findings: tuple[Finding, ...]
    by_count: tuple[tuple[float, float], ...]
    """(advantage of a right sample, of a wrong one) at c = 0..n right; log-ratios 0."""

    @property
    def unbiased(self) -> bool:
        """Unbiased for ∇max@k up to a constant factor, on every kind of reward it accepts."""
        return self.verdict in ("exact", "scaled")

    @property
    def scale(self) -> float | None:
        """The constant factor, where there is one for all rewards it accepts."""
        fits = [each for each in (self.zero_one, self.real) if each is not None]
        constants = [each.constant for each in fits if each.constant is not None]
        same = len(constants) == len(fits) and fits
        return constants[0] if same and math.isclose(min(constants), max(constants)) else None

    @property
    def bias(self) -> float:
        """The largest |expected update - gradient| / |gradient| over all policies."""
        return max((each.bias for each in self.cases), default=math.nan)

    @property
    def variance(self) -> float:
        """Exact variance of one group's update over |gradient|², geometric mean over policies.

        A constant factor does not count. Compares unbiased estimators of one k and n where the
        policy has three or four answers; with many answers their order can be another one.
        """
        values = [each.variance for each in self.cases]
        return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan

    @property
    def cosine(self) -> float:
        """The smallest cosine between expected update and gradient over all policies."""
        return min((each.cosine for each in self.cases), default=math.nan)

    @property
    def convention(self) -> str:
        """The name of the constant factor in n and k ("1", "1/n", …), or ""."""
        return self.zero_one.convention if self.scale is not None and self.zero_one else ""

    @property
    def centred(self) -> bool | None:
        """Whether the advantages of every group sum to 0; None off policy, where they need not."""
        finding = self.finding("centring")
        return None if finding is None else finding.status == "ok"

    @property
    def defects(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.status == "bad")

    def finding(self, check: str) -> Finding | None:
        """The finding of that name, or None where the check did not apply."""
        return next((each for each in self.findings if each.check == check), None)

    def __str__(self) -> str:
        return render(self)


def unusable(request: Request, error: CannotCall) -> Conformance:
    """The verdict on what could not be called."""
    summary = f"unusable with n = {request.n}: {error}"
    return Conformance(
        request.name, request.k, request.n, request.off_policy, "unusable", summary,
        "", 0, True, None, None, (), (), (),
    )  # fmt: skip


def span(low: float, high: float) -> str:
    """A range of numbers, or one number where both ends look the same.

    >>> span(0.5, 0.5), span(0.981, 1.0), span(-0.25, 3.0)
    ('0.5', '0.98 to 1', '-0.25 to 3')
    """
    a, b = _short(low), _short(high)
    return a if a == b else f"{a} to {b}"


def _short(value: float) -> str:
    digits = f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"
    if digits in ("1.00", "-1.00") and abs(abs(value) - 1) > 1e-5:
        digits = f"{value:.4f}"  # 0.9987 is not 1
    return digits.rstrip("0").rstrip(".") if "." in digits and "e" not in digits else digits


def fit_text(fit: Fit) -> str:
    """Bias, scale and direction in one line."""
    scale = span(*fit.scale)
    if fit.constant is not None:
        scale = _short(fit.constant)
        scale += f" = {fit.convention}" if fit.convention not in ("", scale) else ""
    bias = f"{fit.bias:.0e}" if fit.bias < 1e-5 else f"{fit.bias:.1%}"
    bias = bias if fit.bias < 10 else f"{fit.bias:.0f} times"
    after = " (none after the factor)" if fit.constant is not None and not fit.exact else ""
    head = f"scale {scale:<16} cosine {span(*fit.cosine):<10} bias {bias}{after}"
    return head + (f"  variance {fit.variance:.3g}" if fit.constant is not None else "")


def _spreads(result: Conformance) -> str:
    shown = [
        f"{'0' if worst < EXACT else format(worst, '.1%')} at {spread:g}"
        for spread, worst in drift(result.cases).items()
    ]
    return f"{'off policy':<13}worst bias by sd of the log-ratio: " + ", ".join(shown)


def _counts(result: Conformance) -> list[str]:
    chosen = range(result.n + 1)
    if result.n > 8:
        picks = {0, 1, 2, result.n // 2, result.n - result.k, result.n - result.k + 1, result.n}
        chosen = sorted(c for c in picks if 0 <= c <= result.n)  # type: ignore[assignment]

    def row(name: str, values: list[str]) -> str:
        return f"{name:<13}" + "".join(f"{value:>10}" for value in values)

    largest = max((abs(v) for pair in result.by_count for v in pair if math.isfinite(v)), default=0)

    def cell(value: float) -> str:
        if math.isnan(value):
            return "-"
        return "0" if abs(value) < 1e-9 * largest else f"{value:.3g}"

    return [
        row("right of n", [str(c) for c in chosen]),
        row("right get", [cell(result.by_count[c][0]) for c in chosen]),
        row("wrong get", [cell(result.by_count[c][1]) for c in chosen]),
    ]


def render(result: Conformance) -> str:
    """The verdict as text: one sentence first, then aligned lines."""
    lines = [f"{result.name}: {result.summary}"]
    if result.verdict != "unusable":
        how = "each" if result.ordered else "each up to order"
        lines.append(
            f"judged       k = {result.k}, n = {result.n}; {len(result.cases)} policies, "
            f"{result.outcomes:,} outcomes {how}, all enumerated; called with {result.called_with}"
        )
        for name, fit in (("0/1 rewards", result.zero_one), ("real rewards", result.real)):
            lines.append(f"{name:<13}" + ("error" if fit is None else fit_text(fit)))
        if result.off_policy:
            lines.append(_spreads(result))
        lines += _counts(result) if result.by_count else []
    marks = {"ok": "ok ", "bad": "BAD", "note": "-  "}
    lines += [f"{each.check:<13}{marks[each.status]} {each.text}" for each in result.findings]
    return "\n".join([lines[0], *("  " + line for line in lines[1:])])


def sentence(
    k: int,
    n: int,
    zero_one: Fit | None,
    real: Fit | None,
    other: tuple[str, float] | None,
    normaliser: bool,
    trouble: Sequence[Finding],
    target: str,
) -> tuple[Verdict, str]:
    """The verdict and its one sentence."""
    fits = [each for each in (zero_one, real) if each is not None]
    only = "" if real is not None else "; on 0/1 rewards, real ones raise an error"
    but = "; it fails on some groups" if trouble else ""
    if all(max(abs(s) for s in each.scale) < 1e-9 and each.bias < 1.001 for each in fits):
        return "no signal", f"no signal: the expected update is zero under every policy{but}"
    constants = [each.constant for each in fits if each.constant is not None]
    close = max(1e-4, *(each.tolerance for each in fits))
    if len(constants) == len(fits) and np.allclose(constants, constants[0], rtol=close):
        if all(each.exact for each in fits):
            return "exact", f"unbiased for {target}, in the mean convention{only}{but}"
        return "scaled", f"unbiased for {_times(constants[0], fits[0], k, n, target)}{only}{but}"
    if other is not None:
        name, factor = other
        size = "" if abs(factor - 1) < 1e-4 else f", times {factor:.4g}"
        return (
            "other objective",
            f"not max@{k}: unbiased for the gradient of {name}{size}{only}{but}",
        )
    if zero_one is not None and real is not None and zero_one.constant is not None:
        good = _times(zero_one.constant, zero_one, k, n, target) if not zero_one.exact else target
        bad = f"biased on real ones (cosine {span(*real.cosine)}, scale {span(*real.scale)})"
        return "0/1 only", f"unbiased for {good} on 0/1 rewards, {bad}{but}"
    cosine = span(min(f.cosine[0] for f in fits), max(f.cosine[1] for f in fits))
    scale = span(min(f.scale[0] for f in fits), max(f.scale[1] for f in fits))
    cause = "a normaliser" if normaliser else "a normaliser, or a baseline that sees its own sample"
    if all(each.right_direction for each in fits):
        text = f"right direction, but the scale varies with the policy, {scale}: {cause}{only}{but}"
        return "varying scale", f"biased: {text}"
    why = ": a normaliser" if normaliser else ""
    return (
        "biased",
        f"biased: cosine {cosine}, scale {scale}, varying with the policy{why}{only}{but}",
    )


def drifting(cases: Sequence[Case], at_once: Fit, k: int, n: int, target: str) -> str:
    """The sentence for an estimator that is right until the policy moves."""
    shown = ", ".join(f"{worst:.1%} at {s:g}" for s, worst in drift(cases).items() if s > 0)
    target = _times(at_once.constant or 1.0, at_once, k, n, target)
    return (
        f"unbiased for {target}, only while π_θ = π_old; worst bias by sd of the log-ratio: {shown}"
    )


def _times(scale: float, fitted: Fit, k: int, n: int, target: str) -> str:
    named = fitted.convention
    times = f"{scale:.4g} times {target}"
    if named == "1":
        return target
    if named.split(" = ")[0] == "1/n":
        return f"1/n times {target}: the sum convention, n = {n} times too small for a mean loss"
    if scale < 0:
        return f"{times}: it points the wrong way"
    return f"{named} times {target} ({scale:.4g})" if named else times
