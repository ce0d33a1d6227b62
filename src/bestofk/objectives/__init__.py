"""The mathematics of best-of-k: pure functions on arrays: NumPy, PyTorch or JAX.

Estimates turn rewards into what k samples are worth; objectives turn them into advantages.
"""

from bestofk.procedures.estimates import (
    l_statistic_at_k,
    maj_at_k,
    max_at_k,
    max_at_k_curve,
    pass_at_k,
)
from bestofk.procedures.grouping import DroppedGroups

from .diagnostics import (
    Signal,
    effective_share,
    has_signal,
    ratio_divergence,
    signal,
)
from .objective import Objective, advantages, objective
from .off_policy import clipped_advantages, off_policy_max_at_k, trust_region_mask
from .terms import ObjectiveWarning

__all__ = [
    "DroppedGroups",
    "Objective",
    "ObjectiveWarning",
    "Signal",
    "advantages",
    "clipped_advantages",
    "effective_share",
    "has_signal",
    "l_statistic_at_k",
    "maj_at_k",
    "max_at_k",
    "max_at_k_curve",
    "objective",
    "off_policy_max_at_k",
    "pass_at_k",
    "ratio_divergence",
    "signal",
    "trust_region_mask",
]
