"""Put a function through every policy and every edge case, and say in one sentence what it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bestofk.objectives import Objective

from . import behaviour
from .behaviour import Finding
from .calling import CannotCall, Estimator, Kind, described, find_out, named_function
from .fits import Case, Fit, case, drift, fit, other_objective
from .policies import (
    OUTCOMES,
    Outcomes,
    Policy,
    all_outcomes,
    off_policy_cases,
    on_policy_cases,
)
from .verdict import Conformance, Verdict, span

ROWS = 3_000
"""Outcomes enumerated one by one when every group is a call of its own."""


def judge(
    fn: Callable[..., Any] | Objective | str,
    k: int,
    n: int,
    off_policy: bool,
    name: str | None,
    kind: Kind | None,
    seed: int,
) -> Conformance:
    """See `bestofk.conformance`; k and n are valid here."""
    label, function = named_function(fn, off_policy)
    label = name or label
    try:
        estimator = find_out(label, function, n, off_policy, kind)
    except CannotCall as error:
        summary = f"unusable with n = {n}: {error}"
        return Conformance(
            label, k, n, off_policy, "unusable", summary, "", 0, True, None, None, (), (), ()
        )
    takes_real = not isinstance(_probe_real(estimator, n), Exception)
    found = behaviour.order(estimator, n, takes_real)
    in_order = found[0].status == "ok"
    outcomes = _outcomes(estimator, n, in_order, seed)
    make = off_policy_cases if off_policy else on_policy_cases
    policies = [p for p in make(k, outcomes.answers, seed) if takes_real or p.kind == "0/1"]
    cases, trouble = _enumerate(estimator, policies, outcomes, k)
    fits = {kind: fit([c for c in cases if c.kind == kind], k, n) for kind in ("0/1", "real")}
    zero_one, real = fits["0/1"], fits["real"]
    at_once = fit([c for c in cases if c.spread == 0], k, n)
    other = other_objective(policies, cases, k, n)
    table = behaviour.by_count(estimator, n)
    found += trouble
    found += _centring(estimator, outcomes, policies) if not off_policy else []
    found += behaviour.counts(estimator, k, n) + _real(estimator, n)
    found += behaviour.too_few(estimator, k, n, n > k and other is None)
    if found[0].check != "random":  # these compare two calls
        found += behaviour.ties(estimator, n, takes_real) + behaviour.padding(estimator, n)
        found += behaviour.numbers(estimator, n)
        found += behaviour.shift_and_scale(estimator, n) if takes_real else []
    found += _shape(estimator)
    normaliser = any(each.check == "scale" and "normaliser" in each.text for each in found)
    verdict, summary = _sentence(k, n, zero_one, real, other, normaliser, trouble)
    if off_policy and verdict in ("biased", "varying scale") and at_once and at_once.constant:
        verdict, summary = "on policy only", _drift(cases, at_once, k, n)
    if found[0].check == "random":
        summary += "; two calls differ, so this is one draw of it"
    return Conformance(
        label, k, n, off_policy, verdict, summary, _called_with(estimator), len(outcomes.draws),
        outcomes.ordered, zero_one, real, tuple(cases), tuple(found), table,
    )  # fmt: skip


def _probe_real(estimator: Estimator, n: int) -> np.ndarray | Exception:
    try:
        return estimator.one(behaviour.distinct(n))
    except Exception as error:
        return error


def _outcomes(estimator: Estimator, n: int, in_order: bool, seed: int) -> Outcomes:
    """As many answers as can be enumerated: four, three; up to order; two if order matters."""
    limit = OUTCOMES if estimator.batched else ROWS
    if 4**n <= limit and not estimator.off_policy:
        return all_outcomes(4, n)
    if 3**n <= limit or in_order:
        return all_outcomes(3, n, limit=limit, seed=seed)
    if 3**n <= 3 * OUTCOMES:
        return all_outcomes(3, n, limit=3 * OUTCOMES)
    raise ValueError(
        f"the function depends on the order of samples, so all 3^{n} outcomes would have to be "
        "enumerated: judge with n ≤ 10"
    )


def _enumerate(
    estimator: Estimator, policies: Sequence[Policy], outcomes: Outcomes, k: int
) -> tuple[list[Case], list[Finding]]:
    """Expected update under every policy. Weights are made once per set of rewards and ratios."""
    made: dict[bytes, np.ndarray] = {}
    cases, trouble = [], {}
    for policy in policies:
        key = policy.rewards.tobytes() + policy.log_ratio.tobytes()
        if key not in made:
            rewards = policy.rewards[outcomes.draws]
            logs = policy.log_ratio[outcomes.draws] if estimator.off_policy else None
            made[key], problem = _weights(estimator, rewards, logs)
            if problem and policy.kind not in trouble:
                trouble[policy.kind] = problem
        cases.append(case(policy, outcomes, made[key], k))
    return cases, list(trouble.values())


def _weights(
    estimator: Estimator, rewards: np.ndarray, logs: np.ndarray | None
) -> tuple[np.ndarray, Finding | None]:
    """Weights of every distinct group; zeros, and a finding, where it raises or is not finite."""
    both = rewards if logs is None else np.concatenate([rewards, logs], axis=1)
    _, first, where = np.unique(both, axis=0, return_index=True, return_inverse=True)
    answers = estimator.many(rewards[first], None if logs is None else logs[first])
    values = answers.values
    problem = None
    broken = ~np.isfinite(values).all(axis=-1)
    if broken.any():
        row = int(np.argmax(broken))
        group = behaviour._numbers(rewards[first][row])
        share = f"{int(broken.sum()):,} of {len(values):,} groups, the first {group}; judged as 0"
        if row in answers.failures:
            problem = Finding("raises", "bad", f"{described(answers.failures[row], 90)} on {share}")
        else:
            problem = Finding("not finite", "bad", f"NaN or infinite weights on {share}")
        values = np.where(broken[:, None], 0.0, values)
    return values[where.reshape(-1)], problem


def _centring(
    estimator: Estimator, outcomes: Outcomes, policies: Sequence[Policy]
) -> list[Finding]:
    """Whether the weights of a group sum to 0: always, or not."""
    worst, largest = 0.0, 0.0
    for rewards in {p.rewards.tobytes(): p.rewards for p in policies}.values():
        weights, _ = _weights(estimator, rewards[outcomes.draws][:ROWS], None)
        worst = max(worst, float(np.abs(weights.sum(axis=-1)).max()))
        largest = max(largest, float(np.abs(weights).max()))
    if worst <= 1e-6 * max(largest, 1e-12) * outcomes.draws.shape[-1]:
        return [Finding("centring", "ok", "the weights of every group sum to 0")]
    text = f"weights of a group sum to up to {worst:.3g} (largest weight {largest:.3g})"
    return [Finding("centring", "note", f"not centred: {text}")]


def _real(estimator: Estimator, n: int) -> list[Finding]:
    answer = _probe_real(estimator, n)
    if isinstance(answer, Exception):
        return [Finding("real", "ok", f"refuses real rewards: {described(answer, 100)}")]
    return []


def _shape(estimator: Estimator) -> list[Finding]:
    notes = [("shape", "bad", estimator.shape_note), ("batch", "note", estimator.batch_note)]
    return [Finding(c, s, t) for c, s, t in notes if t]  # type: ignore[arg-type]


def _called_with(estimator: Estimator) -> str:
    arrays = {"numpy": "NumPy arrays", "torch": "torch tensors", "list": "plain lists"}
    shape = "(1, n), one group at a time" if estimator.wrapped else "(n,), one group at a time"
    return f"{arrays[estimator.kind]} {'(groups, n)' if estimator.batched else shape}"


def _sentence(
    k: int,
    n: int,
    zero_one: Fit | None,
    real: Fit | None,
    other: tuple[str, float] | None,
    normaliser: bool,
    trouble: Sequence[Finding],
) -> tuple[Verdict, str]:
    """The verdict and its one sentence."""
    fits = [each for each in (zero_one, real) if each is not None]
    target = _target(k)
    only = "" if real is not None else "; on 0/1 rewards, real ones are refused"
    but = "; but it fails on some groups, see below" if trouble else ""
    if all(max(abs(s) for s in each.scale) < 1e-9 and each.bias < 1.001 for each in fits):
        return "no signal", f"no signal: the expected update is zero under every policy{but}"
    constants = [each.constant for each in fits if each.constant is not None]
    if len(constants) == len(fits) and np.allclose(constants, constants[0], rtol=1e-4):
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


def _drift(cases: Sequence[Case], at_once: Fit, k: int, n: int) -> str:
    """The sentence for an estimator that is right until the policy moves."""
    shown = ", ".join(f"{worst:.1%} at {s:g}" for s, worst in drift(cases).items() if s > 0)
    target = _times(at_once.constant or 1.0, at_once, k, n, _target(k))
    return (
        f"unbiased for {target}, only while π_θ = π_old; worst bias by sd of the log-ratio: {shown}"
    )


def _target(k: int) -> str:
    return f"the gradient of max@{k}" if k > 1 else "the gradient of the mean reward (max@1)"


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
