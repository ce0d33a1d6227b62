"""The mathematics of best-of-k: pure functions on arrays: NumPy, PyTorch or JAX.

Estimates turn rewards into what k samples are worth; objectives turn them into advantages.
"""

from .diagnostics import (
    Signal,
    effective_sample_size,
    effective_share,
    learning_signal,
    ratio_divergence,
    signal,
    signal_to_noise,
)
from .estimates import (
    bottom_m_at_k,
    l_statistic_at_k,
    maj_at_k,
    max_at_k,
    max_at_k_curve,
    median_at_k,
    min_at_k,
    pass_at_k,
    pass_at_k_curve,
    top_m_at_k,
)
from .grouping import DroppedGroups
from .objective import Objective, ObjectiveWarning, advantages, objective
from .off_policy import clipped_advantages, off_policy_max_at_k, trust_region_mask
from .on_policy import layer_cake

__all__ = [
    "DroppedGroups",
    "Objective",
    "ObjectiveWarning",
    "Signal",
    "advantages",
    "bottom_m_at_k",
    "clipped_advantages",
    "effective_sample_size",
    "effective_share",
    "l_statistic_at_k",
    "layer_cake",
    "learning_signal",
    "maj_at_k",
    "max_at_k",
    "max_at_k_curve",
    "median_at_k",
    "min_at_k",
    "objective",
    "off_policy_max_at_k",
    "pass_at_k",
    "pass_at_k_curve",
    "ratio_divergence",
    "signal",
    "signal_to_noise",
    "top_m_at_k",
    "trust_region_mask",
]
