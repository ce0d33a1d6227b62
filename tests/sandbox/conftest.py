"""What the sandbox's tests share."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits, Sandbox, SandboxError
from bestofk.types import Prompt, Verdict

HERE = Path(__file__).parent
USER = 23456


@pytest.fixture(scope="session")
def best_tier() -> int:
    """The strongest tier offered here to this user."""
    with quietly(tier=1) as sandbox:
        return sandbox.tier


def quietly(**options: Any) -> Sandbox:
    """A sandbox whose loudness about its tier is not under test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return Sandbox(**options)


@pytest.fixture(scope="session")
def new_sandbox() -> Callable[..., Sandbox]:
    return quietly


@pytest.fixture(scope="session")
def at_tier() -> Callable[..., Sandbox]:
    """A sandbox of exactly this tier, where the machine offers it."""

    def started(tier: int, **options: Any) -> Sandbox:
        try:
            return quietly(tier=tier, at_most=tier, **options)
        except SandboxError as error:
            pytest.skip(str(error))

    return started


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    """A verifier at the best tier, with two workers and short limits."""
    limits = Limits(cpu_per_test=1.0, cpu_per_program=2.0, wall_factor=8.0, memory=256 << 20)
    with CodeVerifier(sandbox=quietly(workers=2, limits=limits)) as judge:
        assert isinstance(judge, CodeVerifier)
        yield judge


@pytest.fixture
def verdict(verifier: CodeVerifier) -> Callable[[dict[str, Any], str], Verdict]:
    def judged(spec: dict[str, Any], text: str) -> Verdict:
        return verifier([Prompt("t", "", "code", spec)], [text])[0]

    return judged


@pytest.fixture
def judge_all(
    verifier: CodeVerifier,
) -> Callable[[dict[str, tuple[dict[str, Any], str]]], dict[str, Verdict]]:
    """Verdicts of named pairs of a spec and a text, judged as one batch."""

    def judged(cases: dict[str, tuple[dict[str, Any], str]]) -> dict[str, Verdict]:
        asked = [Prompt(name, "", "code", spec) for name, (spec, _) in cases.items()]
        verdicts = verifier(asked, [text for _, text in cases.values()])
        return dict(zip(cases, verdicts, strict=True))

    return judged


@pytest.fixture(scope="session")
def run_script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script of this folder in a process of its own, as this user or an unprivileged one."""

    def run(
        script: str, *arguments: str, as_user: bool = False, timeout: float = 3600
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable]
        if as_user and os.geteuid() == 0:
            command += [str(HERE / "as_user.py"), str(USER)]
        command += [str(HERE / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode == 77:
            pytest.skip(done.stderr.strip())
        return done

    return run
