"""The Python API: read, evaluate, compare, report, signal, train; all at the top of `bestofk`."""

from bestofk.api.measuring import ReportFile, compare, evaluate, read, report
from bestofk.api.training_run import TrainedRun, train
from bestofk.evaluation import Comparison, Curve, Estimate
from bestofk.objectives import signal
from bestofk.objectives.diagnostics import Signal as SignalResult
from bestofk.samples import Samples

__all__ = [
    "Comparison",
    "Curve",
    "Estimate",
    "ReportFile",
    "Samples",
    "SignalResult",
    "TrainedRun",
    "compare",
    "evaluate",
    "read",
    "report",
    "signal",
    "train",
]
