"""Every objective by name: its function, formula, claim and source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from . import estimates, on_policy, passk_training
from .arrays import Array

Claim: TypeAlias = Literal["exact", "scaled", "biased"]
"""What the expected update is: the gradient of the objective, a constant multiple of it known from
n and k, or neither."""


def _k(k: int) -> int:
    return k


@dataclass(frozen=True)
class Entry:
    """One row of the catalog. Its functions have names, so that objectives can be pickled."""

    function: Callable[..., Array]
    """(rewards[, k], **inputs, **options) → advantages."""
    formula: str
    statement: str
    """What is known about the expected update, in a sentence."""
    source: str
    takes_k: bool = True
    least: Callable[[int], int] = _k
    """The least number of live samples per prompt, from k."""
    why: str = "a subset of k samples must exist"
    claim: Claim = "biased"
    zero_one: bool = False
    """Rewards must be 0/1 (or have a threshold)."""
    needs: tuple[str, ...] = ()
    """Inputs beside rewards: "entropy", "rng"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Option → default; `...` means the user must give it."""
    baseline: str | None = None
    """Name of the off-policy baseline, where the exact off-policy form exists."""
    caution: str = ""
    """Said once per call when all rewards are 0/1."""

    @property
    def unbiased(self) -> bool:
        """Deprecated: `claim == "exact"`."""
        return self.claim == "exact"


def _more_than_k(k: int) -> int:
    return k + 1


def _two(k: int) -> int:
    return 2


def _k_but_two(k: int) -> int:
    return max(2, k)


def _two_sets(k: int) -> int:
    return 2 * k


def _one(k: int) -> int:
    return 1


_LOO = "the leave-one-out baseline averages over subsets without the sample"
_PAIR = "the baseline is made of the other samples"
_MAX_SOURCE = "OrderGrad arXiv:2606.06096, MaxPO arXiv:2606.06080"
_PKPO = "PKPO, Walder & Karkhanis 2025, arXiv:2505.15201"
_PASSK = "Pass@k Training, Chen et al. 2025, arXiv:2508.10751"

_CANONICAL = Entry(
    on_policy.max_canonical,
    "k (q_i - ρ_k(B∖i)) = n (ρ_k(B) - ρ_k(B∖i))",
    "unbiased for ∇max@k, centred; k = 1 is RLOO",
    _MAX_SOURCE,
    least=_more_than_k,
    why=_LOO,
    claim="exact",
    baseline="canonical",
)
_MAX = {
    "": _CANONICAL,
    "canonical": _CANONICAL,
    "loo": Entry(
        on_policy.max_leave_one_out,
        "k (q_i - n/(n-1) ρ_k(B∖i))",
        "unbiased for ∇max@k, slightly off-centre",
        _PKPO,
        least=_more_than_k,
        why=_LOO,
        claim="exact",
    ),
    "loo-1": Entry(
        on_policy.max_leave_one_out_minus_one,
        "k (q_i - ρ_{k-1}(B∖i)) ≥ 0",
        "unbiased for ∇max@k, also at k = n; never pushes a sample down; k = 1 is RLOO",
        _PKPO,
        least=_k_but_two,
        why="it compares with the best of k - 1 others",
        claim="exact",
        baseline="loo-1",
    ),
    "none": Entry(
        on_policy.max_no_baseline,
        "k q_i",
        "unbiased for ∇max@k, not centred",
        "Bagirov et al. 2025, arXiv:2510.23393; PKPO s, arXiv:2505.15201",
        claim="exact",
        baseline="none",
    ),
    "zscore": Entry(
        on_policy.max_zscore,
        "(q_i - q̄) / std(q)",
        "biased; on 0/1 rewards it is GRPO except where fewer than k samples fail",
        "BoN mean, Bagirov et al. 2025, arXiv:2510.23393",
        caution="on 0/1 rewards it is GRPO except where fewer than k samples fail",
    ),
}
_MEAN_OF_TOP = "unbiased for the gradient of E[mean of the m best of k], centred"
_PASSK_DESIGNS = {
    "": Entry(
        passk_training.analytical,
        "(q_i - ρ_k(B)) / σ, σ² the variance of the best over k-subsets",
        "centred, invariant to shift and scale; biased by its normaliser; k = 1 is GRPO",
        _PASSK,
    ),
    "bootstrap": Entry(
        passk_training.bootstrap,
        "Σ over the sets a sample is in of the z-score of its best; n (or sets=) random k-sets",
        "as published",
        _PASSK,
        needs=("rng",),
        options={"sets": None},
    ),
    "full": Entry(
        passk_training.full_sampling,
        "z-score of the best of the sample's set; ⌊n/k⌋ disjoint sets, the rest 0",
        "as published",
        _PASSK,
        least=_two_sets,
        why="two disjoint sets are the least that can be compared",
        needs=("rng",),
    ),
    "exceeding": Entry(
        passk_training.exceeding,
        "4 / (10 ln(N_pos + 0.5)) · A_pass@k",
        "as published; moves weight to prompts with few successes",
        _PASSK,
        zero_one=True,
    ),
    "combination": Entry(
        passk_training.combination,
        "(N_pos/n) A_pass@k + (1 - N_pos/n) A_pass@1",
        "as published",
        _PASSK,
        zero_one=True,
    ),
    "adaptive": Entry(
        passk_training.adaptive,
        "A_pass@1 for prompts of above-median entropy, A_pass@k for the rest",
        "as published; the one design that looks across prompts",
        _PASSK,
        needs=("entropy",),
    ),
    "drop-easy": Entry(
        passk_training.drop_easy,
        "A_pass@k, 0 where accuracy > accuracy_threshold",
        "as published",
        _PASSK,
        zero_one=True,
        options={"accuracy_threshold": ...},
    ),
}


def _l_entry(formula: str, statement: str, **options: Any) -> Entry:
    return Entry(
        on_policy.l_statistic,
        formula,
        statement,
        "OrderGrad arXiv:2606.06096",
        least=_more_than_k,
        why=_LOO,
        claim="exact",
        options=options,
    )


CATALOG: dict[str, dict[str, Entry]] = {
    "mean": {
        "": Entry(
            on_policy.mean,
            "n/(n-1) (r_i - r̄)",
            "unbiased for the gradient of the mean reward, centred (RLOO); max@1",
            "Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740",
            takes_k=False,
            least=_two,
            why=_PAIR,
            claim="exact",
            baseline="canonical",
        )
    },
    "grpo": {
        "": Entry(
            on_policy.grpo,
            "(r_i - r̄) / std(r)",
            "biased by its normaliser, centred; 0 where all rewards agree",
            "Shao et al. 2024, arXiv:2402.03300",
            takes_k=False,
            least=_two,
            why=_PAIR,
        )
    },
    "dr-grpo": {
        "": Entry(
            on_policy.dr_grpo,
            "r_i - r̄",
            "(n-1)/n times the gradient of the mean reward, centred",
            "Liu et al. 2025, arXiv:2503.20783",
            takes_k=False,
            least=_two,
            why=_PAIR,
            claim="scaled",
        )
    },
    "reinforce": {
        "": Entry(
            on_policy.reinforce,
            "r_i",
            "unbiased for the gradient of the mean reward, no baseline",
            "Williams 1992",
            takes_k=False,
            least=_one,
            claim="exact",
            baseline="none",
        )
    },
    "max": _MAX,
    "pass": {variant: replace(entry, zero_one=True) for variant, entry in _MAX.items()},
    "passk-training": _PASSK_DESIGNS,
    "bon-max-mean": {
        "": Entry(
            on_policy.bon_max_mean,
            "r_i - r̄ for the best, else 0",
            "biased; its k is n",
            "Chow et al. 2024, arXiv:2412.15287, as in arXiv:2510.23393",
            takes_k=False,
            least=_two,
            why=_PAIR,
        )
    },
    "bon-max-second": {
        "": Entry(
            on_policy.bon_max_second,
            "r_(n) - r_(n-1) for the best, else 0",
            "1/n of max@n:loo-1, so 1/n times ∇max@n; 0 when the best is tied",
            "Tang et al. 2025, arXiv:2503.19595",
            takes_k=False,
            least=_two,
            why=_PAIR,
            claim="scaled",
        )
    },
    "maxrl": {
        "": Entry(
            on_policy.maxrl,
            "(r_i - r̄) / r̄, 0 without a success",
            "unbiased for Σ_{k<n} ∇max@k / k, centred",
            "MaxRL arXiv:2602.02710",
            takes_k=False,
            least=_two,
            why=_PAIR,
            claim="exact",
            zero_one=True,
        )
    },
    "tailrl": {
        "": Entry(
            on_policy.tailrl,
            "n Σ_{j≤i} gap_j / (n-j+1), centred",
            "unbiased for Σ_{k<n} ∇max@k / k on real rewards; equals MaxRL on 0/1",
            "TailRL arXiv:2609.02987",
            takes_k=False,
            least=_two,
            why=_PAIR,
            claim="exact",
        )
    },
    "rs-grpo": {
        "": Entry(
            on_policy.rs_grpo,
            "(1/β)(exp(β r_i) / mean_j exp(β r_j) - 1)",
            "as published; β → 0 is Dr. GRPO",
            "RS-GRPO arXiv:2509.24261",
            takes_k=False,
            least=_two,
            why=_PAIR,
            options={"beta": 2.0},
        )
    },
    "topM": {"": _l_entry("n (v(B) - v(B∖i)), v the mean of the m best of k", _MEAN_OF_TOP)},
    "bottomM": {
        "": _l_entry(
            "n (v(B) - v(B∖i)), v the mean of the m worst of k",
            "unbiased for the gradient of the lower tail, centred",
        )
    },
    "median": {
        "": _l_entry(
            "n (v(B) - v(B∖i)), v the median of k",
            "unbiased for the gradient of E[median of k], centred",
        )
    },
    "min": {
        "": _l_entry(
            "n (v(B) - v(B∖i)), v the worst of k",
            "unbiased for the gradient of E[min of k] (all k right), centred",
        )
    },
    "lstat": {
        "": _l_entry(
            "n (v(B) - v(B∖i)), v = Σ_j α_j r_(j:k)",
            "unbiased for any L-statistic given as coefficients=, lowest of k first; centred",
            coefficients=...,
        )
    },
}

ALIASES = {"rloo": "mean", "pkpo": "max:loo-1"}


def l_coefficients(name: str, m: int | None, k: int) -> tuple[float, ...] | None:
    """Coefficients of the named L-statistics; None where the user must give them."""
    if name == "topM" and m is not None:
        return estimates.top_coefficients(k, m)
    if name == "bottomM" and m is not None:
        return estimates.bottom_coefficients(k, m)
    if name == "median":
        return estimates.median_coefficients(k)
    if name == "min":
        return estimates.bottom_coefficients(k, 1)
    return None
