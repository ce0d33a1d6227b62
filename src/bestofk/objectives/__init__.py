"""The mathematics of best-of-k: pure functions on arrays, NumPy or PyTorch (JAX with x64 too).

Estimates turn rewards into what k samples are worth; objectives turn them into training weights.
"""

from .diagnostics import Signal, learning_signal, signal, signal_to_noise
from .estimates import (
    bottom_m_at_k,
    l_statistic_at_k,
    max_at_k,
    max_at_k_curve,
    median_at_k,
    min_at_k,
    pass_at_k,
    pass_at_k_curve,
    top_m_at_k,
)
from .grouping import DroppedGroups
from .majority import maj_at_k
from .named import Objective, ObjectiveWarning, advantages, objective
from .off_policy import effective_sample_size, off_policy_max_at_k
from .off_policy_region import (
    clipped_weights,
    effective_share,
    ratio_divergence,
    trust_region_mask,
)
from .on_policy import layer_cake
from .paper_measures import distinct_wrong_share, flip_rewards, signed_rank_test

__all__ = [
    "DroppedGroups",
    "Objective",
    "ObjectiveWarning",
    "Signal",
    "advantages",
    "bottom_m_at_k",
    "clipped_weights",
    "distinct_wrong_share",
    "effective_sample_size",
    "effective_share",
    "flip_rewards",
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
    "signed_rank_test",
    "top_m_at_k",
    "trust_region_mask",
]
