"""Attacks 1-27 of the list, at every tier this machine offers, as root and as an ordinary user.

Each case asserts what must not happen and that programs judged beside and after it are unharmed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from bestofk.sandbox.guest import confinement, kernel

Run = Callable[..., subprocess.CompletedProcess[str]]
WHO = [("root", 3), ("root", 2), ("root", 1), ("user", 2), ("user", 1)]
ONCE = [("root", 3, ""), ("user", 2, "writable"), ("user", 1, "")]
"""Every tier once, one where programs may write files; the rest is among the long counts."""


def kernel_can(tier: int) -> bool:
    """Whether the kernel has what a tier is made of, found without the sandbox's own code paths."""
    flags = {3: kernel.CLONE_NEWNS | kernel.CLONE_NEWPID, 2: kernel.CLONE_NEWUSER}
    if tier == 1:
        return confinement.landlock_abi() >= 3
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
    assert {int(name[:2]) for name in report["cases"]} >= {*range(1, 29)} - {6, 25}  # every group
    return {name: wrong for name, wrong in report["cases"].items() if wrong}


def test_representative_attacks_fail_and_neighbours_are_unharmed(run_script: Run) -> None:
    """All of them at once: most of the time each waits for its programs."""
    found, missing = {}, []
    with ThreadPoolExecutor() as pool:
        asked = {once: pool.submit(complaints, run_script, *once, "quick") for once in ONCE}
    for once, future in asked.items():
        try:
            found[once] = future.result()
        except pytest.skip.Exception as why:
            missing.append(f"{once}: {why}")
    assert found == {once: {} for once in found}
    if missing:
        pytest.skip("; ".join(missing))


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
