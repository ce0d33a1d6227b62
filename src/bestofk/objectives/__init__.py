"""The mathematics of best-of-k: pure functions on arrays, NumPy or PyTorch (JAX with x64 too).

Estimates turn rewards into what k samples are worth; objectives turn them into training weights.
"""

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

__all__ = [
    "DroppedGroups",
    "Objective",
    "ObjectiveWarning",
    "advantages",
    "bottom_m_at_k",
    "l_statistic_at_k",
    "maj_at_k",
    "max_at_k",
    "max_at_k_curve",
    "median_at_k",
    "min_at_k",
    "objective",
    "pass_at_k",
    "pass_at_k_curve",
    "top_m_at_k",
]
