"""Settings that hold for every test."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from warm import serving

# As the command does: threads that spin while they wait make a busy machine crawl. Small matrices
# are faster on one thread, and the workers of a test run share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a script starts with "&" ignores Ctrl-C, and so does all it starts: tests that interrupt a
# process would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed, examples are the same on every machine, and a busy machine changes nothing.
settings.register_profile(
    "bestofk", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bestofk")

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power, and a tiny run syncs dozens of files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, or a skip that says what to install."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(
            executable_path=found, args=["--no-sandbox"], timeout=900_000
        )
        yield running
        running.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a `bestofk` and a `python` that have everything imported."""
    with serving(tmp_path_factory.mktemp("warm")) as folder:
        yield folder
