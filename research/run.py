"""Runs a study: every arm and seed of a file in research/studies, several at a time.

    python research/run.py countdown --jobs 2                # all of it; continues where it stopped
    python research/run.py countdown --arms grpo 'max@1+*' --seeds 0 --device cuda --limit 540

An arm is a recipe with changed settings; `bestofk train RECIPE --flags` is all that is run, and the
flags are printed by `--dry-run`. What remains of a run is one row per evaluation in
research/counts/STUDY.parquet: the rewards of every problem, as counts, written when the run ends.
Runs that the limit stops write a checkpoint, and go on from it if their folder is still there.

A study may also have

    [test]                 flags of `bestofk sample`: split, problems, n, dtype. After training it
                           draws from best/ (the checkpoint that evaluation.best_by picks on
                           validation) and from final/; counted in STUDY-test.parquet by step,
                           so that of a run's rows the first is the best, the last the final model;
                           `of`: a pattern in the names of the arms that are tested, else all
    [select]               k and a file of scorers: select@k of those samples by each scorer of its
                           SELECTORS, in STUDY-test-NAME.parquet (one value a problem)
    [search]               seeds = [0] run every arm; once they are done, the same command runs
                           the other seeds of the arms that `choose` picks: of those whose name
                           begins like the pattern `of`, the one whose best checkpoint has the
                           highest value (best = "max@16": by its counts), or with last = "max@1"
                           the highest max@1 at the end; one for each value of the pattern's groups.
                           With of = [studies] these are the search, and the arms have their names
    [unseen]               tasks that final/ is sampled on
    turns = [1, 2]         what trajectories of at most so many turns are worth, a longer one
                           nothing: of the last evaluation, and of [test] (STUDY-turns-1.parquet,
                           STUDY-test-turns-1.parquet, ...)
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import functools
import gc
import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from count_files import read_counts, write_counts

from bestofk.procedures import SELECT
from bestofk.rewards.functions import load_function

HERE = Path(__file__).parent
CHECKPOINT_SECONDS = 50
"""For the checkpoints of runs that are stopped."""


def arms_of(study: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by the arm's name; lists under `grid` make one arm for each combination."""
    arms = {}
    for name, own in study["arms"].items():
        grid = study.get("grid", {}) | own.get("grid", {})
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            label = " ".join([name, *(f"{key.split('.')[-1]}={chosen[key]}" for key in chosen)])
            plain = {key: value for key, value in own.items() if key != "grid"}
            arms[label] = study.get("settings", {}) | plain | chosen
    return arms


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as flags of `bestofk train`."""
    words = []
    for key, value in settings.items():
        words += [f"--{key}", str(value).lower() if isinstance(value, bool) else str(value)]
    return words


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def kept(path: Path) -> list[dict[str, Any]]:
    """What a file of counts holds; nothing, where there is none."""
    return read_counts(path) if path.exists() else []


def ask(process: subprocess.Popen[str], words: list[str], log: str) -> str:
    """What a worker answers when it has done this: "0", another code, or nothing if it ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        print(json.dumps([words, log]), file=process.stdin, flush=True)
        return process.stdout.readline().strip()
    except BrokenPipeError:
        return ""


def evaluations(folder: Path) -> Iterator[dict[str, Any]]:
    """One record for each evaluation of a finished run."""
    metrics = json_lines(folder / "metrics.jsonl")
    chosen = folder / "best.json"
    best = json.loads(chosen.read_text(encoding="utf-8"))["value"] if chosen.exists() else None
    seconds = 0.0
    spent = {0: 0.0}
    weighed = {}
    for line in metrics:
        if line["kind"] == "train":
            seconds += sum(line["seconds"].values())
            spent[line["step"]] = round(seconds, 1)
            weighed[line["step"]] = round(line.get("ess", 1.0), 4)
    for line in metrics:
        if line["kind"] != "evaluation":
            continue
        samples = json_lines(folder / "evaluations" / f"{line['step']:06d}.jsonl")
        shares = [share for step, share in weighed.items() if step <= line["step"]]
        yield {
            "step": line["step"],
            "samples": line["samples_per_prompt"],
            "seconds": spent[line["step"]],
            "entropy": round(line["entropy"], 4),
            "distinct_wrong": (line.get("distinct_wrong") or {}).get("value"),
            "best": best,
            "shares": shares if any(share != 1.0 for share in shares) else None,
            "counts": counted(samples, "prompt_id"),
        }  # fmt: skip


