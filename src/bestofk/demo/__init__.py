"""`bestofk demo`: what training for one sample does to best-of-k, in seconds."""

from .conclusions import conditions, rows, sentence
from .demo_page import page
from .experiment import KS, Results, Settings, experiment

__all__ = ["KS", "Results", "Settings", "conditions", "experiment", "page", "rows", "sentence"]
