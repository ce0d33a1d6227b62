"""Attack 37: threads, asyncio, fork, spawn, exit and death of the host."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.types import Verdict
from sandbox_watch import PLUS_ONE, RIGHT, SLOW, New, alone, descendants, eventually, prompts


# 37
def test_many_threads_share_one_verifier(verifier: CodeVerifier) -> None:
    def one(number: int) -> list[float]:
        spec = {"asserts": [f"assert f({number}) == {number + 1}", "assert f(0) == 0"]}
        return [v.reward for v in verifier(prompts(3, spec), [RIGHT, "def f(x): return x", "x ="])]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(16))) == [[0.5, 0.5, 0.0]] * 16


def test_asyncio_keeps_turning_while_programs_run(verifier: CodeVerifier) -> None:
    async def main() -> list[list[Verdict]]:
        batches = [[RIGHT, SLOW], *[[RIGHT, "def f(x): return 2"]] * 3]
        calls = [asyncio.to_thread(verifier, prompts(2), texts) for texts in batches]
        tasks = list(map(asyncio.create_task, calls))
        await asyncio.sleep(0)  # all have begun; one that held the loop would be done now
        assert not any(task.done() for task in tasks)
        return await asyncio.gather(*tasks)

    results = asyncio.run(main())
    assert [[v.reward for v in r] for r in results] == [[1.0, 1.0]] + [[1.0, 1 / 3]] * 3


FORKED = """
import os, sys
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Sandbox
from bestofk.types import Prompt
spec = {"asserts": ["assert f(1) == 2"]}
judge = CodeVerifier(sandbox=Sandbox(workers=2))
prompts, texts = [Prompt("p", "", "code", spec)] * 4, ["def f(x): return x + 1"] * 4
ask = lambda: [v.reward for v in judge(prompts, texts)]
assert ask() == [1.0] * 4
pid = os.fork()
if pid == 0:
    ok = ask() == [1.0] * 4
    judge.close()
    os._exit(0 if ok else 1)
both = ask() == [1.0] * 4
status = os.waitpid(pid, 0)[1]
print(both, status, ask() == [1.0] * 4)
"""


def test_a_forked_process_gets_workers_of_its_own() -> None:
    done = alone(FORKED)
    assert done.stdout.split() == ["True", "0", "True"], done.stderr


def test_a_verifier_travels_to_a_spawned_process() -> None:
    blob = pickle.dumps(CodeVerifier(workers=1, reward="all"))
    again = pickle.loads(blob)
    assert again.all_or_nothing
    assert again._options == CodeVerifier(workers=1)._options
    script = (
        "import pickle, sys; from bestofk.types import Prompt\n"
        f"judge = pickle.loads({blob!r})\n"
        f"print([v.reward for v in judge([Prompt('p', '', 'code', {PLUS_ONE!r})] * 2,"
        f" [{RIGHT!r}, 'def f(x): return 2'])])"
    )
    done = alone(script)
    assert done.stdout.strip() == "[1.0, 0.0]", done.stderr


ENDING = """
import os, sys, time
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Sandbox
from bestofk.types import Prompt
judge = CodeVerifier(sandbox=Sandbox(workers=1))
judge([Prompt("p", "", "code", {"asserts": ["assert f(1) == 2"]})], ["def f(x): return x + 1"])
print(*[w.process.pid for w in judge.sandbox._state.all], flush=True)
if sys.argv[1] == "hang": time.sleep(600)
"""


@pytest.mark.parametrize("how", ["exit", "hang"])
def test_workers_end_with_their_host_however_it_ends(how: str) -> None:
    host = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", ENDING, how], stdout=subprocess.PIPE, text=True
    )
    with host:
        assert host.stdout is not None
        worker = int(host.stdout.readline())
        servers = descendants(worker) if how == "hang" else []
        if how == "hang":
            host.send_signal(signal.SIGKILL)
        assert host.wait(900) == (0 if how == "exit" else -signal.SIGKILL)
    for pid in [worker, *servers]:
        assert eventually(lambda pid=pid: gone(pid)), pid  # type: ignore[misc]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_the_host_is_never_forked(new_sandbox: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that holds CUDA must not be: the worker is exec'd, nothing of ours calls fork."""

    def forbidden(*_: object) -> int:
        raise AssertionError("forked the host")

    for name in ("fork", "forkpty"):
        monkeypatch.setattr(os, name, forbidden)
    monkeypatch.setattr(multiprocessing.Process, "start", forbidden)
    with new_sandbox(workers=1) as sandbox:
        assert sandbox.call("math:gcd", [12, 18]).value == 6
        assert subprocess._USE_VFORK


def test_no_process_of_the_sandbox_can_be_traced(new_sandbox: New) -> None:
    """Files of an undumpable process below /proc are root's, whoever it runs as."""
    with new_sandbox(workers=1) as sandbox, ThreadPoolExecutor(1) as pool:
        verifier = CodeVerifier(sandbox=sandbox)
        verifier(prompts(1), [RIGHT])
        [worker] = sandbox._state.all
        verdicts = pool.submit(verifier, prompts(1), [SLOW])

        def seen() -> bool:
            nonlocal verdicts
            if verdicts.done():  # before it was seen: once more
                verdicts = pool.submit(verifier, prompts(1), [SLOW])
            return len(owners()) > few

        def owners() -> list[int]:
            found = []
            for pid in descendants(worker.process.pid):
                with contextlib.suppress(FileNotFoundError):
                    found.append(os.stat(f"/proc/{pid}/mem").st_uid)
            return found

        few = 3 - (sandbox.tier == 1)  # zygote, checker, program; above tier 1 also the server
        assert eventually(seen)
        assert set(owners()) == {0}
        assert verdicts.result()[0].reward == 1.0


def test_a_small_batch_does_not_wait_for_a_large_one(verifier: CodeVerifier) -> None:
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(verifier, prompts(400), [RIGHT] * 400)
        assert [v.reward for v in verifier(prompts(4), [RIGHT] * 4)] == [1.0] * 4
        assert not large.done()
        assert [v.reward for v in large.result()] == [1.0] * 400


def test_an_error_of_ours_ends_a_batch(verifier: CodeVerifier) -> None:
    done: list[int] = []

    def one(number: int) -> int:
        if number == 3:
            raise LookupError("three")
        done.append(number)
        return -number

    sandbox = verifier.sandbox
    assert sandbox.map(one, [0, 1, 2]) == [0, -1, -2]
    with pytest.raises(LookupError, match="three"):
        sandbox.map(one, list(range(100_000)))
    assert len(done) < 100_000
