"""Evaluation: what best-of-k is worth, from samples; and whether one run beats another.

>>> import numpy as np
>>> run = samples([[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]], name="a")
>>> curve(run, "pass@k").estimate.round(3)
array([0.333, 0.5  , 0.583, 0.667])
"""

from bestofk.samples import Samples, from_records, read, samples

from .comparison import compare
from .curves import curve, curves_by_turns
from .diversity import diversity
from .planning import plan, population
from .results import Comparison, Curve, Diversity, Estimate, Metric, Plan

__all__ = [
    "Comparison",
    "Curve",
    "Diversity",
    "Estimate",
    "Metric",
    "Plan",
    "Samples",
    "compare",
    "curve",
    "curves_by_turns",
    "diversity",
    "from_records",
    "plan",
    "population",
    "read",
    "samples",
]
