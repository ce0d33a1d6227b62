"""Judge estimators of procedures beyond the maximum, each against its definition.

What k samples are worth is evaluated on every ordered draw of k of a few answers, so the gradient
that is wanted is a finite sum too, and owes nothing to the formulas of the library.
"""

from __future__ import annotations

import inspect
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bestofk.messages import unknown
from bestofk.objectives import Objective, objective

from .behaviour import Finding
from .calling import CannotCall, Clock, Kind, _given, _taken, described
from .fits import EXACT, Case, case, fit
from .policies import OUTCOMES, SPREADS, Outcomes, TabularPolicy, _moved, all_outcomes
from .verdict import Conformance

MOST_DRAWS = 300_000
"""Ordered draws of k answers that are enumerated for the gradient."""
NOISE = 12
"""Calls of a function with noise of its own, each with another seed."""
Worth = Callable[[Mapping[str, np.ndarray], Mapping[str, Any]], float]
"""(rewards, scores, answers, tokens of k draws in order; options) → what they are worth."""


def _select(draw: Mapping[str, np.ndarray], _: Mapping[str, Any]) -> float:
    scores = draw["scores"]
    return float(draw["rewards"][scores == scores.max()].mean())


def _soft(draw: Mapping[str, np.ndarray], _: Mapping[str, Any]) -> float:
    chances = np.exp(draw["scores"] - draw["scores"].max())
    return float(draw["rewards"] @ chances / chances.sum())


def _retry(draw: Mapping[str, np.ndarray], options: Mapping[str, Any], cost: str = "") -> float:
    passed = np.flatnonzero(draw["rewards"] >= options.get("stop", 1.0))
    last = int(passed[0]) if passed.size else len(draw["rewards"]) - 1
    used = draw["rewards"][last] if passed.size else draw["rewards"].max()
    spent = draw["tokens"][: last + 1].sum() if cost else last + 1
    return float(used - options["price"] * spent)


def _vote(draw: Mapping[str, np.ndarray], _: Mapping[str, Any], rule: str = "") -> float:
    own = draw["scores"] if "weighted" in rule else np.ones(len(draw["rewards"]))
    worth: dict[float, float] = {}
    tally: dict[Any, float] = {}
    for answer, votes, reward in zip(draw["answers"].tolist(), own, draw["rewards"]):
        tally[answer] = tally.get(answer, 0.0) + votes
        worth[answer] = reward
    most = max(tally.values())
    lead = [worth[each] for each in tally if tally[each] == most]
    if most == 0 or ("wrong" in rule and len(lead) > 1):
        return 0.0
    return max(lead) if "count" in rule else float(np.mean(lead))


