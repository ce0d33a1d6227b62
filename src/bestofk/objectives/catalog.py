"""Every objective by name: its function, formula, claim and source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from bestofk.procedures import (
    MAJ,
    MAX,
    RETRY,
    RETRY_TOKENS,
    SELECT,
    SOFT,
    SUBSETS,
    VOTES,
    Procedure,
)
from bestofk.procedures.arrays import Array

from . import on_policy, passk_training

Claim: TypeAlias = Literal["exact", "scaled", "biased"]
"""What the expected update is: the gradient of the objective, a constant multiple of it known from
n and k, or neither."""

LEAST: dict[str, Callable[[int], int]] = {
    "k": lambda k: k,
    "k + 1": lambda k: k + 1,
    "max(2, k)": lambda k: max(2, k),
    "2k": lambda k: 2 * k,
}
"""Samples per prompt from k, which is 1 for objectives without k."""


@dataclass(frozen=True)
class Entry:
    """One row of the catalog: nothing in it keeps an objective from being pickled."""

    function: Callable[..., Array]
    """(rewards[, k], **inputs, **options) → advantages."""
    formula: str
    statement: str
    """What is known about the expected update, in a sentence."""
    source: str
    takes_k: bool = True
    samples: str = "k"
    """How many live samples a prompt needs, a key of LEAST."""
    why: str = "a subset of k samples must exist"
    claim: Claim = "biased"
    zero_one: bool = False
    """Rewards must be 0/1 (or have a threshold)."""
    needs: tuple[str, ...] = ()
    """Inputs beside rewards: "entropy", "rng", "noise" (made by rng), "scores", "answers", …"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Option → default; `...` means the user must give it."""
    baseline: str | None = None
    """Name of the off-policy baseline, where the exact off-policy form exists."""
    procedure: Procedure = MAX
    """Whose off-policy form that is; the mean is max@1."""
    caution: str = ""
    """Said once per call when all rewards are 0/1."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the caller passes for `needs`."""
        return tuple("rng" if each == "noise" else each for each in self.needs)

    def least(self, k: int) -> int:
        """The least number of live samples per prompt."""
        return LEAST[self.samples](k)


_without_one = partial(
    Entry,
    samples="k + 1",
    why="the leave-one-out baseline averages over subsets without the sample",
)
_without_k = partial(
    Entry, takes_k=False, samples="k + 1", why="the baseline is made of the other samples"
)
_BASELINES: dict[str, dict[str, Any]] = {
    "canonical": {
        "samples": "k + 1",
        "why": "the leave-one-out baseline averages over subsets without the sample",
    },
    "loo-1": {"samples": "max(2, k)", "why": "it compares with k - 1 others"},
    "none": {},
}
"""What each takes, of those that have an off-policy form."""


def _with(
    procedure: Procedure, baseline: str, formula: str, statement: str, source: str, **more: Any
) -> Entry:
    return Entry(
        procedure.weights[baseline], formula, statement, source, claim="exact",
        baseline=baseline, procedure=procedure, needs=procedure.needs,
        **_BASELINES[baseline], **more,
    )  # fmt: skip


_PKPO = "PKPO, Walder & Karkhanis 2025, arXiv:2505.15201"
_CANONICAL = _with(
    MAX,
    "canonical",
    "k (q_i - ρ_k(B∖i)) = n (ρ_k(B) - ρ_k(B∖i))",
    "unbiased for ∇max@k, centred; k = 1 is RLOO",
    "OrderGrad arXiv:2606.06096, MaxPO arXiv:2606.06080",
)
_MAX = {
    "": _CANONICAL,
    "canonical": _CANONICAL,
    "loo": _without_one(
        MAX.weights["loo"],
        "k (q_i - n/(n-1) ρ_k(B∖i))",
        "unbiased for ∇max@k, slightly off-centre",
        _PKPO,
        claim="exact",
    ),
    "loo-1": _with(
        MAX,
        "loo-1",
        "k (q_i - ρ_{k-1}(B∖i)) ≥ 0",
        "unbiased for ∇max@k, also at k = n; never pushes a sample down; k = 1 is RLOO; less "
        "variance than the canonical baseline with few answers or rare success, more with many",
        _PKPO,
    ),
    "none": _with(
        MAX,
        "none",
        "k q_i",
        "unbiased for ∇max@k, not centred",
        "Bagirov et al. 2025, arXiv:2510.23393; PKPO s, arXiv:2505.15201",
    ),
    "zscore": Entry(
        on_policy.max_zscore,
        "(q_i - q̄) / std(q)",
        "biased; on 0/1 rewards it is GRPO except where fewer than k samples fail",
        "BoN mean, Bagirov et al. 2025, arXiv:2510.23393",
        caution="on 0/1 rewards it is GRPO except where fewer than k samples fail",
    ),
}
_KNOWN = {
    "canonical": ("k (q_i - U_k(B∖i)) = n (U_k(B) - U_k(B∖i))", "centred; k = 1 is RLOO"),
    "loo-1": ("k (q_i - U_{k-1}(B∖i))", "also at k = n; k = 1 is RLOO"),
    "none": ("k q_i", "not centred"),
}
"""Formula and statement of any procedure's weights."""


