"""Estimators as others publish them, their formulas re-stated by us, and the verdicts on them.

    python research/published.py          the tables of research/conformance.md
    python research/published.py NAME     the full verdict on one of them

Every function takes one group: rewards (n,) → advantages (n,), with log-ratios where off policy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from typing import Any

import numpy as np

from bestofk.estimator_checks import Conformance, Fit, conformance
from bestofk.estimator_checks.verdict import _short, span
from bestofk.objectives import objective

Array = np.ndarray


def choose(n: int, k: int) -> int:
    """C(n, k), 0 outside Pascal's triangle."""
    return comb(n, k) if n >= 0 and k >= 0 else 0


@cache
def by_rank(n: int, k: int, chosen: int) -> Array:
    """C(j-s, k-s)/C(n, k) for ranks j = 1..n: the share of k-sets with best j, s members fixed."""
    counts = [choose(j - chosen, k - chosen) for j in range(1, n + 1)]
    return np.array(counts) / max(1, comb(n, k))


def pkpo_s(rewards: Array, k: int) -> Array:
    """Σ over the k-subsets that contain i of their best, over C(n, k): PKPO eq. 19, by rank."""
    n = len(rewards)
    if n < k:
        return np.zeros(n)  # the listing's coefficients are all 0 there
    order = np.argsort(rewards)
    ordered = rewards[order]
    credit = np.empty(n)
    pairs = by_rank(n, k, 2) * ordered
    credit[order] = by_rank(n, k, 1) * ordered + pairs[::-1].cumsum()[::-1] - pairs
    return credit


def pkpo_loo(rewards: Array, k: int) -> Array:
    """s_i minus the mean of the others' s when i is left out: PKPO eq. 29."""
    return pkpo_s(rewards, k) - _others(rewards, k) / (len(rewards) - 1)


def pkpo_loo_minus_one(rewards: Array, k: int) -> Array:
    """Best of a k-subset minus its best without i, summed over the subsets of i: PKPO eq. 33."""
    return pkpo_s(rewards, k) - _others(rewards, k - 1) * k / (k - 1) / len(rewards)


def _others(rewards: Array, k: int) -> Array:
    return np.array([pkpo_s(np.delete(rewards, i), k).sum() for i in range(len(rewards))])


def rllm_pkpo(rewards: Array, k: int) -> Array:
    """rLLM pull request 743: PKPO's s minus its mean, k cut down to n."""
    credit = pkpo_s(rewards, min(k, len(rewards)))
    return credit - credit.mean()


def maxrl_repository_pkpo(rewards: Array, k: int) -> Array:
    """tajwarfahim/maxrl `pkpo`: right samples get C(n-c, k-1)/C(n-1, k-1), minus the others' mean.

    The others' values depend on c, which counts sample i: the baseline is not independent of it.
    """
    n = len(rewards)
    right = np.round(rewards)
    wrong = int(n - right.sum())
    with np.errstate(all="ignore"):
        value = np.float64(choose(wrong, k - 1)) / np.float64(choose(n - 1, k - 1))
    weights = value * right
    return (n * weights - weights.sum()) / (n - 1)


def passk_training_released(rewards: Array, k: int, sigma: bool = True) -> Array:
    """RUCAIBox `passk_adv`: A_pos and A_neg over σ + 1e-6; any other reward passes through raw."""
    n, c = len(rewards), int((rewards == 1).sum())
    with np.errstate(all="ignore"):
        rho = 1 - np.float64(choose(n - c, k)) / np.float64(choose(n, k))
        missing = np.float64(choose(n - c - 1, k - 1)) / np.float64(choose(n - 1, k - 1))
    spread = np.sqrt(rho * (1 - rho)) + 1e-6 if sigma else 1.0
    weights = rewards.astype(float)
    weights[rewards == 1] = (1 - rho) / spread
    weights[rewards == 0] = (1 - rho - missing) / spread
    return weights


def verl_grpo_passk(rewards: Array, std: bool = True) -> Array:
    """verl: the best sample gets its lead over the second, over the group's standard deviation."""
    if len(rewards) < 2:
        raise ValueError(f"at least 2 samples per group are needed, got {len(rewards)}")
    order = np.argsort(rewards)
    lead = rewards[order[-1]] - rewards[order[-2]]
    weights = np.zeros(len(rewards))
    weights[order[-1]] = lead / (rewards.std(ddof=1) + 1e-6) if std else lead
    return weights


def easyr1_before_fix(rewards: Array) -> Array:
    """EasyR1 issue 585: as verl, but every other sample keeps its raw reward as its advantage."""
    weights = verl_grpo_passk(rewards)
    best = np.argsort(rewards)[-1]
    return np.where(np.arange(len(rewards)) == best, weights, rewards)


def bon_max_mean(rewards: Array) -> Array:
    """BoN-max mean (Chow et al., as in the max@k paper): r - mean for the best, else 0."""
    return np.where(rewards == rewards.max(), rewards - rewards.mean(), 0.0)


