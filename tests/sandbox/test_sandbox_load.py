"""Attack 35: a busy machine flips no verdict, and a program pays for what it does itself.

The load comes from processes in sessions of their own. The kernel shares cores between sessions
first (autogroup), so load inside one session would not be felt by the workers of a sandbox.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits, Sandbox
from bestofk.sandbox import worker as worker_module
from bestofk.sandbox.guest.process_table import BlockedClock, ProcFiles
from bestofk.types import Prompt, Verdict
from sandbox_watch import RIGHT, New, descendants, eventually, prompts

ONE = {"asserts": ["assert f(1) == 2"]}
BURN = """
import time
def f(x):
    end = time.process_time() + {seconds}
    while time.process_time() < end: pass
    return x + 1
"""


@contextlib.contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """Processes that only compute, each in a session of its own, as long as this one lives."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100_000))"
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", loop], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def under_load(
    new_sandbox: New, *, limit: float, share: float, workers: int, load: int, programs: int
) -> tuple[list[Verdict], float]:
    """Programs that need `share` of their CPU limit, beside `load` busy processes; wall seconds."""
    limits = Limits(cpu_per_test=limit, cpu_per_program=2 * limit, blocked_per_program=1.0)
    with new_sandbox(workers=workers, limits=limits) as sandbox, busy(load):
        verifier = CodeVerifier(sandbox=sandbox)
        started = time.monotonic()
        text = BURN.format(seconds=share * limit)
        verdicts = verifier(prompts(programs, ONE), [text] * programs)
        return verdicts, time.monotonic() - started


def test_a_program_near_its_limit_is_right_on_a_busy_machine(new_sandbox: New) -> None:
    cores = len(os.sched_getaffinity(0))
    verdicts, wall = under_load(
        new_sandbox, limit=0.4, share=0.85, workers=1, load=6 * cores, programs=1
    )
    assert [v.reward for v in verdicts] == [1.0], verdicts
    assert wall > 1.0 + 0.4  # more than CPU and blocked time together: it did wait for a core


@pytest.mark.slow
def test_long_load_from_many_sessions_flips_no_verdict(new_sandbox: New) -> None:
    """More than ten runnable sessions a core, half of them ours."""
    cores = len(os.sched_getaffinity(0))
    verdicts, _ = under_load(
        new_sandbox, limit=0.2, share=0.8, workers=10 * cores, load=10 * cores, programs=200
    )
    assert [v.reward for v in verdicts] == [1.0] * 200


def test_what_a_busy_machine_does_not_excuse(new_sandbox: New) -> None:
    """Too much CPU time and sleep are 0 as they are on a quiet machine."""
    limits = Limits(cpu_per_test=0.3, cpu_per_program=0.6, blocked_per_program=0.5)
    sleep = "import time\ndef f(x):\n    time.sleep(30)\n    return x + 1"
    threaded = (
        "import threading, time\ndef f(x):\n"
        "    ts = [threading.Thread(target=time.sleep, args=(30,)) for _ in range(3)]\n"
        "    [t.start() for t in ts]; [t.join() for t in ts]\n    return x + 1"
    )
    texts = [BURN.format(seconds=3.0), sleep, threaded]
    with new_sandbox(workers=3, limits=limits) as sandbox, busy(6):
        verdicts = CodeVerifier(sandbox=sandbox)(prompts(3, ONE), texts)
        scores = oom_scores(sandbox)
    assert [(v.reward, v.status) for v in verdicts] == [(0.0, "timeout")] * 3, verdicts
    assert [("blocked" in v.detail) for v in verdicts] == [False, True, True], verdicts
    assert scores == {"1000"}  # programs die before the trainer when memory is short


def oom_scores(sandbox: Sandbox) -> set[str]:
    workers = [worker.process.pid for worker in sandbox._state.all]
    pids = workers + [pid for root in workers for pid in descendants(root)]
    return {Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in pids}


