"""Attacks 8, 33-36, 38 and 39: siblings, lost workers, a host in trouble, load, leaks, tiers."""

from __future__ import annotations

import errno
import math
import os
import random
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits
from bestofk.types import Verdict
from sandbox_watch import RIGHT, SLOW, New, alone, descendants, eventually, prompts


def alike(verdicts: list[Verdict]) -> list[tuple[Any, ...]]:
    """Everything of a verdict but the CPU time."""
    return [(v.reward, v.status, v.passed, v.total, v.detail) for v in verdicts]


# 8
@pytest.mark.parametrize(
    ("most", "writable"), [(3, False), (3, True), (2, False), (2, True), (1, False)]
)
def test_a_program_finds_nothing_that_its_sibling_left(
    at_tier: New, most: int, writable: bool
) -> None:
    leave = """
import os
def attack():
    for folder in (".", "/box", "/tmp", "/dev/shm", "/var/tmp", "/"):
        write, link = lambda p: open(p, "w").write("x"), lambda p: os.symlink("/", p)
        for n, make in enumerate((write, os.mkdir, link)):
            try: make(os.path.join(folder, f"left{n}"))
            except OSError: pass
    try: os.chmod("/box", 0)
    except OSError: pass
    return []
"""
    look = """
import os
def attack():
    found = []
    for folder in (".", "/box", "/tmp", "/dev/shm", "/var/tmp", "/"):
        try: found += [n for n in os.listdir(folder) if n.startswith("left")]
        except OSError: pass
    if BOX:
        open("/box/mine", "w").close()
    return found
"""
    look += f"BOX = {writable}"
    spec = {"asserts": ["assert attack() == []"]}
    with at_tier(most, workers=1, writable=writable) as sandbox:
        verdicts = CodeVerifier(sandbox=sandbox)(prompts(4, spec), [leave, look, leave, look])
    assert [v.reward for v in verdicts] == [1.0] * 4, verdicts


# 33
def test_workers_killed_while_idle_are_no_program_s_fault(new_sandbox: New) -> None:
    """Four of them: more than the attempts a program has."""
    with CodeVerifier(sandbox=new_sandbox(workers=4)) as verifier:
        assert isinstance(verifier, CodeVerifier)
        for _ in range(5):  # until all four have been started
            assert {v.reward for v in verifier(prompts(8), [SLOW] * 8)} == {1.0}
            if len(verifier.sandbox._state.all) == 4:
                break
        workers = list(verifier.sandbox._state.all)
        assert len(workers) == 4
        for worker in workers:
            worker.process.kill()
        verdicts = verifier(prompts(8), [RIGHT] * 8)
        assert [v.reward for v in verdicts] == [1.0] * 8, verdicts


# 34
HOST_IN_TROUBLE = """
import math, os, resource, sys
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Sandbox
from bestofk.types import Prompt
spec = {"asserts": ["assert f(1) == 2"]}
judge = CodeVerifier(sandbox=Sandbox(workers=1))
ask = lambda: judge([Prompt("p", "", "code", spec)], ["def f(x): return x + 1"])[0]
assert ask().reward == 1.0
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = len(os.listdir("/proc/self/fd"))
hog = []
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
try:
    while True: hog.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
starved = ask()
for fd in hog: os.close(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
os.environ["TMPDIR"] = "/nonexistent"
import tempfile; tempfile.tempdir = "/nonexistent"
after = ask()
print(starved.status, math.isnan(starved.reward), after.reward)
"""


def test_a_host_without_descriptors_scores_nan_and_recovers() -> None:
    done = alone(HOST_IN_TROUBLE)
    assert done.stdout.split() == ["unscored", "True", "1.0"], done.stderr


FULL_DISK = """
import os, tempfile
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Sandbox, SandboxError
from bestofk.types import Prompt
spec = {"asserts": ["assert f(1) == 2"]}
def ask(judge): return judge([Prompt("p", "", "code", spec)], ["def f(x): return x + 1"])[0].reward
before = CodeVerifier(sandbox=Sandbox(workers=1))
first = ask(before)
with open("filler", "wb", buffering=0) as filler:
    try:
        while True: filler.write(bytes(4096))
    except OSError as error: print(error.errno)
print(first, ask(before))
try:
    print(ask(CodeVerifier(sandbox=Sandbox(workers=1))))
except SandboxError as error:
    print("No space left" in str(error))
"""


def test_a_full_disk_turns_no_right_program_into_a_wrong_one(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=True)
    try:
        done = alone(FULL_DISK, cwd=disk, env={**os.environ, "TMPDIR": str(disk)})
    finally:
        subprocess.run(["umount", disk], check=True)
    full, judged, *started = done.stdout.splitlines()
    assert int(full) == errno.ENOSPC
    assert judged == "1.0 1.0"
    assert started == ["True"], done.stderr  # a new sandbox cannot test itself, and says why


