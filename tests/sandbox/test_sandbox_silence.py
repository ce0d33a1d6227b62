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
from bestofk.sandbox import Sandbox
from bestofk.types import Verdict
from sandbox_watch import RIGHT, New, descendants, prompts

Judge = Callable[[dict[str, Any], str], Verdict]


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
