# ruff: noqa: E501 - programs, one per line
"""What a program can hear of its verdict while it runs, and leave to those after it: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Sandbox, encode
from bestofk.types import Verdict
from sandbox_watch import RIGHT, New, descendants, prompts

Judge = Callable[[dict[str, Any], str], Verdict]


LAST = "\nassert f(0) == 3"
LOOPS: dict[str, dict[str, Any]] = {
    "loop": {"asserts": "for x, y in [(1, 2), (2, 3), (3, 4)]:\n    assert f(x) == y" + LAST},
    "loop in a loop": {"asserts": "for a in [1]:\n    for b in (0, 1, 2):\n        assert f(a + b) == a + b + 1" + LAST},
    "all": {"asserts": "assert all(f(x) == y for x, y in [(1, 2), (2, 3), (3, 4)])" + LAST},
    "comprehension": {"asserts": "assert [f(x) == x + 1 for x in (1, 2, 3)] == [True] * 3" + LAST},
    "variables": {"asserts": "for x in (1, 2, 3):\n    got = f(x)\n    want = x + 1\n    assert got == want, got" + LAST},
    "condition": {"asserts": "for x in (1, 2, 3, 4):\n    if x < 4:\n        assert f(x) == x + 1" + LAST},
    "one list": {"asserts": "def parts():\n    part = []\n    for x in (1, 2, 3):\n        part.append(x)\n        yield part\nfor part in parts():\n    assert f(part[-1]) == part[-1] + 1" + LAST},
    "all of one list": {"asserts": "def parts():\n    part = []\n    for x in (1, 2, 3):\n        part.append(x)\n        yield part\nassert all(f(len(p)) == sum(p[-1:]) + 1 for p in parts())" + LAST},
    "gathered": {"asserts": "seen = []\nfor x in (1, 2, 3):\n    seen.append(f(x))\n    assert seen == list(range(2, x + 2))" + LAST},
    "iterator": {"asserts": "cases = zip((1, 2, 3), (2, 3, 4))\nfor x, y in cases:\n    assert f(x) == y" + LAST},
    "helper": {"asserts": "def right(x, y):\n    assert f(x) == y, 'wrong'\nfor x in (1, 2, 3):\n    right(x, x + 1)" + LAST},
    "own comparison": {"asserts": "def near(a, b):\n    return abs(a - b) < .1\nfor x in (1, 2, 3):\n    assert near(f(x), x + 1)" + LAST},
    "with": {"asserts": "import contextlib\nwith contextlib.nullcontext():\n    assert f(1) == 2\n    assert f(2) == 3\n    assert f(3) == 4" + LAST},
    "function of the program": {"asserts": "def right(g):\n    for x in (1, 2, 3):\n        assert g(x) == x + 1\n    return True\nassert right(f)" + LAST},
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_a_program_does_not_hear_which_comparison_failed(verdict: Judge, name: str) -> None:
    """It counts its calls: all are made whatever was wrong. The last test reads the count."""
    source = "calls = 0\ndef f(x):\n    global calls\n    calls += 1\n    return {count} if not x else x + 1 + (x in {wrong})"
    counted = "calls - 1"
    right = verdict(LOOPS[name], source.format(count=counted, wrong=()))
    assert right.status == "correct", right
    total = right.total
    for wrong in [(1,), (2,), (3,), (1, 2, 3)]:
        judged = verdict(LOOPS[name], source.format(count=counted, wrong=wrong))
        assert (judged.passed, judged.total) == (total - 1, total), (wrong, judged)


COUNTED = """
import os, threading
def _thread(found):
    thread = threading.Thread(target=lambda: found.append(threading.get_native_id()))
    thread.start(); thread.join()
    return found[0]
def look():
    with open(0) as stdin:
        number = stdin.fileno()
    return [os.getpid(), threading.get_native_id(), _thread([]), os.getppid(), number, os.dup(1),
            os.fstat(os.eventfd(0)).st_ino, id(object()), threading.get_ident()]
def count(threads):
    for _ in range(threads): _thread([])
    with open("/dev/null"): pass
    return [os.eventfd(0) for _ in range(threads)] and 0
