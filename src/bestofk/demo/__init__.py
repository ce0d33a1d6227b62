"""`bestofk demo`: what training for one sample does to best-of-k, in seconds, with NumPy alone."""

from .chart import standalone
from .experiment import KS, Results, Settings, experiment
from .findings import conditions, rows, sentence
from .page import page

__all__ = [
    "KS",
    "Results",
    "Settings",
    "conditions",
    "experiment",
    "page",
    "rows",
    "sentence",
    "standalone",
]
