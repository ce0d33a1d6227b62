"""Where a training step's time goes, and samples per second against TRL's GRPOTrainer.

    python benchmarks/train.py                       # TRL in this environment, if it is there
    python benchmarks/train.py --trl-python PATH     # TRL in another one

Both sides train the same tiny policy on the same countdown prompts on CPU: as many prompts, samples
per prompt and new tokens at most, temperature 1, the same verifier, one optimiser step a batch, no
KL. They take turns, so that both see the same machine; CPU seconds are printed beside the clock.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = "tiny-countdown"
NEW_TOKENS = 20


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def ours(prompts: int, n: int, steps: int) -> dict[str, Any]:
    """Seconds of each phase, per step, after one step to warm up."""
    import numpy as np

    import bestofk
    from bestofk.learning import Learner, Optimizer
    from bestofk.models import load
    from bestofk.rewards import verifier
    from bestofk.sampling import Sampling
    from bestofk.sampling.decode import ModelSampler
    from bestofk.tasks import task

    policy = load(MODEL)
    sampler = ModelSampler(policy.model, policy.tokenizer)
    learner = Learner(policy.model, optimizer=Optimizer(learning_rate=1e-6))
    split = task("countdown", style="compact").split("train")
    judge, sampling = (
        verifier("countdown"),
        Sampling(samples_per_prompt=n, max_new_tokens=NEW_TOKENS),
    )
    rows: list[dict[str, float]] = []
    for step in range(steps + 1):
        batch = [split.at(step * prompts + i) for i in range(prompts)]
        marks = [now()]
        groups = sampler.sample(batch, seed=step, sampling=sampling)
        marks.append(now())
        pairs = [(one.prompt, done.text) for one in groups for done in one.trajectories]
        verdicts = judge([prompt for prompt, _ in pairs], [text for _, text in pairs])
        rewards = np.array([verdict.reward for verdict in verdicts]).reshape(prompts, n)
        marks.append(now())
        weights = bestofk.advantages(rewards, "grpo")
        marks.append(now())
        learner.step(groups, weights)
        marks.append(now())
        names = ("sampling", "rewards", "objective", "learner")
        wall = {name: b[0] - a[0] for name, a, b in zip(names, marks, marks[1:])}
        wall["tokens"] = float(sum(len(d.tokens) for g in groups for d in g.trajectories))
        wall["wall"], wall["cpu"] = marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]
        rows.append(wall)
    return {name: statistics.median(row[name] for row in rows[1:]) for name in rows[0]}


def trl(prompts: int, n: int, steps: int) -> dict[str, Any]:
    """Seconds of a step of GRPOTrainer, after one step to warm up."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from bestofk.models import load
    from bestofk.rewards import verifier
    from bestofk.tasks import task

    policy = load(MODEL)
    split = task("countdown", style="compact").split("train")
    chosen = [split.at(i) for i in range(prompts * (steps + 2))]
    by_text, judge = {prompt.text: prompt for prompt in chosen}, verifier("countdown")
    tokens: list[int] = []

    def reward(prompts: list[str], completions: list[str], **extra: Any) -> list[float]:
        tokens.append(sum(len(ids) for ids in extra["completion_ids"]))
        return [v.reward for v in judge([by_text[p] for p in prompts], completions)]

    marks: list[tuple[float, float]] = []

    class Watch(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(now())

    with tempfile.TemporaryDirectory() as place:
        config = GRPOConfig(
            output_dir=place,
            per_device_train_batch_size=prompts * n,
            num_generations=n,
            max_completion_length=NEW_TOKENS,
            max_steps=steps + 1,
            learning_rate=1e-6,
            beta=0.0,
            temperature=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": prompt.text} for prompt in chosen]),
            callbacks=[Watch()],
        )
        trainer.train()
    wall = [b[0] - a[0] for a, b in zip(marks, marks[1:])]
    cpu = [b[1] - a[1] for a, b in zip(marks, marks[1:])]
    return {
        "wall": statistics.median(wall),
        "cpu": statistics.median(cpu),
        "tokens": statistics.median(tokens[1:]),
    }


def elsewhere(python: str, side: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One side in a process of its own."""
    command = [python, __file__, "--side", side, "--prompts", str(asked.prompts)]
    command += ["--n", str(asked.n), "--steps", str(asked.steps)]
    source = str(Path(__file__).resolve().parents[1] / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def middle(rounds: list[dict[str, Any]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="turns each side takes")
    parser.add_argument("--trl-python", help="an interpreter that has trl")
    parser.add_argument("--side", choices=("ours", "trl"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        side = {"ours": ours, "trl": trl}[asked.side]
        print(json.dumps(side(asked.prompts, asked.n, asked.steps)))
        return
    peer = asked.trl_python or (sys.executable if importlib.util.find_spec("trl") else None)
    mine, theirs = [], []
    for _ in range(asked.rounds):
        mine.append(elsewhere(sys.executable, "ours", asked))
        if peer:
            theirs.append(elsewhere(peer, "trl", asked))
    found, rows = middle(mine), asked.prompts * asked.n
    print(f"{asked.prompts} prompts × {asked.n} samples, {found['tokens']:.0f} new tokens a step")
    print(f"\n{'phase':<12}{'ms':>8}{'share':>8}")
    for name in ("sampling", "rewards", "objective", "learner"):
        print(f"{name:<12}{1e3 * found[name]:>8.1f}{found[name] / found['wall']:>8.0%}")
    print(f"\n{'':<12}{'samples/s':>10}{'s/step':>9}{'CPU s/step':>12}{'tokens/step':>13}")
    print(_line("bestofk", found, rows))
    if not theirs:
        print("TRL is not here: give --trl-python an interpreter that has it")
        return
    other = middle(theirs)
    print(_line("TRL", other, rows))
    print(
        f"\nbestofk is {other['wall'] / found['wall']:.1f}× as fast by the clock, "
        f"{other['cpu'] / found['cpu']:.1f}× by CPU time"
    )


def _line(name: str, found: dict[str, float], rows: int) -> str:
    rate = f"{rows / found['wall']:>10.0f}{found['wall']:>9.3f}{found['cpu']:>12.3f}"
    return f"{name:<12}{rate}{found['tokens']:>13.0f}"


if __name__ == "__main__":
    main()
