"""The Python API: read, evaluate, compare, report, signal, train; all at the top of `bestofk`."""

from bestofk.api.measuring import compare, evaluate, read, report, signal
from bestofk.api.result_objects import (
    ComparisonResult,
    Estimate,
    EvaluationResult,
    ReportFile,
    SampleSet,
    SignalResult,
)
from bestofk.api.training_run import TrainedRun, train

__all__ = [
    "ComparisonResult",
    "Estimate",
    "EvaluationResult",
    "ReportFile",
    "SampleSet",
    "SignalResult",
    "TrainedRun",
    "compare",
    "evaluate",
    "read",
    "report",
    "signal",
    "train",
]
