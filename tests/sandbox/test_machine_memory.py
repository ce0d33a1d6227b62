"""Programs beside little memory: what is free, who is blamed, and how many run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits, Sandbox, available_memory, shortage
from sandbox_watch import RIGHT, New, descendants, prompts

MIB = 1 << 20
ONE = {"asserts": ["assert f(1) == 2"]}
V2 = {"memory.max": 300 * MIB, "memory.current": 200 * MIB, "memory.stat": "inactive_file 0"}
V1 = {
    "memory.limit_in_bytes": 90 * MIB,
    "memory.usage_in_bytes": 80 * MIB,
    "memory.stat": "total_inactive_file 0",
}
CACHED = {"memory.stat": f"anon 1\ninactive_file {50 * MIB}"}


def machine(root: Path, groups: str, files: dict[str, dict[str, int | str]]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 999999 kB\nMemAvailable: {1000 << 10} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    for folder, contents in files.items():
        (root / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
        for name, value in contents.items():
            (root / "sys/fs/cgroup" / folder / name).write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "mib"),
    [
        ("0::/\n", {}, 1000),
        ("0::/a/b\n", {"a": V2, "a/b": {"memory.max": "max"}}, 100),
        ("0::/a\n", {"a": V2 | CACHED}, 150),
        ("0::/not/mounted\n", {"": V2}, 100),
        ("9:memory:/x\n0::/\n", {"memory/x": V1}, 10),
        ("9:memory:/x\n", {"memory": V1 | {"memory.stat": f"total_inactive_file {MIB}"}}, 11),
    ],
)
def test_what_is_free_is_the_least_of_the_machine_and_its_control_groups(
    tmp_path: Path, groups: str, files: dict[str, dict[str, int | str]], mib: int
) -> None:
    assert available_memory(machine(tmp_path, groups, files)) == mib * MIB


def test_this_machine_says_what_is_free(tmp_path: Path) -> None:
    free = available_memory()
    assert free is not None
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_memory(tmp_path) is None


def test_a_shortage_names_what_fits() -> None:
    assert shortage(2, 512 * MIB, 1024 * MIB) == ""
    assert shortage(2, 512 * MIB, None) == ""
    assert "8 programs at once may take 4.0 GiB" in shortage(8, 512 * MIB, 1200 * MIB)
    assert "workers=2 " in shortage(8, 512 * MIB, 1200 * MIB)
    assert f"memory={100 * MIB}" in shortage(8, 512 * MIB, 200 * MIB)


@contextlib.contextmanager
def short_of_memory(sandbox: Sandbox, above: int) -> Iterator[list[int]]:
    """Something that kills processes of the workers above a size, as the kernel does."""
    killed: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            for worker in list(sandbox._state.all):
                for pid in descendants(worker.process.pid):
                    with contextlib.suppress(OSError, IndexError, ValueError):
                        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                        if pages * os.sysconf("SC_PAGE_SIZE") > above:
                            os.kill(pid, signal.SIGKILL)
                            killed.append(pid)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        ended.set()
        watcher.join()


def large(mib: int) -> str:
    return (
        f"import time\ndef f(x):\n    a = bytearray({mib} << 20)\n    time.sleep(60)\n    return x"
    )


def test_a_program_killed_twice_above_half_of_its_memory_scores_zero(new_sandbox: New) -> None:
    limits = Limits(memory=256 * MIB, blocked_per_program=100.0)
    with new_sandbox(workers=1, limits=limits) as sandbox:
        verifier = CodeVerifier(sandbox=sandbox)
        with short_of_memory(sandbox, 170 * MIB) as killed:
            verdict = verifier(prompts(1, ONE), [large(200)])[0]
        assert len(set(killed)) == 2
        assert (verdict.reward, verdict.status) == (0.0, "memory")
        assert "more than half of its memory" in verdict.detail
        with short_of_memory(sandbox, 90 * MIB) as killed:
            verdict = verifier(prompts(1, ONE), [large(100)])[0]
        assert len(set(killed)) == 3
        assert verdict.status == "unscored"
        assert verifier(prompts(1), [RIGHT])[0].reward == 1.0


@pytest.mark.parametrize(("memory", "left"), [(1 << 44, 1), (256 * MIB, 3)])
def test_fewer_workers_run_where_memory_is_short(new_sandbox: New, memory: int, left: int) -> None:
    """Not for a kill alone: where all of them fit, something else ended the program."""
    limits = Limits(memory=memory, blocked_per_program=100.0)
    with new_sandbox(workers=3, limits=limits) as sandbox:
        verifier = CodeVerifier(sandbox=sandbox)
        assert bool(verifier.notes([])) == (left < 3)
        with short_of_memory(sandbox, 90 * MIB):
            assert verifier(prompts(1, ONE), [large(100)])[0].status == "unscored"
        assert sandbox._state.size == left
        assert [v.reward for v in verifier(prompts(6), [RIGHT] * 6)] == [1.0] * 6
