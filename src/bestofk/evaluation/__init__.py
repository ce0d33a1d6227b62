"""Evaluation: what best-of-k is worth, from samples; and whether one run beats another.

>>> import numpy as np
>>> run = samples([[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]], name="a")
>>> curve(run, "pass@k").estimate.round(3)
array([0.333, 0.5  , 0.583, 0.667])
"""

from bestofk.samples import (
    BadFile,
    SampleRow,
    Samples,
    from_records,
    locate,
    read,
    rows,
    samples,
)

from .comparison import compare
from .curves import curve, curves_by_turns
from .diversity import diversity
from .planning import Population, plan, population
from .results import (
    METRICS,
    Comparison,
    Crossing,
    Curve,
    Diversity,
    Estimate,
    Interval,
    Measure,
    Metric,
    Plan,
    PlanRow,
)

__all__ = [
    "METRICS",
    "BadFile",
    "Comparison",
    "Crossing",
    "Curve",
    "Diversity",
    "Estimate",
    "Interval",
    "Measure",
    "Metric",
    "Plan",
    "PlanRow",
    "Population",
    "SampleRow",
    "Samples",
    "compare",
    "curve",
    "curves_by_turns",
    "diversity",
    "from_records",
    "locate",
    "plan",
    "population",
    "read",
    "rows",
    "samples",
]
