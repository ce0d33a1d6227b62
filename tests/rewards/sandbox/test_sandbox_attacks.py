"""Attacks 1-27 of the list, at every tier this machine offers, as root and as an ordinary user.

Each case asserts what must not happen and that programs judged beside and after it are unharmed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from bestofk.rewards.sandbox import bubblewrap
from bestofk.rewards.sandbox.guest import kernel, landlock

Run = Callable[..., subprocess.CompletedProcess[str]]
WHO = [("root", 3), ("root", 2), ("root", 1), ("user", 2), ("user", 1)]


def kernel_can(tier: int) -> bool:
    """Whether the kernel has what a tier is made of, found without the sandbox's own code paths."""
    flags = {3: kernel.CLONE_NEWNS | kernel.CLONE_NEWPID, 2: kernel.CLONE_NEWUSER}
    if tier == 1:
        return landlock.abi() >= 3
    script = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({flags[tier]}) != 0)"
    return subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def complaints(run_script: Run, who: str, tier: int, *options: str) -> dict[str, str]:
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if not kernel_can(tier):
        pytest.skip(f"the kernel does not offer what tier {tier} needs")
    done = run_script("attacks.py", str(tier), *options, as_user=who == "user")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["uid"] == 0) == (who == "root")
    assert len(report["cases"]) > 25
    return {name: wrong for name, wrong in report["cases"].items() if wrong}


@pytest.mark.parametrize(("who", "tier"), WHO)
def test_representative_attacks_fail_and_neighbours_are_unharmed(
    run_script: Run, who: str, tier: int
) -> None:
    assert complaints(run_script, who, tier, "quick") == {}


@pytest.mark.slow
@pytest.mark.parametrize("who", ["root", "user"])
def test_bubblewraps_rooms_withstand_the_same_attacks(run_script: Run, who: str) -> None:
    if bubblewrap.available() is None:
        pytest.skip("needs Debian's bubblewrap")
    assert complaints(run_script, who, 2, "bubblewrap") == {}


@pytest.mark.parametrize(("who", "tier"), [who for who in WHO if who[1] > 1])
def test_representative_attacks_fail_where_programs_may_write_files(
    run_script: Run, who: str, tier: int
) -> None:
    assert complaints(run_script, who, tier, "quick", "writable") == {}


@pytest.mark.slow
@pytest.mark.parametrize(("who", "tier"), WHO)
def test_every_attack_fails_and_neighbours_are_unharmed(
    run_script: Run, who: str, tier: int
) -> None:
    assert complaints(run_script, who, tier) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("who", "tier"), [who for who in WHO if who[1] > 1])
def test_every_attack_fails_where_programs_may_write_files(
    run_script: Run, who: str, tier: int
) -> None:
    assert complaints(run_script, who, tier, "writable") == {}


def test_every_group_about_programs_has_attacks(attacks: object) -> None:
    cases = attacks.all_cases(  # type: ignore[attr-defined]
        {"secret": "/s", "token": "t", "port": 1, "abstract": "a", "mark": "m"}
    )
    groups = {case.group for case in cases}
    assert groups == set(range(1, 29))
    assert {case.group for case in cases if case.quick} >= groups - {6, 25, 24} | {24}
    assert len({case.id for case in cases}) == len(cases)