def test_a_folder_below_tmp_can_be_made_readable(new_sandbox: New, best_tier: int) -> None:
    """Even where /tmp would lead to the writable folder otherwise."""
    if best_tier < 2:
        pytest.skip("no writable folder at this tier")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        Path(folder, "module_in_tmp.py").write_text(
            "import tempfile\ndef f(x):\n    tempfile.TemporaryFile().close()\n    return x + 1\n"
        )
        with new_sandbox(workers=1, paths=(folder,), writable=True) as sandbox:
            outcome = sandbox.call("module_in_tmp:f", [1])
    assert (outcome.status, outcome.value) == ("ok", 2)


# 36
def memory_of(pids: list[int]) -> int:
    """Resident KiB of processes."""
    total = 0
    for pid in pids:
        match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        total += int(match[1]) if match else 0
    return total


def mounts() -> set[str]:
    """What is mounted, but for the small disks that tests running beside this one fill."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if "pytest-of-" not in line}


def watch_for_leaks(new_sandbox: New, runs: int, folder: Path, writable: bool) -> None:
    before = mounts()
    others = set(descendants(os.getpid()))
    mixed = [
        RIGHT,
        "def f(x): open('/box/x', 'w').write('x'); return x + 1",
        "import os; os._exit(1)",
        "x =",
    ]
    with new_sandbox(workers=2, writable=writable) as sandbox:
        verifier = CodeVerifier(sandbox=sandbox)
        verifier(prompts(40), mixed * 10)
        workers = [w.process.pid for w in sandbox._state.all]
        # server and zygote of each worker; the checker, the last one, is replaced now and then
        servers = [pid for root in workers for pid in [root, *descendants(root)[:-1]][-2:]]
        descriptors = len(os.listdir("/proc/self/fd"))
        inside = [len(os.listdir(f"/proc/{pid}/fd")) for pid in servers]
        resident = memory_of(servers)
        verdicts = verifier(prompts(runs), mixed * (runs // 4))
        assert sum(v.reward for v in verdicts) == (runs / 2 if writable else runs / 4)
        assert all(v.status != "unscored" for v in verdicts)
        assert [w.process.pid for w in sandbox._state.all] == workers  # none was replaced
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert [len(os.listdir(f"/proc/{pid}/fd")) for pid in servers] == inside
        assert memory_of(servers) - resident < 2048 * len(servers)
        assert len(descendants(os.getpid())) - len(others) <= 4 * len(workers)
    assert eventually(lambda: set(descendants(os.getpid())) <= others)
    assert mounts() == before
    assert os.listdir(folder) == []


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_200_runs_leave_nothing_behind(new_sandbox: New, temporary: Path, best_tier: int) -> None:
    watch_for_leaks(new_sandbox, 200, temporary, writable=best_tier > 1)


@pytest.mark.slow
@pytest.mark.parametrize("writable", [False, True])
def test_10000_runs_leave_nothing_behind(
    new_sandbox: New, temporary: Path, best_tier: int, writable: bool
) -> None:
    watch_for_leaks(new_sandbox, 10_000, temporary, writable and best_tier > 1)


# 39
def test_order_and_batching_change_nothing(verifier: CodeVerifier, best_tier: int) -> None:
    texts = [
        RIGHT, "def f(x): return 2", "def f(x): return {x, x + 1, 'a'}", "x =", "",
        "import os; os._exit(0)",
        "import random\ndef f(x): return x + random.randint(0, 2)",
        "def f(x): return next(iter({'a', 'b', 'c', 'd'}))", "def f(x): raise ValueError(x)",
    ]  # fmt: skip
    verdicts = verifier(prompts(len(texts)), texts)
    assert {v.tier for v in verdicts} == {best_tier}
    whole = alike(verdicts)
    order = list(range(len(texts)))
    random.Random(3).shuffle(order)
    shuffled = alike(verifier(prompts(len(texts)), [texts[i] for i in order]))
    assert [shuffled[order.index(i)] for i in range(len(texts))] == whole
    assert [alike(verifier(prompts(1), [text]))[0] for text in texts] == whole
    assert not any(math.isnan(reward) for reward, *_ in whole)


def test_calls_never_raise_for_what_they_run(new_sandbox: New) -> None:
    limits = Limits(cpu_per_test=0.5, blocked_per_program=1.0, memory=64 << 20)
    with new_sandbox(workers=2, limits=limits) as sandbox:
        batch = [["2 + 2"], ["1 / 0"], ["[0] * 10**9"], ["__import__('os')._exit(3)"], ["object()"],
                 ["__import__('time').sleep(60)"], ["exit()"], ["'x' * 10**7"]]  # fmt: skip
        outcomes = sandbox.call_many("builtins:eval", batch)
        assert [o.status for o in outcomes] == [
            "ok", "raised", "memory", "crashed", "raised", "timeout", "raised", "raised"
        ]  # fmt: skip
        assert outcomes[0].value == 4
        with pytest.raises(ValueError, match="plain values"):
            sandbox.call("builtins:len", [object()])
        with pytest.raises(ValueError, match="module:function"):
            sandbox.call("len", [[]])
