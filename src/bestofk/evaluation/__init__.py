"""Evaluation: what best-of-k is worth, from samples; and whether one run beats another.

>>> import numpy as np
>>> run = samples([[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]], name="a")
>>> curve(run, "pass@k").estimate.round(3)
array([0.333, 0.5  , 0.583, 0.667])
"""

from .comparison import compare
from .curves import curve
from .diversity import diversity
from .extrapolate import extrapolate
from .files import locate, mapping, read, rows
from .planning import Population, plan, population
from .results import (
    METRICS,
    Comparison,
    Crossing,
    Curve,
    Diversity,
    Extrapolation,
    Interval,
    Measure,
    Metric,
    Plan,
    PlanRow,
    ReweightedEstimate,
    Samples,
)
from .reweighting import off_policy
from .sample_rows import SampleRow
from .table import samples
from .unpacking import BadFile

__all__ = [
    "METRICS",
    "BadFile",
    "Comparison",
    "Crossing",
    "Curve",
    "Diversity",
    "Extrapolation",
    "Interval",
    "Measure",
    "Metric",
    "Plan",
    "PlanRow",
    "Population",
    "ReweightedEstimate",
    "SampleRow",
    "Samples",
    "compare",
    "curve",
    "diversity",
    "extrapolate",
    "locate",
    "mapping",
    "off_policy",
    "plan",
    "population",
    "read",
    "rows",
    "samples",
]