def bon_max_next_distinct(rewards: Array) -> Array:
    """BoN-max second, as the max@k paper's appendix A has it: minus the next *distinct* reward."""
    best = rewards.max()
    lower = rewards[rewards != best]
    return (
        np.where(rewards == best, best - lower.max(), 0.0) if lower.size else np.zeros_like(rewards)
    )


CLAMP = 1.0
"""Bound on |δ|; the max@k paper does not state its own."""


def _ratio_excess(log_ratio: Array) -> Array:
    return np.clip(np.expm1(log_ratio), -CLAMP, CLAMP)


def first_order(rewards: Array, log_ratio: Array, k: int) -> Array:
    """The max@k paper's first-order weights w'_ij, section 3.3, in its own (sum) convention."""
    order = np.argsort(rewards)
    r, delta = rewards[order], _ratio_excess(log_ratio)[order]
    before = np.cumsum(delta) - delta
    own, pair, triple = (by_rank(len(rewards), k, fixed) for fixed in (1, 2, 3))
    above = pair * (1 + delta[:, None] + delta) + triple * (before - delta[:, None])
    matrix = np.triu(above, 1) + np.diag(own * (1 + delta) + pair * before)
    weights = np.empty(len(rewards))
    weights[order] = matrix @ r
    return weights


def listing_3(rewards: Array, log_ratio: Array, k: int) -> Array:
    """The max@k paper's Listing 3 as printed: (groups, n), (groups, n) → (groups, groups, n).

    Three slips against section 3.3: the diagonal C(i-1, k-1) is added as a row, so it lands in
    every row of the matrix; `rewards @ weights` with weights (groups, n, n) multiplies every group
    with every other; nothing sorts, though the coefficients are by rank.
    """
    n = rewards.shape[1]
    delta = _ratio_excess(log_ratio)
    before = np.cumsum(delta, axis=1) - delta
    own, pair, triple = (by_rank(n, k, fixed) for fixed in (1, 2, 3))
    lower = np.tril(np.ones((n, n)), -1)
    base = lower * pair[:, None] + own  # the row that should be a diagonal
    moved = lower * pair[:, None] * (delta[:, :, None] + delta[:, None, :])
    moved = moved + lower * triple[:, None] * (before[:, :, None] - delta[:, None, :])
    diagonal = (own * delta + pair * before)[:, :, None] * np.eye(n)
    return rewards @ (base + moved + diagonal)


def listing_3_sorted(rewards: Array, log_ratio: Array, k: int) -> Array:
    """Listing 3 for one group whose caller sorts by reward before and puts back after."""
    order = np.argsort(rewards, kind="stable")
    weights = np.empty(len(rewards))
    weights[order] = listing_3(rewards[None, order], log_ratio[None, order], k)[0, 0]
    return weights


def own_ratio(rewards: Array, log_ratio: Array, k: int) -> Array:
    """PKPO's s times the sample's own ratio, the siblings' ignored: a ratio in the loss."""
    return pkpo_s(rewards, k) * np.exp(log_ratio)


@dataclass(frozen=True)
class PublishedEstimator:
    """A published estimator and where to judge it."""

    name: str
    source: str
    fn: Callable[..., Any]
    k: int
    n: int
    off_policy: bool = False

    def judge(self) -> Conformance:
        return conformance(self.fn, self.k, self.n, self.off_policy, quiet=True, name=self.name)


def _with(fn: Callable[..., Array], *fixed: Any) -> Callable[..., Array]:
    return lambda *arrays: fn(*arrays, *fixed)


