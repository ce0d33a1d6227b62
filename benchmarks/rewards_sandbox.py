"""Programs judged per second, against a fresh interpreter per program, in one run.

    python benchmarks/rewards_sandbox.py [--programs 300]

The program and its three tests are trivial, so this is the cost of the machinery. The peers run one
interpreter per program with the three asserts appended, as many at a time as there are cores: no
isolation, and forgeable. `python` is the command that PATH finds, which may be a version manager's
script that looks for an interpreter first; `interpreter` is the one this runs in, with `site`.
`per test` starts one interpreter for each test, as judges that must not lose two tests to the death
of one do.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from _measure import machine, table
from bestofk.rewards.code import CodeVerifier
from bestofk.rewards.sandbox import Limits, Sandbox, SandboxError
from bestofk.types import Prompt

PROGRAM = "def f(x):\n    return x + 1\n"
TESTS = ["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4"]
PROMPT = Prompt("trivial", "", "code", {"asserts": TESTS})
BUSY = "def f(x):\n    n = 0\n    while n < 4_000_000: n += 1\n    return x + 1\n"


def rate(count: int, run: Callable[[int], object]) -> float:
    """Programs per second: the better of two turns."""
    best = 0.0
    for _ in range(2):
        start = time.perf_counter()
        run(count)
        best = max(best, count / (time.perf_counter() - start))
    return best


def cpu() -> float:
    """CPU seconds of this process and of all that have ended below it."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def interpreter(
    *flags: str, per_test: bool = False, command: str = sys.executable
) -> Callable[[int], None]:
    sources = [PROGRAM + test for test in TESTS] if per_test else [PROGRAM + "\n".join(TESTS)]

    def judge(_: int) -> None:
        for source in sources:
            subprocess.run([command, *flags, "-c", source], check=True)

    def run(count: int) -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(judge, range(count)))

    return run


def peer(
    count: int, *flags: str, per_test: bool = False, command: str = sys.executable
) -> tuple[float, float]:
    """Programs per second, and CPU milliseconds per program."""
    run, start = interpreter(*flags, per_test=per_test, command=command), cpu()
    speed = rate(count, run)
    return speed, (cpu() - start) / (2 * count) * 1e3


def sandboxed(tier: int, workers: int, count: int) -> tuple[float, float]:
    """The same for our judge; CPU time without the start, which an empty session measures."""

    def session(programs: int) -> tuple[float, float]:
        start = cpu()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            sandbox = Sandbox(tier=tier, at_most=tier, workers=workers)
        with sandbox:
            verifier = CodeVerifier(sandbox=sandbox)

            def run(size: int) -> None:
                verdicts = verifier([PROMPT] * size, [PROGRAM] * size)
                assert all(verdict.reward == 1.0 for verdict in verdicts)

            run(4 * workers)
            speed = rate(programs, run) if programs else 0.0
        return speed, cpu() - start

    _, empty = session(0)
    speed, full = session(count)
    return speed, (full - empty) / (2 * count) * 1e3


def against_interpreters(count: int) -> None:
    cores = os.cpu_count() or 1
    few = max(count // 10, 10)
    peers = {
        "interpreter -I -S": peer(few, "-I", "-S"),
        "interpreter": peer(few),
        "python": peer(few, command=shutil.which("python") or sys.executable),
        "interpreter -I -S, per test": peer(few, "-I", "-S", per_test=True),
    }
    print(f"`python` is {shutil.which('python')}; the interpreter is {sys.executable}")
    head = ("judge", "programs/s", "CPU ms each", *(f"x {name}" for name in peers))
    blank = [""] * len(peers)
    rows = [head, *((n, f"{s:.0f}", f"{ms:.1f}", *blank) for n, (s, ms) in peers.items())]
    for tier in (3, 2, 1):
        try:
            speed, ms = sandboxed(tier, cores, count)
        except SandboxError as error:
            print(f"tier {tier} is not offered here: {error}")
            continue
        ratios = [f"{speed / s:.1f} (CPU {m / ms:.1f})" for s, m in peers.values()]
        name = f"bestofk, tier {tier}, {cores} workers"
        rows.append((name, f"{speed:.0f}", f"{ms:.1f}", *ratios))
    table(f"A trivial program with three tests ({machine()})", rows)
    print("Ratios of programs/s; in brackets of CPU time, which a busy machine changes less.")


def scaling(count: int) -> None:
    cores = os.cpu_count() or 1
    rows = [("workers", "programs/s", "x one worker")]
    first = 0.0
    for workers in sorted({1, 2, cores, 2 * cores}):
        with Sandbox(workers=workers) as sandbox:
            verifier = CodeVerifier(sandbox=sandbox)
            verifier([PROMPT] * 4 * workers, [PROGRAM] * 4 * workers)
            speed = rate(count, lambda n, v=verifier: v([PROMPT] * n, [PROGRAM] * n))  # type: ignore[misc]
        first = first or speed
        rows.append((str(workers), f"{speed:.0f}", f"{speed / first:.2f}"))
    table("Scaling with workers, at the highest tier", rows)


def oversubscription(programs: int) -> None:
    """Right programs of about half their CPU budget, eight times more at once than cores."""
    cores = os.cpu_count() or 1
    rows = [("workers", "programs", "wrong verdicts", "seconds")]
    start = time.process_time()
    exec(compile(BUSY + "f(1)", "busy", "exec"), {})
    budget = max(1.0, 4 * (time.process_time() - start))
    limits = Limits(cpu_per_test=budget, cpu_per_program=4 * budget)
    for factor in (1, 8):
        with Sandbox(workers=factor * cores, limits=limits) as sandbox:
            verifier = CodeVerifier(sandbox=sandbox)
            begin = time.perf_counter()
            verdicts = verifier([PROMPT] * programs, [BUSY] * programs)
            wall = time.perf_counter() - begin
        wrong = sum(verdict.reward != 1.0 for verdict in verdicts)
        rows.append((f"{factor} x cores", str(programs), str(wrong), f"{wall:.1f}"))
    table("Oversubscription", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Programs judged per second.")
    parser.add_argument("--programs", type=int, default=400)
    count = parser.parse_args().programs
    against_interpreters(count)
    scaling(count)
    oversubscription(min(count // 8, 48))


if __name__ == "__main__":
    main()