@pytest.mark.parametrize("most", [3, 1])
def test_blocked_time_is_counted_over_all_tests(at_tier: New, most: int) -> None:
    limits = Limits(cpu_per_test=2.0, blocked_per_program=0.35)
    naps = "import time\ndef f(x):\n    time.sleep(.1)\n    return x + 1"
    spec = {"asserts": [f"assert f({i}) == {i + 1}" for i in range(24)]}
    reads = {"stdio": [{"input": f"{i}\n", "output": f"{i}\n"} for i in range(24)]}
    slow_echo = "import time\ntime.sleep(.1)\nprint(input())"
    with at_tier(most, workers=1, limits=limits) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        called = judge(prompts(1, spec), [naps])[0]
        printed = judge(prompts(1, reads), [slow_echo])[0]
        allowed = judge(prompts(1, {"asserts": spec["asserts"][:2]}), [naps])[0]
    for verdict in (called, printed):
        assert 2 <= verdict.passed < 24, verdict  # three naps, more on a busy machine
        assert verdict.status == "partial"
    assert allowed.reward == 1.0


DROPS = """
import os, struct, time
os.write(3, struct.pack("<IIB", 0, 0, 0))
head = os.read(3, 9)
os.read(3, struct.unpack("<IIB", head)[0])
body = b"l" + struct.pack("<I", 60) + 60 * b"N"
for byte in struct.pack("<IIB", len(body), 1, 0) + body:
    time.sleep(.04); os.write(3, bytes([byte]))
time.sleep(60)
"""
SIPS = """
import os, struct, time
os.write(3, struct.pack("<IIB", 0, 0, 0))
size, number, _ = struct.unpack("<IIB", os.read(3, 9))
while size: time.sleep(.04); size -= len(os.read(3, min(size, 1 << 15)))
os.write(3, struct.pack("<IIB", 1, number, 0) + b"T")
"""
NAPS = "import time\ndef f(x):\n    time.sleep(.04)\n    return x + 1"
PACED: dict[str, tuple[dict[str, Any], str, int]] = {
    "an answer in drops": ({"calls": [{"args": [1], "expected": [None] * 60}]}, DROPS, 0),
    "a call read in sips": ({"calls": [{"args": ["x" * (2 << 20)], "expected": True}]}, SIPS, 0),
    "naps": ({"asserts": [f"assert f({i}) == {i + 1}" for i in range(60)]}, NAPS, 10),
}


@pytest.mark.parametrize("name", PACED)
def test_nobody_waits_in_step_with_the_clocks(at_tier: New, name: str) -> None:
    """Each wait is shorter than a tick, all of them are longer than the limit."""
    spec, text, at_least = PACED[name]
    limits = Limits(cpu_per_test=2.0, blocked_per_program=0.6)
    with at_tier(3, workers=1, limits=limits) as sandbox:
        prompt = Prompt("paced", "", "code", {"entry_point": "f"} | spec)
        verdict = CodeVerifier(sandbox=sandbox)([prompt], [text])[0]
    assert at_least <= verdict.passed < verdict.total, verdict
    assert verdict.status in ("timeout", "partial"), verdict
    assert "blocked" in verdict.detail, verdict


def test_a_program_that_sleeps_is_stopped_although_its_tests_had_threads(new_sandbox: New) -> None:
    """Time of threads that are gone is in no table: whose time it was cannot be told any more."""
    spec = {
        "setup": "import threading, time\ndef burn():\n    end = time.thread_time() + .1\n"
        "    while time.thread_time() < end: pass\nt = threading.Thread(target=burn)\nt.start()\n"
        "t.join()",
        "asserts": ["assert f(1) == 2"],
    }
    nap = "import time\ndef f(x):\n    time.sleep(60)\n    return x + 1"
    with new_sandbox(workers=1, limits=Limits(blocked_per_program=0.4)) as sandbox:
        verdict = CodeVerifier(sandbox=sandbox)(prompts(1, spec), [nap])[0]
    assert verdict.status == "timeout"
    assert "blocked" in verdict.detail


