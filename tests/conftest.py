"""Settings that hold for every test."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# As the command does: threads that spin while they wait make a busy machine crawl.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What a script starts with "&" ignores Ctrl-C, and so does all it starts: tests that interrupt a
# process would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed, examples are the same on every machine, and a busy machine changes nothing.
settings.register_profile(
    "bestofk", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bestofk")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")
