"""Train from Python on your own data and reward; the run as an object."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from signal import SIGINT
from typing import Any

from bestofk.api.measuring import ReportFile, evaluate, read, report
from bestofk.api.own_data import (
    data_options,
    files_of,
    free_folder,
    named_reward,
    objective_settings,
)
from bestofk.api.sampling_run import sample_run
from bestofk.config import Config, merged
from bestofk.config import read as read_recipe
from bestofk.devices import let_threads_sleep, silence_compiler
from bestofk.environments.author_class import (
    EnvironmentClasses,
    as_environment,
    recorded_name,
)
from bestofk.evaluation import Curve
from bestofk.messages import say_aside
from bestofk.objectives import Objective
from bestofk.runs import read_metrics, refuse_begun
from bestofk.samples import Samples
from bestofk.training.checks import best_metric, make_objective
from bestofk.training.resolve import RunSettings, resolve, resumed
from bestofk.types import Verifier


@dataclass(frozen=True, repr=False)
class TrainedRun:
    """A finished run: its folder, models, evaluations."""

    path: Path
    config: Config
    _verifier: Verifier | None = field(default=None, compare=False)
    _environment: EnvironmentClasses | None = field(default=None, compare=False)

    @property
    def model(self) -> Path:
        """Folder of the trained model, for `from_pretrained` and `vllm serve`."""
        return self.path / "final"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl: one per step and one per evaluation."""
        return read_metrics(self.path)

    @property
    def start(self) -> Samples:
        """The evaluation before training."""
        return self._evaluation("000000", "start")

    @property
    def best(self) -> Samples:
        """The evaluation of the best checkpoint; of the last step where none beat the start."""
        note = self.path / "best.json"
        if not note.is_file():
            return self.final
        step = json.loads(note.read_text(encoding="utf-8"))["step"]
        return self._evaluation(f"{step:06d}", f"step {step}")

    @property
    def final(self) -> Samples:
        """The evaluation after the last step."""
        step = max(line["step"] for line in self.metrics)  # a callback may have ended it
        return self._evaluation(f"{step:06d}", f"step {step}")

    def _evaluation(self, step: str, name: str) -> Samples:
        file = self.path / "evaluations" / f"{step}.jsonl"
        if not file.is_file():
            start = "" if int(step) else " and evaluation.at_start = true"
            raise FileNotFoundError(
                f"{self.path} has no evaluation of step {int(step)}: train with "
                f"evaluate_every > 0{start}"
            )
        return read(file, name=name)

    def sample(
        self, split: str | None = None, n: int | None = None, prompts: int | None = None
    ) -> Samples:
        """Draw and score samples of the trained model.

        Args:
            split: by default test where the data have one, else the split of the evaluations.
            n: samples per prompt; by default as many as in the evaluations.
            prompts: number of prompts; by default all of the split.
        """
        file = sample_run(self.path, self._verifier, split, n, prompts, self._environment)
        return read(file, name=self.path.name)

    def evaluate(self, split: str | None = None, n: int | None = None, **options: Any) -> Curve:
        """pass@k or max@k of the trained model on fresh samples: `sample`, then `evaluate`."""
        return evaluate(self.sample(split, n), **options)

    def report(self, out: str | PathLike[str] | None = None) -> ReportFile:
        """A page on the run; by default report.html in its folder."""
        return report(self, self.path / "report.html" if out is None else out)

    def __repr__(self) -> str:
        config = self.config
        about = f"{self.path}: {config.objective}, {config.run.steps} steps"
        objective = make_objective(config.objective, config.objective_options, config.loss.name)
        name = best_metric(config.evaluation, objective)
        lines = [line for line in self.metrics if line["kind"] == "evaluation"]
        result = [line["results"][name]["value"] for line in lines if name in line["results"]]
        return f"{about}; {name} {result[0]:.3f} → {result[-1]:.3f}" if result else about

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>"


