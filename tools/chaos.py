"""Break a training run in every way at random, and check that it ends as if nothing had happened.

    python tools/chaos.py --minutes 30

Each round trains a small policy twice: once untouched, and once in many lives. Lives end by KILL,
TERM, INT, two TERMs or a full disk, at random moments. Meanwhile the processes of the sandbox are
killed, the verifier breaks in 1 % of its calls, and the wall clock jumps by up to a year.

Checked: no reward differs from the known truth (it may be missing); no step is lost or taken twice;
checkpoints are whole after every end; metrics, weights and optimiser equal the untouched run bit
for bit, unless a sample could not be scored; no process is left. Exits 1 where one does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bestofk.config import Config, merged
from bestofk.models import Policy, save, tiny
from bestofk.runs import damage, read_jsonl, read_metrics
from bestofk.training.resolve import resolve
from bestofk.training.train import train

sys.path.insert(0, str(Path(__file__).parent))
from chaos_judge import truth

SIGNALS = {"KILL": [9], "TERM": [15], "INT": [2], "TWICE": [15, 15]}
STEPS, LIVES, YEAR = 12, 14, 365 * 86400.0
VARIANTS: list[dict[str, Any]] = [
    {"objective": "max@4"},
    {"objective": "pass@4", "off_policy": {"passes": 2, "mini_batches": 2}},
    {"objective": "passk-training@4:bootstrap/50%/grpo", "loss": {"name": "clipped"}},
    {"objective": "max@4", "model": {"lora_rank": 2}, "loss": {"kl": 0.05}},
]


class Broken(AssertionError):
    """Something that the trainer promises does not hold."""


def recipe(folder: Path, number: int) -> Config:
    """A run of seconds; the variants take turns."""
    model = folder / "model"
    if not model.exists():
        policy = tiny.untrained(hidden=32, layers=2, heads=2, inner=64, seed=1)
        save(Policy(policy, tiny.tokenizer()), model)
    sections: dict[str, Any] = {
        "model": {"path": str(model), "device": "cpu"},
        "task": {"name": "countdown", "verifier": "chaos_judge:judge",
                 "options": {"style": "compact", "train_size": 40},
                 "advanced": {"unscored_share": 1.0}},
        "sampling": {"prompts_per_step": 4, "samples_per_prompt": 8, "max_new_tokens": 3},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
        "evaluation": {"every": 4, "prompts": 3, "samples_per_prompt": 4},
        "run": {"steps": STEPS, "checkpoint_every": 2, "seed": number},
    }  # fmt: skip
    for name, values in VARIANTS[number % len(VARIANTS)].items():
        sections[name] = sections.get(name, {}) | values if isinstance(values, dict) else values
    return Config(**sections)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """A disk of its own for the tortured run, where mounting is allowed; whether it is."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def life(config: Config, folder: Path, log: Path, faults: bool) -> int:
    """A child that begins or resumes the run and trains to its end; exits as the command does."""
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    said = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        if faults:
            os.environ["CHAOS_BREAKS"] = "0.01"
            jump_clock(random.Random(os.getpid()))
        resume = (folder / "config.toml").exists()
        outcome = train(resolve(merged(config, {"run.dir": str(folder)}), resume=resume))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(128 + outcome.signal if outcome.signal else 0)


def jump_clock(rng: random.Random) -> None:
    """Make this process's wall clock jump back and forth, by up to a year at a time."""
    real, offset = time.time, [0.0]

    def jump() -> None:
        while True:
            time.sleep(0.05)
            offset[0] = rng.uniform(-YEAR, YEAR)
            with open(os.environ["CHAOS_LOG"], "ab") as log:
                log.write(b"j")

    time.time = lambda: real() + offset[0]
    threading.Thread(target=jump, daemon=True).start()