K, N = 4, 6
_PKPO = "arXiv:2505.15201, listing 1"
_MAXK = "arXiv:2510.23393"
_RELEASED = "RUCAIBox/Passk_Training passk_adv.py"
THEIRS = tuple(
    PublishedEstimator(name, source, fn, K, n)
    for name, source, fn, n in (
        ("PKPO s", _PKPO, _with(pkpo_s, K), N),
        ("PKPO loo", _PKPO, _with(pkpo_loo, K), N),
        ("PKPO loo-1", _PKPO, _with(pkpo_loo_minus_one, K), N),
        ("rLLM pkpo", "rllm-org/rllm PR 743", _with(rllm_pkpo, K), N),
        ("maxrl repository pkpo", "tajwarfahim/maxrl", _with(maxrl_repository_pkpo, K), N),
        ("Pass@k Training, released code", _RELEASED, _with(passk_training_released, K), N),
        ("the same without its σ", "", _with(passk_training_released, K, False), N),
        ("verl grpo_passk", "verl core_algos.py, arXiv:2503.19595", verl_grpo_passk, K),
        ("verl grpo_passk, std off", "", _with(verl_grpo_passk, False), K),
        ("EasyR1 grpo_passk before its fix", "hiyouga/EasyR1 issue 585", easyr1_before_fix, K),
        ("BoN-max mean", f"arXiv:2412.15287 in {_MAXK}", bon_max_mean, K),
        ("BoN-max second, next distinct", f"{_MAXK}, appendix A", bon_max_next_distinct, K),
    )
)
THEIRS_OFF = tuple(
    PublishedEstimator(name, source, _with(fn, K), K, N, off_policy=True)
    for name, source, fn in (
        ("max@k paper, first order", f"{_MAXK}, section 3.3", first_order),
        ("max@k paper, Listing 3", "as printed", listing_3),
        ("Listing 3, input sorted", "by the caller", listing_3_sorted),
        ("own ratio only", "a ratio in the loss", own_ratio),
    )
)
OURS: tuple[PublishedEstimator, ...] = tuple(
    PublishedEstimator(f"`{text}`", "", objective(text), k, n)
    for text, k, n in (
        ("max@4", K, N),
        ("max@4:loo", K, N),
        ("max@4:loo-1", K, N),
        ("max@4:none", K, N),
        ("max@4:loo-1", K, K),
        ("max@4:zscore", K, N),
        ("pass@4", K, N),
        ("passk-training@4", K, N),
        ("passk-training@4:combination", K, N),
        ("bon-max-mean", K, K),
        ("bon-max-second", K, K),
        ("maxrl", K, N),
        ("tailrl", K, N),
        ("mean", 1, N),
        ("reinforce", 1, N),
        ("dr-grpo", 1, N),
        ("grpo", 1, N),
        ("rs-grpo", 1, N),
    )
)
OURS_OFF: tuple[PublishedEstimator, ...] = tuple(
    PublishedEstimator(f"`{text}`{note}", "", objective(text, **options), k, N, True)
    for text, note, k, options in (
        ("max@4", "", K, {}),
        ("max@4:loo-1", "", K, {}),
        ("max@4:none", "", K, {}),
        ("mean", "", 1, {}),
        ("max@4", ", `truncate=0.1`", K, {"truncate": 0.1}),
        ("max@4", ", `self_normalise=True`", K, {"self_normalise": True}),
        ("max@4", ", `off_policy='first-order'`", K, {"off_policy": "first-order"}),
        ("max@4", ", `off_policy='own-ratio'`", K, {"off_policy": "own-ratio"}),
        ("max@4", ", `off_policy='none'`", K, {"off_policy": "none"}),
    )
)
TABLES: dict[str, tuple[PublishedEstimator, ...]] = {
    "Others, on policy": THEIRS,
    "Others, off policy": THEIRS_OFF,
    "Ours, on policy": OURS,
    "Ours, off policy": OURS_OFF,
}


def _scale_and_cosine(fitted: Fit | None) -> str:
    if fitted is None:
        return "error"
    scale = span(*fitted.scale)
    if fitted.constant is not None:
        scale = fitted.convention.split(" = ")[0] or _short(fitted.constant)
    return f"{scale}; {span(*fitted.cosine)}"


def _few(result: Conformance) -> str:
    finding = result.finding("n < k")
    if finding is None:
        return ""
    if finding.status == "note":
        return "its k is n" if result.k == result.n else "other k"
    return (
        finding.text.partition(" and ")[0].partition(":")[0]
        if finding.status == "ok"
        else (
            "zeros" if "zeros" in finding.text else "NaN" if "NaN" in finding.text else "a number"
        )
    )


def _dead(result: Conformance) -> str:
    finding = result.finding("padding")
    if finding is None:
        return ""
    if "siblings NaN" in finding.text:
        return "whole group NaN"
    if finding.status == "bad":
        return "counted"
    return "error" if "raises" in finding.text else "ignored"


PLAIN = {"exact", "scaled", "biased", "0/1 only", "varying scale"}
"""Verdicts of which the columns of scale and cosine say the rest."""


def _verdict(result: Conformance) -> str:
    detail = result.summary.partition("worst bias by ")[2] or result.summary
    detail = detail.partition("but not everywhere, ")[2] or detail
    return f"**{result.verdict}**" + f": {detail}" * (result.verdict not in PLAIN)


def row(entry: PublishedEstimator, result: Conformance) -> str:
    """One line of a table."""
    source = f" ({entry.source})" if entry.source else ""
    cells = [
        entry.name + source,
        f"{entry.k}, {entry.n}",
        _scale_and_cosine(result.zero_one),
        _scale_and_cosine(result.real),
        _few(result),
        _dead(result),
        _verdict(result),
    ]
    return "| " + " | ".join(cells) + " |"


def table(judged: Sequence[tuple[PublishedEstimator, Conformance]]) -> str:
    """A markdown table of verdicts."""
    head = ["estimator", "k, n", "0/1: scale; cosine", "real: scale; cosine", "n < k",
            "dead sample", "verdict"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + [row(entry, result) for entry, result in judged])


def main(names: Sequence[str]) -> None:
    """Print the tables, or the full verdicts on the named estimators."""
    if not names:
        for title, entries in TABLES.items():
            print(f"### {title}\n\n{table([(entry, entry.judge()) for entry in entries])}\n")
    for name in names:
        matches = [
            entry
            for entries in TABLES.values()
            for entry in entries
            if name.lower() in entry.name.lower()
        ]
        if not matches:
            known = ", ".join(entry.name for entry in (*THEIRS, *THEIRS_OFF))
            raise SystemExit(f"no estimator with {name!r} in its name; have {known}")
        print("\n\n".join(str(entry.judge()) for entry in matches))


if __name__ == "__main__":
    main(sys.argv[1:])
