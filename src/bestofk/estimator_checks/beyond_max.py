"""Judge estimators of procedures beyond the maximum, each against its definition.

What k samples are worth is evaluated on every ordered draw of k of a few answers, so the gradient
that is wanted is a finite sum too, and owes nothing to the formulas of the library.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from bestofk.messages import unknown
from bestofk.objectives import Objective
from bestofk.procedures import MAJ, VOTES

from .behaviour import Finding, no_contrast
from .calling import CannotCall, JudgedFunction, Kind, Request, described, find_out, given
from .fits import EXACT, Case, case_of_calls, fit
from .policies import OUTCOMES, SPREADS, TabularPolicy, _moved, all_outcomes
from .verdict import Conformance, drifting, sentence, unusable

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


def _passes(draw: Mapping[str, np.ndarray], _: Mapping[str, Any], least: int = 0) -> float:
    return float(draw["rewards"].sum() >= (least or len(draw["rewards"])))


def _subsets(draw: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> float:
    return float(options["value"](draw["rewards"], draw["scores"], draw["answers"]))


DEFINITIONS: dict[str, tuple[Worth, tuple[str, ...]]] = {
    "select@k": (_select, ("scores",)),
    "select@k:soft": (_soft, ("scores",)),
    "retry@k": (_retry, ()),
    "retry@k:tokens": (partial(_retry, cost="tokens"), ("tokens",)),
    **{each.metric: (partial(_vote, rule=each.rule), each.needs) for each in (MAJ, *VOTES)},
    "subsets@k": (_subsets, ("scores", "answers")),
    "pass^k": (_passes, ()),
    **{f"atleast{m}@k": (partial(_passes, least=m), ()) for m in range(1, 10)},
}
"""What k draws are worth, and what the estimator gets beside rewards, as keyword arguments."""
Columns: TypeAlias = Mapping[str, np.ndarray]
"""All that a procedure may look at, of each of a few answers."""
SETTINGS: dict[str, Columns] = {
    label: {
        "rewards": np.array(rewards),
        "scores": np.array(scores),
        "answers": np.array(answers),
        "tokens": np.array([3.0, 8.0, 1.0, 20.0]),
    }
    for label, rewards, scores, answers in (
        ("0/1, scores tie", [0.0, 1.0, 0.0, 1.0], [2.0, 1.0, 3.0, 2.0], [0, 1, 2, 1]),
        ("0/1, the best-scored is wrong", [1.0, 0.0, 1.0, 0.0], [1.0, 4.0, 2.0, 0.0], [0, 1, 2, 3]),
        ("real, scores tie", [0.0, 1.0, 0.4, 0.0], [2.0, 1.0, 2.0, 1.0], [0, 1, 2, 0]),
        ("real, all differ", [-0.3, 1.2, 0.4, 0.1], [0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3]),
    )
}


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


def procedure_of(fn: Any, metric: str | None) -> str | None:
    """The procedure that is judged, as a metric; None: max@k."""
    if metric is None and isinstance(fn, Objective):
        metrics = {term.metric for term in fn.terms}
        metric = metrics.pop() if len(metrics) == 1 else None
    if metric in (None, "max@k"):
        return None
    if metric not in DEFINITIONS:
        raise unknown("procedure", str(metric), ["max@k", *DEFINITIONS])
    return metric


def judge_procedure(
    fn: Callable[..., Any] | Objective,
    procedure: str,
    request: Request,
    options: Mapping[str, Any],
) -> Conformance:
    """See `bestofk.conformance`; k and n are valid here."""
    k, n, off_policy = request.k, request.n, request.off_policy
    worth, needs = DEFINITIONS[procedure]
    options = {**options, **(fn.options if isinstance(fn, Objective) else {})}
    missing = {"retry": "price", "subsets": "value"}.get(procedure.partition("@")[0])
    if missing and options.get(missing) is None:
        raise ValueError(
            f"to judge {procedure}, state {missing}=: what the function takes for granted"
        )
    if 4**k > MOST_DRAWS:
        raise ValueError(f"k = {k} has {4**k:,} ordered draws of 4 answers: judge a smaller k")
    inputs = ("rewards", *needs, *["log_ratio"] * off_policy)
    advantages: dict[tuple[str, bytes], list[np.ndarray]] = {}
    is_noisy = procedure.endswith(":soft")
    cases: list[Case] = []
    noise = 0.0
    draws = np.array(list(itertools.product(range(4), repeat=k)))
    counts = procedure.startswith(("pass", "atleast"))
    settings = {
        label: columns
        for label, columns in SETTINGS.items()
        if not counts or label.startswith("0/1")
    }

    def judged(columns: Columns, log_ratio: np.ndarray, number: int = 0) -> Callable[..., Any]:
        columns = {**columns, "log_ratio": log_ratio}
        return _of_answers(fn, {each: columns[each] for each in inputs}, number)

    try:
        usual = judged(list(settings.values())[-1], np.zeros(4))
        estimator = find_out(usual, request, off_policy=False)
        if isinstance(fn, Objective):
            estimator = replace(estimator, batched=True)  # noise belongs to a place in the batch
        findings = _behaviour(estimator, k, n)
        in_order = findings[0].status == "ok"
        limit = math.comb(n + 3, n) if in_order and not is_noisy else OUTCOMES
        outcomes = all_outcomes(4, n, limit=limit)
        for setting, columns in settings.items():
            parts = ({key: each[draw] for key, each in columns.items()} for draw in draws)
            worths = np.array([worth(each, options) for each in parts])
            for policy in _policies(setting, columns["rewards"], worths, off_policy, request.seed):
                key = (setting, policy.log_ratio.tobytes() if off_policy else b"")
                if key not in advantages:
                    functions = [
                        judged(columns, policy.log_ratio, number)
                        for number in range(NOISE if is_noisy else 1)
                    ]
                    advantages[key] = [
                        _answered(replace(estimator, fn=each), outcomes.draws) for each in functions
                    ]
                of_policy, chance = case_of_calls(policy, outcomes, advantages[key], k)
                cases.append(of_policy)
                noise = max(noise, chance)
    except CannotCall as error:
        return unusable(request, error)
    target = f"the gradient of {re.sub('(?<=[@^])k', str(k), procedure)}"
    fits = [
        fit([each for each in cases if each.kind == kind], k, n, max(EXACT, noise))
        for kind in ("0/1", "real")
    ]
    verdict, summary = sentence(k, n, fits[0], fits[1], None, False, (), target)
    still = fit([each for each in cases if each.spread == 0], k, n, max(EXACT, noise))
    if off_policy and verdict in ("biased", "0/1 only") and still and still.constant:
        verdict, summary = "on policy only", drifting(cases, still, k, n, target)
    if verdict in ("exact", "scaled") and any(each.status == "bad" for each in findings):
        verdict, summary = "in part", f"{summary}; but not everywhere, see below"
    if is_noisy:
        summary += f"; means over {NOISE} seeds, to within {noise:.1%}"
    return Conformance(
        request.name, k, n, off_policy, verdict, summary,
        f"{', '.join(inputs)}, each (groups, n) or (n,)", len(outcomes.draws),
        outcomes.ordered, fits[0], fits[1], tuple(cases), tuple(findings), (),
    )  # fmt: skip


def _policies(
    setting: str, rewards: np.ndarray, worths: np.ndarray, off_policy: bool, seed: int
) -> list[Deployed]:
    rng = np.random.default_rng(seed)
    policies = []
    for number in range(1 if off_policy else 3):
        old = rng.dirichlet(np.full(4, 3.0))
        for spread in SPREADS if off_policy else (0.0,):
            now = _moved(old, rng.standard_normal(4), spread)
            label = f"{setting}, policy {number + 1}, log-ratio sd {spread:g}"
            policies.append(Deployed(label, now, rewards, old, spread, worths))
    return policies


def _of_answers(
    fn: Callable[..., Any], columns: Mapping[str, np.ndarray], seed: int
) -> Callable[..., Any]:
    """A function of which answer each sample is, from one of the columns of the answers."""
    further = {"rng": seed} if isinstance(fn, Objective) else {}

    def judged(draws: Any) -> Any:
        kind: Kind = "torch" if hasattr(draws, "detach") else "numpy"
        kind = "list" if isinstance(draws, list) else kind
        chosen = np.asarray(draws).astype(int)
        named = {key: given(each[chosen], kind) for key, each in columns.items()}
        return fn(named.pop("rewards"), **named, **further)

    return judged


def _answered(estimator: JudgedFunction, draws: np.ndarray) -> np.ndarray:
    """Advantages of all groups, or CannotCall."""
    answers = estimator.many(draws)
    for error in answers.failures.values():
        if isinstance(error, CannotCall):
            raise error
        raise CannotCall(f"it raises: {described(error, 400)}")
    if not np.isfinite(answers.values).all():
        raise CannotCall("it returned NaN or infinite advantages")
    return answers.values


def _behaviour(estimator: JudgedFunction, k: int, n: int) -> list[Finding]:
    """Order, groups in which the samples do not differ, and fewer samples than k."""
    findings, rng = [], np.random.default_rng(2)
    groups = rng.integers(0, 4, (7, n))
    shuffle = rng.permutation(n)
    moved = _answered(estimator, groups[:, shuffle])
    if np.allclose(_answered(estimator, groups)[:, shuffle], moved, atol=1e-6):
        findings.append(Finding("order", "ok", "rearranged samples get rearranged advantages"))
    else:
        findings.append(Finding("order", "note", "the order of samples matters"))
    same = _answered(estimator, np.repeat(np.arange(4)[:, None], n, axis=1)).reshape(-1)
    findings.append(no_contrast("no signal", "the samples do not differ", "not all 0", same))
    if k > 1:
        try:
            answer = _answered(estimator, groups[:, : k - 1])
        except CannotCall:
            findings.append(Finding("n < k", "ok", "raises"))
        else:
            text = f"answers {k - 1} samples with {np.abs(answer).max():.3g} at most: it must raise"
            findings.append(Finding("n < k", "bad", text))
    return findings
