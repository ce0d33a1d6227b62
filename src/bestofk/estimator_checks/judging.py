"""Put a function through every policy and every edge case, and say in one sentence what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bestofk.objectives import Objective

from . import behaviour
from .behaviour import Finding
from .calling import (
    CannotCall,
    JudgedFunction,
    Request,
    TooSlow,
    by_place,
    described,
    find_out,
)
from .elsewhere import elsewhere
from .fits import EXACT, Case, Fit, case_of_calls, fit, other_objective
from .policies import (
    OUTCOMES,
    Outcomes,
    TabularPolicy,
    all_outcomes,
    off_policy_cases,
    on_policy_cases,
)
from .verdict import Conformance, drifting, sentence, span, unusable

DRAWS = 64
"""Calls per outcome of a randomised function."""
NOT_ABOUT_UPDATES = ("n < k", "random", "shape")
"""Defects that leave the update of a complete group right; any other one is in the verdict."""
ROWS = 3_000
"""Outcomes enumerated one by one when every group is a call of its own."""


def judge(fn: Callable[..., Any] | Objective, request: Request) -> Conformance:
    """See `bestofk.conformance`; k and n are valid here."""
    k, n, off_policy, seed = request.k, request.n, request.off_policy, request.seed
    try:
        estimator = find_out(by_place(fn), request, off_policy=off_policy)
    except CannotCall as error:
        return unusable(request, error)
    on_real = behaviour.tried(estimator, behaviour.distinct(n))
    takes_real = not isinstance(on_real, Exception)
    result = behaviour.order(estimator, n, takes_real)
    in_order = result[0].status == "ok"
    outcomes = _outcomes(estimator, n, in_order, seed)
    make = off_policy_cases if off_policy else on_policy_cases
    policies = [p for p in make(k, outcomes.answers, seed) if takes_real or p.kind == "0/1"]
    random = result[0].check == "random"
    cases, trouble, noise = _enumerate(estimator, policies, outcomes, k, DRAWS if random else 1)
    fits = {
        kind: fit([c for c in cases if c.kind == kind], k, n, max(EXACT, noise))
        for kind in ("0/1", "real")
    }
    zero_one, real = fits["0/1"], fits["real"]
    at_once = fit([c for c in cases if c.spread == 0], k, n, max(EXACT, noise))
    other = other_objective(policies, cases, k, n)
    table = behaviour.by_count(estimator, n)
    result += trouble
    result += _centring(estimator, outcomes, policies) if not off_policy else []
    result += behaviour.counts(estimator, k, n)
    if isinstance(on_real, Exception):
        result.append(Finding("real", "ok", f"raises on real rewards: {described(on_real, 100)}"))
    result += behaviour.too_few(estimator, k, n, n > k and other is None)
    if not random:  # these compare two calls
        result += behaviour.ties(estimator, n, takes_real) + behaviour.padding(estimator, n)
        result += behaviour.numbers(estimator, n)
        result += behaviour.shift_and_scale(estimator, n) if takes_real else []
    result += _shape(estimator)
    normaliser = any(each.check == "scale" and "normaliser" in each.text for each in result)
    verdict, summary = sentence(k, n, zero_one, real, other, normaliser, trouble, _target(k))
    wrong = ("biased", "varying scale", "0/1 only")
    if off_policy and verdict in wrong and at_once and at_once.constant:
        verdict, summary = "on policy only", drifting(cases, at_once, k, n, _target(k))
    if random:
        summary += f"; two calls differ: means over {DRAWS} draws, to within {noise:.1%}"
    elif verdict in ("exact", "scaled") and 1 <= k < n:
        sweep = _other_sizes(estimator, fits, k, n, in_order, seed)
        result += sweep
        if any(each.status == "bad" for each in sweep):
            verdict = "this n only"
            summary += f"; but only with n = {n}, see below"
        else:
            beyond = elsewhere(estimator, k, n, real=real is not None, exact=verdict == "exact")
            result.append(beyond)
    if verdict in ("exact", "scaled"):
        bad = {each.check for each in result if each.status == "bad"} - {*NOT_ABOUT_UPDATES}
        if bad:
            verdict = "in part"
            summary += f"; but not everywhere, see {' and '.join(sorted(bad))} below"
    return Conformance(
        request.name, k, n, off_policy, verdict, summary, _called_with(estimator),
        len(outcomes.draws), outcomes.ordered, zero_one, real, tuple(cases), tuple(result), table,
    )  # fmt: skip


def _outcomes(estimator: JudgedFunction, n: int, in_order: bool, seed: int) -> Outcomes:
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
    estimator: JudgedFunction,
    policies: Sequence[TabularPolicy],
    outcomes: Outcomes,
    k: int,
    draws: int = 1,
) -> tuple[list[Case], list[Finding], float]:
    """Expected update under every policy. Advantages are made once per set of rewards and ratios.

    A randomised function is called `draws` times per outcome and judged by the mean; the third
    result is how far such a mean may be off by chance, at worst.
    """
    built: dict[bytes, list[np.ndarray]] = {}
    cases, trouble, noise = [], {}, 0.0
    for policy in policies:
        key = policy.rewards.tobytes() + policy.log_ratio.tobytes()
        if key not in built:
            rewards = policy.rewards[outcomes.draws]
            logs = policy.log_ratio[outcomes.draws] if estimator.off_policy else None
            built[key] = []
            for _ in range(draws):
                advantages, problem = _advantages(estimator, rewards, logs, once=draws == 1)
                built[key].append(advantages)
                if problem and policy.kind not in trouble:
                    trouble[policy.kind] = problem
        of_policy, chance = case_of_calls(policy, outcomes, built[key], k)
        cases.append(of_policy)
        noise = max(noise, chance)
    return cases, list(trouble.values()), noise


def _other_sizes(
    estimator: JudgedFunction,
    fits: Mapping[str, Fit | None],
    k: int,
    n: int,
    in_order: bool,
    seed: int,
) -> list[Finding]:
    """Whether the claim holds at n = k and at n ≥ 8 too; raising there is an answer as well."""
    first = next(each for each in fits.values() if each is not None)
    good, raised, slow = [], [], []
    for size in sorted({k, k + 1, max(8, k + 3)} - {n, 1}):
        if size > n and not in_order and 3**size > OUTCOMES:
            continue
        outcomes = all_outcomes(3, size, limit=OUTCOMES if estimator.batched else ROWS, seed=seed)
        make = off_policy_cases if estimator.off_policy else on_policy_cases
        policies = [p for p in make(k, outcomes.answers, seed) if fits[p.kind] is not None]
        if isinstance(behaviour.tried(estimator, np.eye(size)[-1]), Exception):
            raised.append(size)
            continue
        try:
            result = fit(_enumerate(estimator, policies, outcomes, k)[0], k, size)
        except TooSlow:
            slow.append(size)
            continue
        assert result is not None
        names = [set(each.convention.split(" = ")) - {""} for each in (first, result)]
        same = result.constant is not None and first.constant is not None
        if result.constant is not None and first.constant is not None and not names[0] & names[1]:
            same = bool(np.isclose(result.constant, first.constant, rtol=1e-4))
        if not same:
            text = f"at n = {size} the same claim fails: scale {span(*result.scale)}, cosine "
            return [Finding("other n", "bad", text + span(*result.cosine))]
        good.append(size)
    parts = [f"holds at n = {', '.join(map(str, good))} too"] if good else []
    parts += [f"raises at n = {', '.join(map(str, raised))}"] if raised else []
    parts += [f"too slow to try at n = {', '.join(map(str, slow))}"] if slow else []
    return [Finding("other n", "ok", "; ".join(parts))] if parts else []


def _advantages(
    estimator: JudgedFunction,
    rewards: np.ndarray,
    logs: np.ndarray | None,
    once: bool = True,
) -> tuple[np.ndarray, Finding | None]:
    """Advantages of every distinct group; zeros, and a finding, where it raises or is not finite.

    `once`: groups that look the same share one call; a randomised function is called for each.
    """
    both = rewards if logs is None else np.concatenate([rewards, logs], axis=1)
    first = where = np.arange(len(rewards))
    if once:
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
            problem = Finding("not finite", "bad", f"NaN or infinite advantages on {share}")
        values = np.where(broken[:, None], 0.0, values)
    return values[where.reshape(-1)], problem


def _centring(
    estimator: JudgedFunction, outcomes: Outcomes, policies: Sequence[TabularPolicy]
) -> list[Finding]:
    """Whether the advantages of a group sum to 0: always, or not."""
    worst, largest = 0.0, 0.0
    for rewards in {p.rewards.tobytes(): p.rewards for p in policies}.values():
        advantages, _ = _advantages(estimator, rewards[outcomes.draws][:ROWS], None)
        worst = max(worst, float(np.abs(advantages.sum(axis=-1)).max()))
        largest = max(largest, float(np.abs(advantages).max()))
    if worst <= 1e-6 * max(largest, 1e-12) * outcomes.draws.shape[-1]:
        return [Finding("centring", "ok", "the advantages of every group sum to 0")]
    text = f"advantages of a group sum to up to {worst:.3g} (largest advantage {largest:.3g})"
    return [Finding("centring", "note", f"not centred: {text}")]


def _shape(estimator: JudgedFunction) -> list[Finding]:
    mixed = "bad" if estimator.groups_mix else "note"
    notes = [("shape", "bad", estimator.shape_note), ("batch", mixed, estimator.batch_note)]
    return [Finding(c, s, t) for c, s, t in notes if t]  # type: ignore[arg-type]


def _called_with(estimator: JudgedFunction) -> str:
    arrays = {"numpy": "NumPy arrays", "torch": "torch tensors", "list": "plain lists"}
    shape = "(1, n), one group at a time" if estimator.wrapped else "(n,), one group at a time"
    return f"{arrays[estimator.kind]} {'(groups, n)' if estimator.batched else shape}"


def _target(k: int) -> str:
    return f"the gradient of max@{k}" if k > 1 else "the gradient of the mean reward (max@1)"