def _subsets(draw: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> float:
    return float(options["value"](draw["rewards"], draw["scores"], draw["answers"]))


def _maj(rule: str) -> Worth:
    return lambda draw, options: _vote(draw, options, rule)


DEFINITIONS: dict[str, tuple[Worth, tuple[str, ...]]] = {
    "select@k": (_select, ("scores",)),
    "select@k:soft": (_soft, ("scores",)),
    "retry@k": (_retry, ()),
    "retry@k:tokens": (lambda draw, options: _retry(draw, options, "tokens"), ("tokens",)),
    "maj@k": (_maj(""), ("answers",)),
    "maj@k:ties-wrong": (_maj("wrong"), ("answers",)),
    "maj@k:ties-count": (_maj("count"), ("answers",)),
    "maj@k:weighted": (_maj("weighted"), ("answers", "scores")),
    "maj@k:weighted:ties-wrong": (_maj("weighted wrong"), ("answers", "scores")),
    "maj@k:weighted:ties-count": (_maj("weighted count"), ("answers", "scores")),
    "subsets@k": (_subsets, ("scores", "answers")),
}
"""What k draws are worth, and what the estimator gets beside rewards, as keyword arguments."""


@dataclass(frozen=True)
class Setting:
    """A few answers with all that a procedure may look at."""

    label: str
    columns: Mapping[str, np.ndarray]


SETTINGS = tuple(
    Setting(
        label,
        {
            "rewards": np.array(rewards),
            "scores": np.array(scores),
            "answers": np.array(answers),
            "tokens": np.array([3.0, 8.0, 1.0, 20.0]),
        },
    )
    for label, rewards, scores, answers in (
        ("0/1, scores tie", [0.0, 1.0, 0.0, 1.0], [2.0, 1.0, 3.0, 2.0], [0, 1, 2, 1]),
        ("0/1, the best-scored is wrong", [1.0, 0.0, 1.0, 0.0], [1.0, 4.0, 2.0, 0.0], [0, 1, 2, 3]),
        ("real, scores tie", [0.0, 1.0, 0.4, 0.0], [2.0, 1.0, 2.0, 1.0], [0, 1, 2, 0]),
        ("real, all differ", [-0.3, 1.2, 0.4, 0.1], [0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3]),
    )
)


@dataclass(frozen=True)
class Deployed(TabularPolicy):
    """A policy, and what every ordered draw of k of its answers is worth."""

    worths: np.ndarray | None = None

    def gradient(self, k: int) -> np.ndarray:
        assert self.worths is not None
        draws = np.array(list(itertools.product(range(len(self.rewards)), repeat=k)))
        counts = np.stack([(draws == each).sum(axis=1) for each in range(len(self.rewards))], 1)
        values = self.worths * self.probabilities[draws].prod(axis=1)
        return np.asarray(values @ (counts - k * self.probabilities))


def procedure_of(fn: Any, stated: str | None, options: Mapping[str, Any]) -> str | None:
    """The procedure that is judged, as a metric; None: max@k.

    Raises:
        ValueError: an unknown one.
    """
    chosen = objective(fn, **options) if stated is None and isinstance(fn, str) else fn
    if stated is None and isinstance(chosen, Objective):
        found = {term.entry.procedure.metric for term in chosen.terms}
        stated = found.pop() if len(found) == 1 else None
    if stated in (None, "max@k"):
        return None
    if stated not in DEFINITIONS:
        raise unknown("procedure", str(stated), ["max@k", *DEFINITIONS])
    return stated


def judge_procedure(
    fn: Callable[..., Any] | Objective | str,
    procedure: str,
    k: int,
    n: int,
    off_policy: bool,
    name: str | None,
    kind: Kind | None,
    seed: int,
    clock: Clock,
    options: Mapping[str, Any],
) -> Conformance:
    """See `bestofk.conformance`; k and n are valid here."""
    worth, needs = DEFINITIONS[procedure]
    own = objective(fn, **options) if isinstance(fn, str) else fn
    if isinstance(own, Objective):
        options = {**options, **own.options}
    missing = {"retry": "price", "subsets": "value"}.get(procedure.partition("@")[0])
    if missing and options.get(missing) is None:
        raise ValueError(
            f"to judge {procedure}, state {missing}=: what the function takes for granted"
        )
    if 4**k > MOST_DRAWS:
        raise ValueError(f"k = {k} has {4**k:,} ordered draws of 4 answers: judge a smaller k")
    label: str = name or (
        str(own) if isinstance(own, Objective) else str(getattr(own, "__name__", "it"))
    )
    call = _caller(own, needs, off_policy, kind)
    made: dict[tuple[str, bytes], list[np.ndarray]] = {}
    is_noisy = procedure.endswith(":soft")
    cases: list[Case] = []
    noise = 0.0
    try:
        findings = _behaviour(call, k, n)
        in_order = findings[0].status == "ok"
        limit = math.comb(n + 3, n) if in_order and not is_noisy else OUTCOMES
        outcomes = all_outcomes(4, n, limit=limit)
        for setting in SETTINGS:
            draws = np.array(list(itertools.product(range(4), repeat=k)))
            parts = ({key: each[draw] for key, each in setting.columns.items()} for draw in draws)
            worths = np.array([worth(each, options) for each in parts])
            for policy in _policies(setting, worths, off_policy, seed):
                key = (setting.label, policy.log_ratio.tobytes() if off_policy else b"")
                if key not in made:
                    made[key] = [
                        call(setting.columns, outcomes, policy.log_ratio, number, clock)
                        for number in range(NOISE if is_noisy else 1)
                    ]
                cases.append(case(policy, outcomes, np.mean(made[key], axis=0), k))
                if is_noisy:
                    updates = np.array(
                        [outcomes.expected_update(policy, each) for each in made[key]]
                    )
                    error = np.sqrt(updates.var(axis=0, ddof=1).sum() / NOISE)
                    size = np.linalg.norm(policy.gradient(k))
                    noise = max(noise, 6 * float(error / size))
    except CannotCall as error:
        summary = f"unusable with n = {n}: {error}"
        return Conformance(
            label, k, n, off_policy, "unusable", summary, "", 0, True, None, None, (), (), ()
        )
    from .judging import _drift, _sentence

    target = f"the gradient of {procedure.replace('@k', f'@{k}')}"
    fits = [
        fit([each for each in cases if each.kind == kind], k, n, max(EXACT, noise))
        for kind in ("0/1", "real")
    ]
    verdict, summary = _sentence(k, n, fits[0], fits[1], None, False, (), target)
    still = fit([each for each in cases if each.spread == 0], k, n, max(EXACT, noise))
    if off_policy and verdict in ("biased", "0/1 only") and still and still.constant:
        verdict, summary = "on policy only", _drift(cases, still, k, n, target)
    if verdict in ("exact", "scaled") and any(each.status == "bad" for each in findings):
        verdict, summary = "in part", f"{summary}; but not everywhere, see below"
    if is_noisy:
        summary += f"; means over {NOISE} seeds, to within {noise:.1%}"
    inputs = ", ".join(["rewards", *needs, *["log_ratio"] * off_policy])
    return Conformance(
        label, k, n, off_policy, verdict, summary, f"{inputs}, each (groups, n) or (n,)",
        len(outcomes.draws), outcomes.ordered, fits[0], fits[1], tuple(cases), tuple(findings), (),
    )  # fmt: skip


def _policies(setting: Setting, worths: np.ndarray, off_policy: bool, seed: int) -> list[Deployed]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(1 if off_policy else 3):
        old = rng.dirichlet(np.full(4, 3.0))
        for spread in SPREADS if off_policy else (0.0,):
            now = _moved(old, rng.standard_normal(4), spread)
            label = f"{setting.label}, policy {number + 1}, log-ratio sd {spread:g}"
            rewards = setting.columns["rewards"]
            found.append(Deployed(label, now, rewards, old, spread, worths))
    return found


Call = Callable[[Mapping[str, np.ndarray], Outcomes, np.ndarray, int, Clock], np.ndarray]


def _caller(fn: Any, needs: tuple[str, ...], off_policy: bool, kind: Kind | None) -> Call:
    """(columns of the answers, outcomes, log-ratio of each answer, seed, clock) → advantages."""
    takes_seed = isinstance(fn, Objective)
    if not callable(fn):
        raise TypeError(f"conformance judges a function or an objective, got {type(fn).__name__}")

    def ask(values: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
        named = {key: _given(each, kind or "numpy") for key, each in values.items()}
        if takes_seed:
            named["rng"] = seed
        return _taken(fn(named.pop("rewards"), **named))

    def call(
        columns: Mapping[str, np.ndarray],
        outcomes: Outcomes,
        log_ratio: np.ndarray,
        seed: int,
        clock: Clock,
    ) -> np.ndarray:
        values = {key: columns[key][outcomes.draws] for key in ("rewards", *needs)}
        if off_policy:
            values["log_ratio"] = log_ratio[outcomes.draws]
        shape = outcomes.draws.shape
        try:
            first = {key: each[:7] for key, each in values.items()}
            whole = ask(first, seed)
            rows = np.stack([ask({k: v[i] for k, v in first.items()}, seed) for i in range(2)])
            if whole.shape == (7, shape[1]) and (
                "rng" in inspect.signature(fn).parameters or np.allclose(whole[:2], rows)
            ):
                return ask(values, seed)
        except Exception:  # one group at a time, then
            pass
        result, since = np.empty(shape), time.monotonic()
        for row in range(shape[0]):
            try:
                found = ask({key: each[row] for key, each in values.items()}, seed)
            except Exception as error:
                raise CannotCall(f"it raises: {described(error, 400)}") from error
            if found.size != shape[1]:
                raise CannotCall(f"it returned shape {found.shape} for {shape[1]} samples")
            result[row] = found.reshape(-1)
            clock.tick(since, row + 1, *shape)
        if not np.isfinite(result).all():
            raise CannotCall("it returned NaN or infinite advantages")
        return result

    return call


def _behaviour(call: Call, k: int, n: int) -> list[Finding]:
    """Order, groups in which the samples do not differ, and fewer samples than k."""
    columns, clock, rng = SETTINGS[2].columns, Clock(60.0), np.random.default_rng(2)
    still = np.zeros(4)

    def of(draws: np.ndarray) -> np.ndarray:
        return call(columns, Outcomes(draws, np.zeros(len(draws)), True), still, 0, clock)

    findings = []
    groups = rng.integers(0, 4, (7, n))
    shuffle = rng.permutation(n)
    if np.allclose(of(groups)[:, shuffle], of(groups[:, shuffle]), atol=1e-6):
        findings.append(Finding("order", "ok", "rearranged samples get rearranged advantages"))
    else:
        findings.append(Finding("order", "note", "the order of samples matters"))
    same = of(np.repeat(np.arange(4)[:, None], n, axis=1))
    if np.abs(same).max() < 1e-6:
        text = "all advantages 0 where the samples do not differ"
        findings.append(Finding("no signal", "ok", text))
    else:
        text = f"advantages up to {np.abs(same).max():.3g} where the samples do not differ"
        findings.append(Finding("no signal", "note", text))
    if k > 1:
        try:
            answer = of(groups[:, : k - 1])
        except CannotCall:
            findings.append(Finding("n < k", "ok", "raises"))
        else:
            text = f"answers {k - 1} samples with {np.abs(answer).max():.3g} at most: it must raise"
            findings.append(Finding("n < k", "bad", text))
    return findings
