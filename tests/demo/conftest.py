from __future__ import annotations

import pytest

from bestofk.demo import Results, Settings, experiment


@pytest.fixture(scope="session")
def small() -> Results:
    """A real experiment, short."""
    return experiment(Settings(steps=60, worlds=3))