def train(
    model: str | PathLike[str],
    data: Any = None,
    reward: Any = None,
    objective: str | Objective = "max@1+4+16",
    *,
    environment: Any = None,
    prompt: str | None = None,
    validation: Any = None,
    test: Any = None,
    samples_per_prompt: int = 32,
    prompts_per_step: int | None = None,
    steps: int = 200,
    learning_rate: float | None = None,
    max_new_tokens: int | None = None,
    lora_rank: int = 0,
    evaluate_every: int = 50,
    seed: int = 0,
    dir: str | PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | PathLike[str] | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> TrainedRun:
    """Train a model on your data for what the best of k samples gets.

    Args:
        model: a Hub id, a folder, a GGUF file or a shipped model ("tiny-countdown").
        data: dicts; a JSONL, CSV, parquet or Arrow file; a `datasets.Dataset` or a folder that
            one was saved to; "hub:owner/name"; a DataFrame; or the name of a task.
        reward: a function of yours (`bestofk.rewards.from_function` lists the forms), or the name
            of a verifier ("maths", "exact"), which judges by the field `answer`.
        objective: what to train for, a string or an Objective; `bestofk objectives` lists them.
        environment: a class that answers the model's messages, a list of functions (tools), or a
            name ("file.py:Class", "python", "repair"); see `bestofk.environments`. One with
            `get_reward` needs no reward.
        prompt: template over the fields of a row, for example "{question} Answer briefly."; by
            default the field prompt, question, problem or instruction.
        validation, test: data to evaluate on; by default 5 % of `data`, at least about 64 rows.
            With fewer than 128 rows nothing is held out.
        samples_per_prompt: n, larger than k.
        learning_rate: by default by the model's size: 1e-4 below 30 million weights, 1e-5 below 300
            million, else 2e-6; ten times that with `lora_rank`.
        prompts_per_step: P; by default 16, or all rows where there are fewer.
        max_new_tokens: longest completion; by default as many as answers to the task may need.
        evaluate_every: steps between evaluations; 0 is never.
        dir: folder of the run; by default a new one in runs/.
        settings: any other setting by its name in a recipe: {"optimizer.schedule": "cosine"}.
        resume: folder of an interrupted run to finish; then only `reward` and `callback` matter
            beside it.
        callback: called with each line of metrics (a dict with `kind`, `step`, `reward`, …) once it
            is written. Where it returns True the run ends there: with an evaluation, a checkpoint
            and the final model, as if that step were the last.

    Returns:
        The finished run.

    Raises:
        ValueError: settings or data that cannot work; says what to change.
        bestofk.rewards.TooManyUnscored: the reward raises or times out too often.
        KeyboardInterrupt, SystemExit: the run was stopped by a signal; resume it.
    """
    let_threads_sleep()
    if not isinstance(settings or {}, Mapping):
        raise ValueError(
            f'settings is a dict, {{"optimizer.schedule": "cosine"}}; got {settings!r}'
        )
    verifier, name = named_reward(reward)
    classes = None if environment is None else as_environment(environment)
    if resume is not None:
        continued = resumed(resume, settings or {})
        return run_to_the_end(continued, verifier, classes, callback=callback)
    if not isinstance(model, str | PathLike):
        raise ValueError(
            f"model is a name or a path, and data come after it; got a {type(model).__name__}"
        )
    folder = free_folder(dir, str(model), str(objective))
    refuse_begun(folder)  # before data are read, and rows are written there
    task, count, rows = data_options(
        {"train": data, "validation": validation, "test": test},
        name,
        prompt=prompt,
        folder=folder,
        environment=None if environment is None else recorded_name(environment),
    )
    arguments = {
        "task": task,
        "model.path": str(model),
        "model.lora_rank": lora_rank,
        "sampling.samples_per_prompt": samples_per_prompt,
        "sampling.prompts_per_step": prompts_per_step,
        "sampling.max_new_tokens": max_new_tokens,
        "optimizer.learning_rate": learning_rate,
        "evaluation.every": evaluate_every,
        "run.dir": str(folder),
        "run.steps": steps,
        "run.seed": seed,
        **objective_settings(objective),
    }
    config = merged(Config(), {name: each for name, each in arguments.items() if each is not None})
    resolved = resolve(merged(config, settings or {}), rows=count)
    with files_of(rows, folder):
        return run_to_the_end(resolved, verifier, classes, callback=callback)


def run_to_the_end(
    settings: RunSettings,
    verifier: Verifier | None,
    environment: EnvironmentClasses | None = None,
    *,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> TrainedRun:
    """Run the training loop; a signal that stopped it is raised, not returned."""
    from bestofk.training.train import train as run_loop

    silence_compiler()
    say_aside(f"watch: bestofk report --watch {settings.run.dir}")
    end = run_loop(settings, verifier=verifier, environment=environment, callback=callback)
    if end.signal is not None:
        again = f"bestofk.train(..., resume={str(end.path)!r})"
        message = f"stopped at step {end.step}; resume with {again}"
        say_aside(message)
        raise KeyboardInterrupt(message) if end.signal == SIGINT else SystemExit(128 + end.signal)
    return TrainedRun(end.path, read_recipe(end.path / "config.toml"), verifier, environment)