def counted(samples: Iterable[dict[str, Any]], problem: str, turns: float = math.inf) -> list[Any]:
    """The number of successes of each problem, or how often each reward came, by problem id.

    Args:
        turns: of a trajectory, at most; a longer one has earned nothing.
    """
    rewards: dict[str, collections.Counter[float]] = {}
    for sample in samples:
        counter = rewards.setdefault(sample[problem], collections.Counter())
        reward = sample["reward"] if sample.get("turns", 1) <= turns else 0.0
        counter[round(reward, 6)] += 1
    problems = [dict(sorted(rewards[name].items())) for name in sorted(rewards)]
    if all(set(one) <= {0.0, 1.0} for one in problems):
        return [one.get(1.0, 0) for one in problems]
    return [sorted(one.items()) for one in problems]


def selected(
    samples: Iterable[dict[str, Any]], problem: str, k: int, score: Callable[..., float]
) -> list[Any]:
    """The mean reward of the best-scored of k, for each problem by its id: one value each."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        name, text, reward = sample[problem], sample["completion"], sample["reward"]
        rows.setdefault(name, []).append((reward, score(name, text, reward == 1.0)))
    rewards, scores = np.array([rows[name] for name in sorted(rows)]).transpose(2, 0, 1)
    return [[[value, 1]] for value in SELECT.curve(rewards, k, scores=scores)[:, -1].tolist()]


def chosen_arms(study: dict[str, Any], lines: Sequence[dict[str, Any]]) -> list[str]:
    """The arms that the rules of a search pick from its counts."""
    from evaluations import best_of_k, shares_of

    runs: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for line in sorted(lines, key=lambda line: line["step"]):
        if line["seed"] in study["search"]["seeds"]:
            runs.setdefault(line["arm"], {}).setdefault(line["seed"], []).append(line)
    names = []
    for rule in study["search"]["choose"]:
        metric = rule.get("last", rule.get("best"))
        values: dict[tuple[str, ...], dict[str, float]] = {}
        for arm in filter(runs.get, arms_of(study)):
            if not (match := re.match(rule["of"], arm)):
                continue
            total = 0.0
            for rows in runs[arm].values():
                if metric:
                    shares = shares_of(rows[0]["samples"], [int(metric.removeprefix("max@"))])
                    rows = rows[-1:] if "last" in rule else rows
                    total += max(float(best_of_k(r["counts"], shares).mean()) for r in rows)
                else:
                    total += rows[-1]["best"]
            values.setdefault(match.groups(), {})[arm] = total
        names += [max(each, key=each.__getitem__) for each in values.values()]
    return names


def work() -> None:
    """Train what each line of the input says, in this process: libraries and compiled kernels are
    loaded once. One line of the output for each."""
    from bestofk.cli import main as bestofk

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        words, log = json.loads(line)
        with open(log, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            code = bestofk(words) or 0
        except SystemExit as stop:
            code = int(bool(stop.code))
        except Exception:
            traceback.print_exc()
            code = 1
        free_memory()
        sys.stdout.flush()
        print(code, file=answers, flush=True)


def free_memory() -> None:
    """Let go of the models of this process, for the runs beside it and the next one."""
    import torch

    from bestofk.cli.sample_command import local_model

    local_model.cache_clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Study:
    """The runs that wait, and the file their counts go to."""

    def __init__(self, options: argparse.Namespace) -> None:
        text = (HERE / "studies" / f"{options.study}.toml").read_text(encoding="utf-8")
        study = tomllib.loads(text)
        self.options, self.recipe, self.arms = options, study["recipe"], arms_of(study)
        self.unseen: dict[str, dict[str, Any]] = study.get("unseen", {})
        self.test: dict[str, Any] | None = study.get("test")
        self.tested = re.compile((self.test or {}).pop("of", ""))
        self.turns: list[int] = study.get("turns", [])
        self.select: dict[str, Any] = study.get("select", {})
        self.out = options.out / f"{options.study}.parquet"
        self.out.parent.mkdir(parents=True, exist_ok=True)
        for pattern in options.arms:
            if not fnmatch.filter(self.arms, pattern):
                sys.exit(f"no arm {pattern!r} in {options.study}: {', '.join(self.arms)}")
        chosen = [arm for arm in self.arms if any(fnmatch.fnmatch(arm, p) for p in options.arms)]
        seeds = (
            [int(seed) for seed in options.seeds.split(",")] if options.seeds else study["seeds"]
        )
        jobs = [(arm, seed) for seed in seeds for arm in chosen]
        files = [self.out, *map(self.counts_of, self.unseen)]
        done = set.intersection(*({(line["arm"], line["seed"]) for line in kept(f)} for f in files))
        if self.test:
            tested = {(line["arm"], line["seed"]) for line in kept(self.counts_of("test"))}
            done = {job for job in done if job in tested or not self.tested.search(job[0])}
        if "search" in study:
            others = study["search"].get("of", [])
            first = [(arm, seed) for arm in self.arms for seed in study["search"]["seeds"]]
            files = [self.out.with_name(f"{name}.parquet") for name in others] or [self.out]
            complete = others or done.issuperset(first)
            lines = itertools.chain.from_iterable(map(kept, files))
            picked = chosen_arms(study, list(lines)) if complete else []
            jobs = [job for job in jobs if (job in first and not others) or job[0] in picked]
        self.waiting = collections.deque(job for job in jobs if job not in done)
        self.failed: list[str] = []
        self.over = False
        """Whether the limit is reached."""
        self.began = time.monotonic()
        self.lock = threading.Lock()

    def words(self, arm: str, seed: int) -> tuple[list[str], Path]:
        """The training of one arm with one seed, as words after `bestofk`, and its folder."""
        folder = self.options.work / self.options.study / re.sub(r"[^\w@+.-]", "_", f"{arm}-{seed}")
        settings = self.arms[arm] | {"model.device": self.options.device}
        settings |= {"run.seed": seed, "run.dir": folder}
        return ["train", self.recipe, *flags(settings)], folder

    def unseen_words(self, task: str, folder: Path) -> list[str]:
        """Samples of the trained model on a task it was not trained on."""
        words = ["sample", str(folder / "final"), "--task", task]
        return words + flags({"out": folder / f"{task}.jsonl"} | self.unseen[task])

    def test_words(self, model: str, folder: Path, seed: int) -> tuple[list[str], Path]:
        """Samples of best/ or final/ on the test problems, and their file. `bestofk sample` reads
        task and sampling of a run whose final model this is."""
        beside, out = folder / f"test-{model}", folder / f"test-{model}.jsonl"
        shutil.rmtree(beside, ignore_errors=True)
        out.unlink(missing_ok=True)
        beside.mkdir()
        (beside / "final").symlink_to((folder / model).resolve())
        shutil.copy(folder / "config.toml", beside)
        assert self.test is not None
        settings = {"device": self.options.device, "seed": seed, "out": out} | self.test
        return ["sample", str(beside), *flags(settings)], out

    def counts_of(self, task: str) -> Path:
        """The file of what was counted on an unseen task, or on the test problems."""
        return self.out.with_name(f"{self.out.stem}-{task}.parquet")

    def keep(self, path: Path, arm: str, seed: int, records: list[dict[str, Any]]) -> None:
        """Add what was counted to a file of the study, in the place of an earlier try."""
        others = [line for line in kept(path) if (line["arm"], line["seed"]) != (arm, seed)]
        new = [{"arm": arm, "seed": seed} | record for record in records]
        write_counts(path, others + new)

    def run(self, arm: str, seed: int, process: subprocess.Popen[str]) -> str:
        """Train, then sample the unseen tasks; what is counted is kept as soon as it is there."""
        words, folder = self.words(arm, seed)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("checkpoints/step-*")):
            words = ["train", "--resume", str(folder)]
        else:
            shutil.rmtree(folder, ignore_errors=True)
        answer = "0" if (folder / "final").exists() else ask(process, words, f"{folder}.log")
        if answer != "0":
            return answer
        shutil.copy(folder / "metrics.jsonl", f"{folder}.metrics.jsonl")
        own = list(evaluations(folder))
        with self.lock:
            self.keep(self.out, arm, seed, own)
        last = {key: own[-1][key] for key in ("step", "seconds")}
        if self.turns:
            samples = json_lines(folder / "evaluations" / f"{last['step']:06d}.jsonl")
            for turns in self.turns:
                record = own[-1] | {"counts": counted(samples, "prompt_id", turns)}
                with self.lock:
                    self.keep(self.counts_of(f"turns-{turns}"), arm, seed, [record])
        for task, settings in self.unseen.items():
            words = self.unseen_words(task, folder)
            if (answer := ask(process, words, f"{folder}.{task}.log")) != "0":
                return answer
            counts = counted(json_lines(folder / f"{task}.jsonl"), "problem_id")
            with self.lock:
                record = last | {"samples": settings["n"], "counts": counts}
                self.keep(self.counts_of(task), arm, seed, [record])
        if self.test and self.tested.search(arm):
            answer = self.run_test(arm, seed, folder, own[-1], process)
        if answer == "0":
            shutil.rmtree(folder)
        return answer

    def run_test(
        self,
        arm: str,
        seed: int,
        folder: Path,
        last: dict[str, Any],
        process: subprocess.Popen[str],
    ) -> str:
        """Sample best/ and final/ on the test problems, one of them where they are the same."""
        steps = {"final": last["step"]}
        if (folder / "best.json").exists():
            best = json.loads((folder / "best.json").read_text(encoding="utf-8"))["step"]
            steps = {"best": best} | ({} if best == last["step"] else steps)
        records: dict[str, list[dict[str, Any]]] = {}
        for model, step in steps.items():
            words, out = self.test_words(model, folder, seed)
            if (answer := ask(process, words, f"{folder}.test-{model}.log")) != "0":
                return answer
            samples, about = json_lines(out), {"step": step, "seconds": last["seconds"]}
            counts = counted(samples, "problem_id")
            record = about | {"samples": len(samples) // len(counts), "counts": counts}
            records.setdefault("test", []).append(record)
            for turns in self.turns:
                shorter = record | {"counts": counted(samples, "problem_id", turns)}
                records.setdefault(f"test-turns-{turns}", []).append(shorter)
            for name, score in self.scores().items():
                values = selected(samples, "problem_id", self.select["k"], score)
                record = about | {"samples": 1, "counts": values}
                records.setdefault(f"test-{name}", []).append(record)
        with self.lock:
            for name, rows in reversed(records.items()):  # the test's own file says what is done
                self.keep(self.counts_of(name), arm, seed, rows)
        return "0"

    def scores(self) -> dict[str, Callable[..., float]]:
        """By the selector's name: (problem, completion, right) → score."""
        if not self.select:
            return {}
        scorers = load_function(f"{HERE / self.select['scorers']}:score")
        names = load_function(f"{HERE / self.select['scorers']}:SELECTORS")
        return {name: functools.partial(scorers, name) for name in names}

    def serve(self, process: subprocess.Popen[str]) -> None:
        """Give a worker one run after the other."""
        while True:
            with self.lock:
                if self.over or not self.waiting:
                    return
                arm, seed = self.waiting.popleft()
            answer = self.run(arm, seed, process)
            took = f"{time.monotonic() - self.began:5.0f} s"
            with self.lock:
                if answer == "0":
                    print(f"{took}  {arm} seed {seed}", flush=True)
                elif self.over:
                    self.waiting.append((arm, seed))
                else:
                    self.failed.append(arm)
                    logs = self.words(arm, seed)[1]
                    print(f"{took}  {arm} seed {seed} did not end well: {logs}*.log", flush=True)
                    if not answer:
                        return

    def join(self, threads: Sequence[threading.Thread], limit: float | None) -> None:
        """Wait for their end, at most until so many seconds after the beginning."""
        for thread in threads:
            thread.join(limit and max(0.0, limit - (time.monotonic() - self.began)))