def test_threads_that_compute_do_not_count_as_blocked(new_sandbox: New) -> None:
    text = (
        "import threading, time\ndef burn():\n"
        "    end = time.thread_time() + .02\n    while time.thread_time() < end: pass\n"
        "def f(x):\n    t = threading.Thread(target=burn); t.start(); t.join()\n    return x + 1"
    )
    spec = {"asserts": [f"assert f({i}) == {i + 1}" for i in range(50)]}
    limits = Limits(cpu_per_test=2.0, blocked_per_program=0.6)
    with new_sandbox(workers=1, limits=limits) as sandbox:
        assert CodeVerifier(sandbox=sandbox)(prompts(1, spec), [text])[0].reward == 1.0


def test_waiting_unkillably_counts_a_tenth() -> None:
    """State D, here of a process that waits for its child by CLONE_VFORK. No program gets there by
    itself, but one that does must not hold its worker, and a slow disk must not fail it."""
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    wait = f"import ctypes, time\nctypes.PyDLL(None).syscall({number}, 0x4011, 0, 0, 0, 0) or "
    waiting = subprocess.Popen([sys.executable, "-c", wait + "time.sleep(60)"], process_group=0)
    proc = os.open("/proc", os.O_RDONLY)
    try:
        clock = BlockedClock(ProcFiles(proc))
        assert eventually(lambda: clock.proc.states(waiting.pid) == b"D")
        clock.tick(waiting.pid, 5.0)
        assert clock.seconds == pytest.approx(0.5)
    finally:
        os.killpg(waiting.pid, signal.SIGKILL)
        waiting.wait()
        os.close(proc)


def test_a_program_is_not_charged_while_its_tests_sleep(new_sandbox: New) -> None:
    limits = Limits(blocked_per_program=0.4)
    spec = {"asserts": "import time\nassert f(1) == 2\ntime.sleep(1.0)\nassert f(2) == 3"}
    with new_sandbox(workers=1, limits=limits) as sandbox:
        assert CodeVerifier(sandbox=sandbox)(prompts(1, spec), [RIGHT])[0].reward == 1.0


def is_empty(group: Path) -> bool:
    return not (group / "cgroup.procs").read_text().strip()


@pytest.fixture
def throttled() -> Iterator[Path]:
    """A control group whose processes get a tenth of one core."""
    for root, name, value in (
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "10000"),
        ("/sys/fs/cgroup", "cpu.max", "10000 100000"),
    ):
        group = Path(root, f"bestofk-{os.getpid()}")
        try:
            group.mkdir()
            (group / name).write_text(value)
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        yield group
        assert eventually(partial(is_empty, group))
        group.rmdir()
        return
    pytest.skip("no control group with a CPU quota can be made here")


def throttle(group: Path, share: float) -> None:
    """Let the group's processes have this share of one core."""
    quota = int(share * 1_000_000)
    for name, value in (
        ("cpu.cfs_period_us", "1000000"),
        ("cpu.cfs_quota_us", str(quota)),
        ("cpu.max", f"{quota} 1000000"),
    ):
        if (group / name).exists():
            (group / name).write_text(value)


def test_a_throttled_control_group_counts_as_waiting(new_sandbox: New, throttled: Path) -> None:
    """Neither CPU time nor blocked time: nine tenths of the wall time are nobody's."""
    limits = Limits(cpu_per_test=0.5, cpu_per_program=1.0, blocked_per_program=0.6)
    with new_sandbox(workers=1, limits=limits) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        assert judge(prompts(1, ONE), [RIGHT])[0].reward == 1.0
        for worker in sandbox._state.all:
            for pid in (worker.process.pid, *descendants(worker.process.pid)):
                (throttled / "cgroup.procs").write_text(str(pid))
        started = time.monotonic()
        verdict = judge(prompts(1, ONE), [BURN.format(seconds=0.15)])[0]
        assert verdict.reward == 1.0, verdict
        assert time.monotonic() - started > 0.6 + 0.5