def descendants(root: int) -> list[int]:
    """The processes below a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(after[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        todo.extend(children := parents.get(todo.pop(), []))
        found.extend(children)
    return found


def is_there(process: int) -> bool:
    """Whether a process runs (one that only waits to be collected does not)."""
    with contextlib.suppress(OSError):
        after = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return after[0] not in "ZX"
    return False


def is_over(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def written(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def disturb(child: int, rng: random.Random, counts: Counter[str]) -> None:
    """Kill one of the sandbox's processes, now and then.

    Never twice in a row while one program is judged: it is tried three times, a worker that was
    killed before counts too, and runs with a missing reward cannot be compared.
    """
    done = Path(os.environ["CHAOS_DONE"])
    judged = done.stat().st_size if done.exists() else 0
    if judged < counts["judged at the last kill"] + 2 or rng.random() > 0.1:
        return
    if below := descendants(child):
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(below), signal.SIGKILL)
            counts["sandbox processes killed"] += 1
            counts["judged at the last kill"] = judged


def live(
    config: Config, folder: Path, log: Path, end: str, rng: random.Random, counts: Counter[str]
) -> int:
    """One life of the tortured run; how it ended."""
    child = life(config, folder, log, faults=True)
    try:
        return tortured(child, folder, end, rng, counts)
    except BaseException:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        raise


def tortured(child: int, folder: Path, end: str, rng: random.Random, counts: Counter[str]) -> int:
    """Disturb a life until it ends, by `end` or by itself; how it ended."""
    target, ballast = written(folder) + rng.randint(0, 5), folder.parent / "ballast"
    below: list[int] = []
    while end != "NONE" and written(folder) < target and not is_over(child):
        target = min(target, written(folder) + 5)  # a resumed run drops what no checkpoint holds
        disturb(child, rng, counts)
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 0.2) if end != "NONE" else 0.0)
    below = descendants(child)
    if end == "DISK":
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as full:
            while True:
                full.write(bytes(1 << 14))
    elif end in SIGNALS and not is_over(child):
        counts[f"lives ended by {end}"] += 1
        for number in SIGNALS[end]:
            os.kill(child, number)
            time.sleep(0.01)
    while not is_over(child):
        disturb(child, rng, counts)
        time.sleep(0.01)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if end == "DISK":
        counts["full disks"] += status != 0
        ballast.unlink(missing_ok=True)
    wait_until_gone(below)
    return status


def wait_until_gone(processes: list[int]) -> None:
    for _ in range(600):
        if not any(map(is_there, processes)):
            return
        time.sleep(0.1)
    left = [process for process in processes if is_there(process)]
    raise Broken(f"processes of the sandbox are left a minute after the run ended: {left}")


def check_folder(folder: Path) -> None:
    """After any end: steps in a row, and every checkpoint whole."""
    if not (folder / "metrics.jsonl").exists():
        return
    lines = read_metrics(folder)
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    if steps != list(range(1, len(steps) + 1)):
        raise Broken(f"the metrics hold steps {steps}")
    for path in sorted((folder / "checkpoints").glob("step-*")):
        if problem := damage(path):
            raise Broken(f"{path}: {problem}")
        if int(path.name[5:]) > len(steps):
            raise Broken(f"{path} is of a step that the metrics lost: {steps}")


def check_rewards(folder: Path, counts: Counter[str]) -> int:
    """No reward differs from the truth; the number of those missing."""
    missing = 0
    for part in ("samples", "evaluations"):
        for file in sorted((folder / part).glob("*.jsonl")):
            for row in read_jsonl(file):
                counts["rewards checked"] += 1
                if row["reward"] is None:
                    missing += 1
                elif row["reward"] != truth(row["completion"]):
                    raise Broken(f"wrong reward in {file}: {row}")
    counts["rewards missing"] += missing
    return missing


def facts(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in CLOCKED}


CLOCKED = ("seconds", "tokens_per_second", "sampling_tokens_per_second")


def check_same(whole: Path, ended: Path) -> None:
    """Metrics, weights and optimiser are equal, bit for bit."""
    ours, theirs = (list(map(facts, read_metrics(path))) for path in (whole, ended))
    for one, other in zip(ours, theirs):
        if one != other:
            raise Broken(f"metrics differ: {one} {other}")
    newest = max(path.name for path in (whole / "checkpoints").glob("step-*"))
    for name in ("final/model.safetensors", f"checkpoints/{newest}/weights.safetensors"):
        a, b = load_file(whole / name), load_file(ended / name)
        if a.keys() != b.keys() or not all(torch.equal(a[key], b[key]) for key in a):
            raise Broken(f"{name} differs")
    states = [torch.load(path / "checkpoints" / newest / "trainer.pt", weights_only=True)
              for path in (whole, ended)]  # fmt: skip
    if flat(states[0]) != flat(states[1]) or len(ours) != len(theirs):
        raise Broken("the optimiser or the number of lines differs")


def flat(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): flat(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [flat(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def one_round(folder: Path, number: int, rng: random.Random, counts: Counter[str]) -> None:
    """One run untouched, one tortured; they must be equal."""
    config, log = recipe(folder, number), folder / f"round-{number}.log"
    whole = folder / f"whole-{number}"
    child = life(config, whole, log, faults=False)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise Broken(f"the untouched run failed:\n{log.read_text()[-2000:]}")
    with small_disk(folder / f"disk-{number}", 6) as has_disk:
        ended = folder / f"disk-{number}" / "run"
        ends = [*SIGNALS, "DISK"] if has_disk else [*SIGNALS]
        for turn in range(2 * LIVES):
            end = rng.choice(ends) if turn < LIVES else "NONE"
            status = live(config, ended, log, end, rng, counts)
            counts["lives"] += 1
            if (ended / "config.toml").exists():
                check_folder(ended)
            if status == 0:
                break
            if end == "NONE":
                raise Broken(f"the run does not end ({status}):\n{log.read_text()[-2000:]}")
        missing = check_rewards(ended, counts) + check_rewards(whole, counts)
        if missing:
            counts["rounds with missing rewards, not compared"] += 1
        else:
            check_same(whole, ended)
            counts["rounds equal bit for bit"] += 1
    counts["rounds"] += 1
    counts["steps"] += STEPS


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="no round begins after that")
    parser.add_argument("--rounds", type=int, default=1 << 30, help="at most so many")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--folder", help="kept; by default a temporary one")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped in the middle of a round"))
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(options.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["CHAOS_LOG"] = str(folder / "faults.log")
        os.environ["CHAOS_DONE"] = str(folder / "judged.log")
        try:
            number = 0
            while number < options.rounds and time.monotonic() - began < 60 * options.minutes:
                rng = random.Random(f"{options.seed}/{number}")
                one_round(folder, number + options.seed, rng, counts)
                number += 1
        except Broken as error:
            print(f"broken in round {number}, seed {options.seed}: {error}")
            if (wrong := folder / "faults.log.wrong").exists():
                print(wrong.read_text(encoding="utf-8"))
            return 1
        finally:
            log = folder / "faults.log"
            faults = log.read_bytes() if log.exists() else b""
            counts["verdicts"] = counts.pop("judged at the last kill")
            counts["verifier calls broken"] = faults.count(b"b")
            counts["clock jumps"] = faults.count(b"j")
            counts["seconds"] = round(time.monotonic() - began)
            print(json.dumps(counts, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
