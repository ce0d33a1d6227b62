"""Attack 38: the tier a machine offers, what a lower one means, and a self-test with teeth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.rewards.sandbox import Limits, Sandbox, SandboxError
from bestofk.rewards.sandbox.selftest import attack
from bestofk.rewards.sandbox.worker import Worker
from bestofk.types import Prompt
from sandbox_watch import New, descendants


def test_a_lower_tier_is_loud() -> None:
    with pytest.warns(RuntimeWarning, match="runs at tier 0"):
        sandbox = Sandbox(tier=0, at_most=0, allow_unsafe=True, workers=1)
    with sandbox:
        assert sandbox.call("math:gcd", [12, 18]).tier == 0
    with pytest.warns(RuntimeWarning, match="runs at tier 1 .*at_most=1"):
        Sandbox(at_most=1, workers=1).close()


def test_tier_0_must_be_asked_for() -> None:
    with pytest.raises(ValueError, match="allow_unsafe"):
        Sandbox(tier=0)


def test_a_tier_that_is_not_there_is_an_error(run_script: Callable[..., Any]) -> None:
    done = run_script("ask_tier.py", "3", as_user=True)
    assert done.returncode == 1
    assert "no sandbox of tier 3 or better" in done.stderr
    assert "needs root" in done.stderr
    assert "bestofk doctor" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give something up")
@pytest.mark.parametrize(("less", "most"), [("no-admin", 2), ("no-namespaces", 1)])
def test_a_container_that_may_do_less_gets_a_lower_tier_that_holds(
    run_script: Callable[..., Any], less: str, most: int
) -> None:
    done = run_script("in_a_pod.py", less)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 1 <= found["tier"] <= most
    assert found["rewards"].pop("right") == 1.0
    assert not os.path.exists("/tmp/left")
    assert set(found["rewards"].values()) == {0.0}


def test_the_self_test_finds_what_an_open_worker_allows(new_sandbox: New) -> None:
    """At tier 0 files are open: if the attacks were toothless they would not notice."""
    with new_sandbox(tier=0, at_most=0, allow_unsafe=True, workers=1) as sandbox:
        worker = Worker(sandbox._configuration(0))
        try:
            worked = attack(worker, sandbox.limits)
        finally:
            worker.close()
    assert "read a file of the host" in worked
    assert "list processes" in worked
    assert not [name for name in worked if "memory" in name or "start a process" in name]


def test_a_tier_that_fails_its_self_test_is_not_used(
    new_sandbox: New, monkeypatch: pytest.MonkeyPatch, best_tier: int
) -> None:
    from bestofk.rewards.sandbox import pool

    def leaky(worker: Worker, limits: Limits) -> list[str]:
        return ["read a file of the host"]

    monkeypatch.setattr(pool, "attack", leaky)
    with pytest.raises(SandboxError, match="a hostile program could read a file of the host"):
        new_sandbox(workers=1)


def test_the_processes_of_a_worker_share_a_core_and_workers_spread(new_sandbox: New) -> None:
    usable = os.sched_getaffinity(0)
    workers = min(len(usable), 4)
    with CodeVerifier(sandbox=new_sandbox(workers=workers)) as judge:
        assert isinstance(judge, CodeVerifier)
        prompt = Prompt("p", "", "code", {"asserts": ["assert f(1) == 1"]})
        slow = "def f(x):\n    for _ in range(10 ** 6): pass\n    return x"
        assert {v.reward for v in judge([prompt] * 8 * workers, [slow] * 8 * workers)} == {1.0}
        found = []
        for worker in judge.sandbox._state.all:
            cores = [os.sched_getaffinity(pid) for pid in descendants(worker.process.pid)]
            assert cores
            assert len(set.union(*cores)) == 1
            found += [*cores[0]]
    assert len(set(found)) == len(found)
    assert set(found) <= usable


def test_tests_given_as_iterators_serve_every_program_of_a_batch(new_sandbox: New) -> None:
    """The checker keeps decoded tests for the next program; an iterator would be spent by then."""
    spec = {"entry_point": "f", "calls": [{"args": [iter([1, 2])], "expected": 3}]}
    with CodeVerifier(sandbox=new_sandbox(workers=1)) as judge:
        verdicts = judge([Prompt("p", "", "code", spec)] * 3, ["def f(x): return sum(x)"] * 3)
    assert [v.reward for v in verdicts] == [1.0, 1.0, 1.0]


LIST_HIDDEN = """
import os, sys
def attack():
    listed = []
    for path in [*sys.path, "/usr/lib/python3", "/usr/lib", "/"]:
        for folder in (path, path + "/site-packages", path + "/dist-packages"):
            try: listed += [name for name in os.listdir(folder) if name.endswith(".dist-info")]
            except OSError: pass
    return listed

def later():
    import importlib
    importlib.invalidate_caches()
    import colorsys, xml.dom.minidom
    return colorsys.rgb_to_hsv(0, 0, 1)[2]
"""


@pytest.mark.parametrize("packages", [(), ("numpy",)])
@pytest.mark.parametrize("most", [3, 2, 1])
def test_hidden_packages_cannot_be_listed_and_imports_still_work(
    new_sandbox: New, most: int, packages: tuple[str, ...]
) -> None:
    spec = {"asserts": ["assert [n for n in attack() if 'numpy' not in n] == []"]}
    spec["asserts"] += ["assert later() == 1"]
    try:
        sandbox = new_sandbox(tier=most, at_most=most, workers=1, packages=packages)
    except SandboxError as error:
        pytest.skip(str(error))
    with CodeVerifier(sandbox=sandbox) as judge:
        verdict = judge([Prompt("p", "", "code", spec)], [LIST_HIDDEN])[0]
    assert verdict.reward == 1.0, verdict


WHO = """
import os
def attack():
    return os.getuid() == 0 or os.geteuid() == 0 or os.getgid() == 0
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("most", [3, 1])
def test_no_program_runs_as_root_at_tier_3_or_1(new_sandbox: New, most: int) -> None:
    """Wherever Python is installed: in root's own home programs can read it, and nothing else."""
    spec = {"asserts": ["assert attack() is False"]}
    with CodeVerifier(sandbox=new_sandbox(tier=most, at_most=most, workers=1)) as judge:
        verdict = judge([Prompt("p", "", "code", spec)], [WHO])[0]
    assert verdict.reward == 1.0, verdict


AS_ROOT = """
import os, sys
from bestofk.rewards.sandbox.guest import confinement, kernel
sys.path.insert(0, sys.argv[1])
config = {"tier": 1, "guest": "", "readable": [], "import_path": [], "all_packages": False,
          "wrapped": False}
kernel.set_capabilities(1 << 6 | 1 << 7)  # to change its user and group
try:
    confinement.enter(config)
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_tier_1_is_not_offered_where_programs_would_have_to_be_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", AS_ROOT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "programs get a user id of their own" in done.stdout
    assert str(tmp_path) in done.stdout