def _rows_of(procedure: Procedure, source: str, **options: Any) -> dict[str, Entry]:
    """The entries of a procedure: one for each baseline, behind its rule."""
    rows = {}
    for baseline in procedure.weights:
        formula, about = _KNOWN[baseline]
        statement = f"unbiased for ∇{procedure.metric}, {about}"
        entry = _with(procedure, baseline, formula, statement, source, options=options)
        rows[f"{procedure.rule}:{baseline}".strip(":")] = entry
    usual = {procedure.rule: rows[f"{procedure.rule}:canonical".strip(":")]}
    return usual if len(rows) == 1 else usual | rows


_design = partial(Entry, source="Pass@k Training, Chen et al. 2025, arXiv:2508.10751")
_PASSK_DESIGNS = {
    "": _design(
        passk_training.analytical,
        "(q_i - ρ_k(B)) / σ, σ² the variance of the best over k-subsets",
        "centred, invariant to shift and scale; biased by its normaliser; k = 1 is GRPO",
    ),
    "bootstrap": _design(
        passk_training.bootstrap,
        "Σ over the sets a sample is in of the z-score of its best; n (or sets=) random k-sets",
        "as published",
        needs=("rng",),
        options={"sets": None},
    ),
    "full": _design(
        passk_training.full_sampling,
        "z-score of the best of the sample's set; ⌊n/k⌋ disjoint sets, the rest 0",
        "as published",
        samples="2k",
        why="two disjoint sets are the least that can be compared",
        needs=("rng",),
    ),
    "exceeding": _design(
        passk_training.exceeding,
        "4 / (10 ln(N_pos + 0.5)) · A_pass@k",
        "as published; moves weight to prompts with few successes",
        zero_one=True,
    ),
    "combination": _design(
        passk_training.combination,
        "(N_pos/n) A_pass@k + (1 - N_pos/n) A_pass@1",
        "as published",
        zero_one=True,
    ),
    "adaptive": _design(
        passk_training.adaptive,
        "A_pass@1 for prompts of above-median entropy, A_pass@k for the rest",
        "as published; the one design that looks across prompts",
        needs=("entropy",),
    ),
    "drop-easy": _design(
        passk_training.drop_easy,
        "A_pass@k, 0 where accuracy > accuracy_threshold",
        "as published",
        zero_one=True,
        options={"accuracy_threshold": ...},
    ),
}
_WITHOUT_K = {
    "mean": _without_k(
        on_policy.mean,
        "n/(n-1) (r_i - r̄)",
        "unbiased for the gradient of the mean reward, centred (RLOO); max@1",
        "Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740",
        claim="exact",
        baseline="canonical",
    ),
    "grpo": _without_k(
        on_policy.grpo,
        "(r_i - r̄) / std(r)",
        "biased by its normaliser, centred; 0 where all rewards agree",
        "Shao et al. 2024, arXiv:2402.03300",
    ),
    "dr-grpo": _without_k(
        on_policy.dr_grpo,
        "r_i - r̄",
        "(n-1)/n times the gradient of the mean reward, centred",
        "Liu et al. 2025, arXiv:2503.20783",
        claim="scaled",
    ),
    "reinforce": _without_k(
        on_policy.reinforce,
        "r_i",
        "unbiased for the gradient of the mean reward, no baseline",
        "Williams 1992",
        samples="k",
        claim="exact",
        baseline="none",
    ),
    "bon-max-mean": _without_k(
        on_policy.bon_max_mean,
        "r_i - r̄ for the best, else 0",
        "biased; its k is n",
        "Chow et al. 2024, arXiv:2412.15287, as in arXiv:2510.23393",
    ),
    "bon-max-second": _without_k(
        on_policy.bon_max_second,
        "r_(n) - r_(n-1) for the best, else 0",
        "1/n of max@n:loo-1, so 1/n times ∇max@n; 0 when the best is tied",
        "Tang et al. 2025, arXiv:2503.19595",
        claim="scaled",
    ),
    "maxrl": _without_k(
        on_policy.maxrl,
        "(r_i - r̄) / r̄, 0 without a success",
        "unbiased for Σ_{k<n} ∇max@k / k, centred",
        "MaxRL arXiv:2602.02710",
        claim="exact",
        zero_one=True,
    ),
    "tailrl": _without_k(
        on_policy.tailrl,
        "n Σ_{j≤i} gap_j / (n-j+1), centred",
        "unbiased for Σ_{k<n} ∇max@k / k on real rewards; equals MaxRL on 0/1",
        "TailRL arXiv:2609.02987",
        claim="exact",
    ),
    "rs-grpo": _without_k(
        on_policy.rs_grpo,
        "(1/β)(exp(β r_i) / mean_j exp(β r_j) - 1)",
        "as published; β → 0 is Dr. GRPO",
        "RS-GRPO arXiv:2509.24261",
        options={"beta": 2.0},
    ),
}