"""


def _counted(sandbox: Sandbox, call: str) -> Any:
    """What a program saw: the same source each time, so that nothing else can differ."""
    source = COUNTED + f"def seen(): return {call}\n"
    job: dict[str, Any] = {"mode": "record", "entry_point": "seen", "cases": [((), {}, None)]}
    results = sandbox.check(source.encode(), encode(job), pure=True).results()
    assert isinstance(results, list)
    [(answered, value)] = results
    assert answered, value
    return value


@pytest.mark.parametrize("tier", [3, 2])
def test_nothing_that_one_program_counts_up_is_seen_by_the_next(
    at_tier: Callable[..., Sandbox], tier: int
) -> None:
    with at_tier(tier, workers=1) as sandbox:
        looked = [_counted(sandbox, "look()")]
        for threads in (1, 5, 17):
            _counted(sandbox, f"count({threads})")
            CodeVerifier(sandbox=sandbox)(prompts(1), ["import os\ndef f(x): os._exit(x)"])
            looked.append(_counted(sandbox, "look()"))
    assert looked == [looked[0]] * 4


def test_times_of_the_folder_carry_no_note(new_sandbox: New, best_tier: int) -> None:
    if best_tier < 2:
        pytest.skip("no writable folder at this tier")
    lists = "import os\nfor _ in range(3): os.listdir('/box')\ndef f(x): return x + 1"
    looks = "import os\ns = os.stat('/box')\ndef f(x): return x + (s.st_atime_ns == s.st_mtime_ns)"
    with new_sandbox(workers=1, writable=True) as sandbox:
        verifier = CodeVerifier(sandbox=sandbox)
        rewards = [v.reward for v in verifier(prompts(6), [looks, lists] * 3)]
    assert rewards == [1.0] * 6


def test_a_database_in_the_folder_works_though_locks_are_make_believe(
    new_sandbox: New, best_tier: int
) -> None:
    if best_tier < 2:
        pytest.skip("no writable folder at this tier")
    pytest.importorskip("sqlite3")
    program = """
import os, sqlite3
def f(x):
    with sqlite3.connect("/box/numbers.db") as base:
        base.execute("create table if not exists numbers (value)")
        base.execute("insert into numbers values (?)", (x + 1,))
    with open("/box/file", "w") as file:
        file.write("x"); file.flush(); os.fsync(file.fileno())
    found = sqlite3.connect("/box/numbers.db").execute("select max(value) from numbers")
    return found.fetchone()[0]
"""
    spec = {"asserts": ["assert f(1) == 2", "assert f(5) == 6"]}
    with CodeVerifier(sandbox=new_sandbox(workers=1, writable=True)) as judge:
        judged = judge(prompts(1, spec), [program])[0]
    assert judged.status == "correct", judged


def test_a_worker_without_its_zygote_is_replaced(new_sandbox: New) -> None:
    with new_sandbox(workers=1) as sandbox:
        verifier = CodeVerifier(sandbox=sandbox)
        verifier(prompts(1), [RIGHT])
        [worker] = sandbox._state.all
        *_, zygote, _checker = [worker.process.pid, *descendants(worker.process.pid)]
        os.kill(zygote, signal.SIGKILL)
        assert verifier(prompts(1), [RIGHT])[0].reward == 1.0
        assert sandbox._state.all != {worker}


def test_a_machine_without_processes_is_nobodys_wrong_answer(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_script("no_processes.py", as_user=True)
    assert done.returncode == 0, done.stderr
    statuses = dict(line.split() for line in done.stdout.splitlines())
    assert len(statuses) == 3
    assert set(statuses.values()) <= {"correct", "unscored"}
    assert "unscored" in statuses.values()


def test_verdicts_do_not_depend_on_signals_that_the_host_ignores(new_sandbox: New) -> None:
    """As in a run started by nohup, or by a script in the background."""
    names = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"]
    texts = [
        f"import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.{name})\n    return x + 1"
        for name in names
    ]
    ignored = {
        number: signal.getsignal(number) for number in map(signal.Signals.__getitem__, names[:5])
    }
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        with new_sandbox(workers=1) as sandbox:
            verdicts = CodeVerifier(sandbox=sandbox)(prompts(len(texts)), texts)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in ignored.items():
            signal.signal(number, handler)
    assert [v.reward for v in verdicts] == [0.0] * len(names)


INTERRUPTED = """
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits, Sandbox
from bestofk.types import Prompt
long = Limits(cpu_per_test=3600.0, cpu_per_program=3600.0)
verifier = CodeVerifier(sandbox=Sandbox(workers=2, limits=long))
prompts = [Prompt("p", "", "code", {"asserts": ["assert f(1) == 2"]})] * 8
verifier(prompts, ["def f(x): return x + 1"] * 8)
print("ready", flush=True)
verifier(prompts, ["def f(x):\\n    while True: pass"] * 8)
"""


def test_an_interrupt_does_not_wait_for_programs() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=900)  # the programs would take hours
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


def test_options_of_a_wrong_kind_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"packages is a list of names or \"all\"; write \['numpy'\]"
    ):
        Sandbox(packages="numpy")
    with pytest.raises(TypeError, match=r"limits is a Limits\(...\), got dict"):
        Sandbox(limits={"memory": 1})  # type: ignore[arg-type]
    with Sandbox(workers=1) as sandbox, pytest.raises(TypeError, match="limits is a Limits"):
        sandbox.call("math:sqrt", [2.0], limits={"memory": 1})  # type: ignore[arg-type]
