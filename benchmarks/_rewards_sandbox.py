"""Programs judged per second, against a fresh interpreter per program, in one run.

    python benchmarks/rewards.py [--programs 400] [--rounds 4]

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
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Sandbox, SandboxError
from bestofk.types import Prompt

PROGRAM = "def f(x):\n    return x + 1\n"
TESTS = ["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4"]
PROMPT = Prompt("trivial", "", "code", {"asserts": TESTS})


def rate(count: int, run: Callable[[int], object]) -> float:
    """Programs per second, in one turn."""
    start = time.perf_counter()
    run(count)
    return count / (time.perf_counter() - start)


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
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(judge, range(count)))

    return run


def peer(
    count: int, *flags: str, per_test: bool = False, command: str = sys.executable
) -> tuple[float, float]:
    """Programs per second, and CPU milliseconds per program."""
    run, start = interpreter(*flags, per_test=per_test, command=command), cpu()
    speed = rate(count, run)
    return speed, (cpu() - start) / count * 1e3


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
    return speed, (full - empty) / count * 1e3


def against_interpreters(count: int, rounds: int) -> None:
    cores = len(os.sched_getaffinity(0))
    few = max(count // 10, 10)
    python = shutil.which("python") or sys.executable
    judges: dict[str, Callable[[], tuple[float, float]]] = {
        "interpreter -I -S": lambda: peer(few, "-I", "-S"),
        "interpreter": lambda: peer(few),
        "python": lambda: peer(few, command=python),
        "interpreter -I -S, per test": lambda: peer(few, "-I", "-S", per_test=True),
    }
    peers = list(judges)
    for tier in (3, 2, 1):
        name = f"bestofk, tier {tier}, {cores} workers"
        judges[name] = lambda tier=tier: sandboxed(tier, cores, count)  # type: ignore[misc]
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):  # in turns, so that a busy minute hits everybody
        for name, measure in judges.items():
            try:
                speed, ms = measure()
            except SandboxError as error:
                print(f"{name} is not offered here: {error}")
                continue
            known = best.get(name, (0.0, float("inf")))
            best[name] = max(speed, known[0]), min(ms, known[1])
    print(f"`python` is {python}; the interpreter is {sys.executable}")
    rows = [("judge", "programs/s", "CPU ms each", *(f"x {name}" for name in peers))]
    for name, (speed, ms) in best.items():
        against = [best[other] for other in peers] if name not in peers else []
        ratios = [f"{speed / s:.1f} (CPU {m / ms:.1f})" for s, m in against]
        rows.append((name, f"{speed:.0f}", f"{ms:.1f}", *(ratios or [""] * len(peers))))
    table(f"A trivial program with three tests, best of {rounds} rounds ({machine()})", rows)
    print("Ratios of programs/s; in brackets of CPU time, which a busy machine changes less.")


def scaling(count: int) -> None:
    cores = len(os.sched_getaffinity(0))
    rows = [("workers", "programs/s", "x one worker")]
    first = 0.0
    for workers in sorted({1, 2, cores, 2 * cores}):
        with Sandbox(workers=workers) as sandbox:
            verifier = CodeVerifier(sandbox=sandbox)
            verifier([PROMPT] * 4 * workers, [PROGRAM] * 4 * workers)
            run = lambda n, v=verifier: v([PROMPT] * n, [PROGRAM] * n)  # type: ignore[misc]  # noqa: E731
            speed = max(rate(count, run) for _ in range(3))
        first = first or speed
        rows.append((str(workers), f"{speed:.0f}", f"{speed / first:.2f}"))
    table("Scaling with workers, at the highest tier", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Programs judged per second.")
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    count = options.programs
    against_interpreters(count, options.rounds)
    scaling(count)


if __name__ == "__main__":
    main()