def _l_statistic(which: str, of: str, zero_one: bool = False, **options: Any) -> Entry:
    return _without_one(
        on_policy.l_statistic,
        f"n (v(B) - v(B∖i)), v {which}",
        f"unbiased for {of}",
        "OrderGrad arXiv:2606.06096",
        claim="exact",
        zero_one=zero_one,
        options=options,
    )


_L_STATISTICS = {
    "topM": _l_statistic(
        "the mean of the m best of k", "the gradient of E[mean of the m best of k], centred"
    ),
    "bottomM": _l_statistic(
        "the mean of the m worst of k", "the gradient of the lower tail, centred"
    ),
    "median": _l_statistic("the median of k", "the gradient of E[median of k], centred"),
    "all": _l_statistic(
        "whether all of k pass", "the gradient of pass^k, the chance that all k pass", zero_one=True
    ),
    "atleastM": _l_statistic(
        "whether m or more of k pass",
        "the gradient of the chance that m or more of k pass",
        zero_one=True,
    ),
    "min": _l_statistic("the worst of k", "the gradient of E[min of k] (all k right), centred"),
    "lstat": _l_statistic(
        "= Σ_j α_j r_(j:k)",
        "any L-statistic given as coefficients=, lowest of k first; centred",
        coefficients=...,
    ),
}


def _alone(names: str) -> dict[str, dict[str, Entry]]:
    return {name: {"": (_WITHOUT_K | _L_STATISTICS)[name]} for name in names.split()}


CATALOG: dict[str, dict[str, Entry]] = {
    **_alone("mean grpo dr-grpo reinforce"),
    "max": _MAX,
    "pass": {variant: replace(entry, zero_one=True) for variant, entry in _MAX.items()},
    "select": {
        **_rows_of(SELECT, "the theorem of docs/objectives.md, ties by symmetry"),
        **_rows_of(SOFT, "the same with Gumbel noise on the scores, 16 draws"),
    },
    "retry": {
        **_rows_of(RETRY, "a mixture of max@1 to max@k", price=..., stop=1.0),
        **_rows_of(RETRY_TOKENS, "the theorem of docs/objectives.md", price=..., stop=1.0),
    },
    "maj": {
        variant: entry
        for each in (MAJ, *VOTES)
        for variant, entry in _rows_of(each, "the theorem of docs/objectives.md, votes").items()
    },
    "subsets": _rows_of(
        SUBSETS,
        "the theorem of docs/objectives.md, random subsets",
        value=...,
        sets=512,
        control=None,
    ),
    "passk-training": _PASSK_DESIGNS,
    **_alone("bon-max-mean bon-max-second maxrl tailrl rs-grpo"),
    **_alone("topM bottomM median min lstat all atleastM"),
}

ALIASES = {"rloo": "mean", "pkpo": "max:loo-1"}