def main() -> int:
    if sys.argv[1:] == ["--worker"]:
        work()
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", help="name of a file in research/studies")
    parser.add_argument("--arms", nargs="+", default=["*"], help="only those like these patterns")
    parser.add_argument("--seeds", help="only these, separated by commas")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--first-core", type=int, default=0, help="of those the runs are bound to")
    parser.add_argument("--cores-each", type=int, default=1, help="more where programs are judged")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, help="seconds, then runs write a checkpoint")
    parser.add_argument("--work", type=Path, default=Path("runs/study"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=HERE / "counts")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    options = parser.parse_args()
    study = Study(options)
    if options.dry_run:
        for job in study.waiting:
            print("bestofk", shlex.join(study.words(*job)[0]))
        return 0
    workers, threads = [], []
    each = options.cores_each
    for core in range(options.first_core, options.first_core + options.jobs * each, each):
        cores = f"{core}-{core + each - 1}"
        pin = ["taskset", "-c", cores] if shutil.which("taskset") else []
        process = subprocess.Popen(
            [*pin, sys.executable, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        workers.append(process)
        threads.append(threading.Thread(target=study.serve, args=(process,), daemon=True))
        threads[-1].start()
    study.join(threads, options.limit)
    study.over = True
    for process in workers:
        process.terminate()
    study.join(threads, time.monotonic() - study.began + CHECKPOINT_SECONDS)
    for process in workers:
        process.kill()
    study.join(threads, time.monotonic() - study.began + 5)
    for process in workers:
        process.communicate()
    if not study.failed and not study.waiting and (rest := Study(options).waiting):
        print(f"the search is done; the same command runs the {len(rest)} runs that it picks")
    print(f"{len(study.waiting)} left, {len(study.failed)} did not end well")
    return int(bool(study.failed or study.waiting))


if __name__ == "__main__":
    sys.exit(main())