@pytest.fixture
def soon_starved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run counts as starved after three seconds, not minutes."""
    monkeypatch.setattr(worker_module, "_STARVED", 6.0)
    worker_module.request.cache_clear()
    yield
    worker_module.request.cache_clear()


def test_a_starved_run_is_repeated_on_a_fresh_worker(
    new_sandbox: New, throttled: Path, soon_starved: None
) -> None:
    """.1 CPU s in 3 s of wall time: far too much for a hundredth of a core, little for a core that
    twenty others want."""
    limits = Limits(cpu_per_test=0.5, cpu_per_program=0.5, blocked_per_program=0.05)
    throttle(throttled, 0.01)
    with new_sandbox(workers=1, limits=limits) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        assert judge(prompts(1, ONE), [RIGHT])[0].reward == 1.0
        (first,) = sandbox._state.all
        for pid in (first.process.pid, *descendants(first.process.pid)):
            (throttled / "cgroup.procs").write_text(str(pid))
        verdict = judge(prompts(1, ONE), [BURN.format(seconds=0.1)])[0]
        assert verdict.reward == 1.0, verdict
        assert first not in sandbox._state.all


def test_a_run_that_is_always_starved_is_unscored(new_sandbox: New, soon_starved: None) -> None:
    """The machine is not busy here: the run is called starved before it had its CPU time."""
    limits = Limits(cpu_per_test=9.0, cpu_per_program=9.0, blocked_per_program=0.05)
    worker_module._STARVED = 0.05  # the fixture restores it
    with new_sandbox(workers=1, limits=limits) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        verdict = judge(prompts(1, ONE), [BURN.format(seconds=5)])[0]
    assert math.isnan(verdict.reward)
    assert "too busy" in verdict.detail


# 33: what else ends a process than the program in it
NAP = "import time\ndef f(x):\n    time.sleep({})\n    return x + 1"


def kill_while_busy(sandbox: Sandbox, which: str, times: int, by: signal.Signals) -> None:
    """Kill a process of the worker that runs a program, another one each time."""
    killed = set[int]()
    while len(killed) < times:
        for worker in list(sandbox._state.all):
            below, first = sorted(descendants(worker.process.pid)), worker.process.pid
            inside = sandbox.tier > 1  # the server is below a first process that only waits
            if len(below) != 3 + inside:
                continue
            server = below[0] if inside else first
            victims = {"checker": below[-2], "program": below[-1], "server": server}
            victim = victims.get(which, first)
            if victim in killed:
                continue
            if which == "server" and sandbox.tier == 3:
                # who tells how it ended gets no core for half a second, as on a busy machine
                os.kill(first, signal.SIGSTOP)
                threading.Timer(0.5, os.kill, (first, signal.SIGCONT)).start()
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(victim, by)
                killed.add(victim)
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("tier", "which", "times", "by", "status"),
    [
        (3, "checker", 1, signal.SIGKILL, "correct"),
        (1, "checker", 3, signal.SIGKILL, "unscored"),
        (1, "program", 2, signal.SIGKILL, "correct"),
        (3, "program", 3, signal.SIGKILL, "unscored"),  # none can do that to itself
        (3, "server", 2, signal.SIGKILL, "correct"),
        (2, "server", 3, signal.SIGKILL, "unscored"),
        (1, "server", 3, signal.SIGKILL, "unscored"),
        (3, "worker", 3, signal.SIGKILL, "unscored"),
        # a hole in the server, if there is one, is no way to leave failures unscored
        (3, "worker", 2, signal.SIGSEGV, "crashed"),
    ],
)
def test_a_process_killed_from_outside_costs_an_honest_program_nothing(
    at_tier: New, tier: int, which: str, times: int, by: signal.Signals, status: str
) -> None:
    """Wherever the tier puts the process that forks and watches programs."""
    with at_tier(tier, workers=1, limits=Limits(blocked_per_program=60.0)) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        assert judge(prompts(1, ONE), [RIGHT])[0].reward == 1.0
        killer = threading.Thread(
            target=kill_while_busy, args=(sandbox, which, times, by), daemon=True
        )
        killer.start()
        # As long as it takes to be killed, or a second where it is to end.
        nap = NAP.format(1.0 if status == "correct" else 30.0)
        verdict = judge(prompts(1, ONE), [nap])[0]
        while status == "correct" and killer.is_alive():  # it may need another second to see it
            verdict = judge(prompts(1, ONE), [nap])[0]
        killer.join(600)
        assert verdict.status == status, verdict
        assert math.isnan(verdict.reward) == (status == "unscored")
        assert status != "crashed" or "killed its worker twice" in verdict.detail
        assert judge(prompts(1, ONE), [RIGHT])[0].reward == 1.0


def test_a_program_stopped_from_outside_for_good_is_tried_again(new_sandbox: New) -> None:
    with new_sandbox(workers=1, limits=Limits(blocked_per_program=1.0)) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        assert judge(prompts(1, ONE), [RIGHT])[0].reward == 1.0
        given = (sandbox, "program", 1, signal.SIGSTOP)
        stopper = threading.Thread(target=kill_while_busy, args=given, daemon=True)
        stopper.start()
        while stopper.is_alive():  # it may need another run to see the program
            assert judge(prompts(1, ONE), [NAP.format(0.6)])[0].status == "correct"


ENDS_ITSELF = {
    "kill": "os.kill(os.getpid(), 9)",
    "raise": "signal.raise_signal(signal.SIGKILL)",
    "thread": "signal.pthread_kill(threading.get_ident(), 9)",
    "from a thread": "threading.Thread(target=os.kill, args=(os.getpid(), 9)).start(); burn()",
    "kill with a long number": "libc.syscall(KILL, os.getpid(), ctypes.c_long(9 + (1 << 32)))",
    "TERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "HUP": "os.kill(os.getpid(), signal.SIGHUP)",
    "INT": "signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
    "stops in a thread": "signal.pthread_kill(threading.get_ident(), signal.SIGTTIN)",
    "stops by a long number": "libc.syscall(KILL, os.getpid(), ctypes.c_long(20 + (1 << 32)))",
    "its group": "os.killpg(0, 9)",
    "everybody": "os.kill(-1, 9)",
    "closes its channel": "os.closerange(0, 1024); burn()",
    "closes its channel and sleeps": "os.closerange(0, 1024); time.sleep(9)",
    "closes it in a thread": "threading.Thread(target=close).start(); libc.syscall(EXIT, 0)",
    "CPU limit": "resource.setrlimit(resource.RLIMIT_CPU, (1, 1)); burn()",
    "CPU limit of its id": "resource.prlimit(os.getpid(), resource.RLIMIT_CPU, (1, 1)); burn()",
    "CPU limit by number": "libc.syscall(SET, 0, (ctypes.c_long * 2)(1, 1)); burn()",
}
END_ITSELF = """
import ctypes, os, resource, signal, threading, time
libc = ctypes.CDLL(None)
KILL, SET, EXIT = (62, 160, 60) if os.uname().machine == "x86_64" else (129, 164, 93)
def burn():
    while True: pass
def close():
    time.sleep(.2); os.closerange(0, 1024); burn()
def f(x):
    {way}
    return x + 1
"""


@pytest.mark.parametrize("most", [3, pytest.param(2, marks=pytest.mark.slow), 1])
def test_a_program_that_ends_itself_scores_zero_however_it_does_it(at_tier: New, most: int) -> None:
    """Nothing that a program can do leaves it unscored: it could drop its failures."""
    limits = Limits(cpu_per_test=1.5, cpu_per_program=1.5)
    sandbox = at_tier(most, workers=2, limits=limits)
    ways = {name: END_ITSELF.format(way=way) for name, way in ENDS_ITSELF.items()}
    ways |= {
        f"{name}, at once": f"{ways[name]}\nf(1)"
        for name in ENDS_ITSELF
        if "CPU limit " not in name and most > 1  # loading and calling differ in no tier
    }
    with sandbox:
        asked = prompts(1 + len(ways), ONE)
        allowed, *verdicts = CodeVerifier(sandbox=sandbox)(asked, [ALLOWED, *ways.values()])
    assert allowed.reward == 1.0, allowed  # limits that a program may set
    assert {name: v for name, v in zip(ways, verdicts, strict=True) if v.reward != 0.0} == {}


ALLOWED = """
import resource
def f(x):
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 22, 1 << 22))
    assert resource.getrlimit(resource.RLIMIT_STACK) == (1 << 22, 1 << 22)
    return x + 1
"""
