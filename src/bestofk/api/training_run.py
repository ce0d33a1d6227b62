"""Train from Python on your own data and reward; the run as an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from signal import SIGINT
from typing import Any

from bestofk.api.own_data import data_options, free_folder, named_reward, style_of
from bestofk.api.result_objects import EvaluationResult, ReportFile, SampleSet
from bestofk.config import Config, from_dict, merged, read_own_config
from bestofk.types import Verifier

FEW_ROWS = 50
"""With fewer rows none is held out: evaluations use the training prompts, and say so."""


@dataclass(frozen=True, repr=False)
class TrainedRun:
    """A finished run: its folder, models, evaluations."""

    path: Path
    config: Config
    _verifier: Verifier | None = field(default=None, compare=False)

    @property
    def model(self) -> Path:
        """Folder of the trained model, for `from_pretrained` and `vllm serve`."""
        return self.path / "final"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl: one per step and one per evaluation."""
        from bestofk.runs import read_metrics

        return read_metrics(self.path)

    @property
    def start(self) -> SampleSet:
        """The evaluation before training."""
        return self._evaluation("000000", "start")

    @property
    def best(self) -> SampleSet:
        """The evaluation of the best checkpoint; of the last step where none beat the start."""
        note = self.path / "best.json"
        if not note.is_file():
            return self.final
        step = json.loads(note.read_text(encoding="utf-8"))["step"]
        return self._evaluation(f"{step:06d}", f"step {step}")

    @property
    def final(self) -> SampleSet:
        """The evaluation after the last step."""
        step = self.config.run.steps
        return self._evaluation(f"{step:06d}", f"step {step}")

    def _evaluation(self, step: str, name: str) -> SampleSet:
        from bestofk.api.measuring import read

        file = self.path / "evaluations" / f"{step}.jsonl"
        if not file.is_file():
            start = "" if int(step) else " and run.options.evaluate_start = true"
            raise FileNotFoundError(
                f"{self.path} has no evaluation of step {int(step)}: train with "
                f"evaluate_every > 0{start}"
            )
        return read(file, name=name)

    def sample(
        self, split: str | None = None, n: int | None = None, prompts: int | None = None
    ) -> SampleSet:
        """Draw and score samples of the trained model.

        Args:
            split: by default test where the data have one, else the split of the evaluations.
            n: samples per prompt; by default as many as in the evaluations.
            prompts: number of prompts; by default all of the split.
        """
        from bestofk.api.measuring import read
        from bestofk.api.sampling_run import sample_model

        file = sample_model(self.path, self.config, self._verifier, split, n, prompts)
        return read(file, name=self.path.name)

    def evaluate(
        self, split: str | None = None, n: int | None = None, **options: Any
    ) -> EvaluationResult:
        """pass@k or max@k of the trained model on fresh samples: `sample`, then `evaluate`."""
        from bestofk.api.measuring import evaluate

        return evaluate(self.sample(split, n), **options)

    def report(self, out: str | PathLike[str] | None = None) -> ReportFile:
        """A page on the run; by default report.html in its folder."""
        from bestofk.api.measuring import report

        return report(self, self.path / "report.html" if out is None else out)

    def __repr__(self) -> str:
        from bestofk.training.checks import best_metric, make_objective

        about = f"{self.path}: {self.config.objective}, {self.config.run.steps} steps"
        name = best_metric(self.config, make_objective(self.config))
        lines = [line for line in self.metrics if line["kind"] == "evaluation"]
        result = [line["results"][name]["value"] for line in lines if name in line["results"]]
        return f"{about}; {name} {result[0]:.3f} → {result[-1]:.3f}" if result else about

    def _repr_html_(self) -> str:
        import html

        return f"<p>{html.escape(repr(self))}</p>"


def train(
    model: str | PathLike[str],
    data: Any = None,
    reward: Any = None,
    objective: str = "max@8",
    *,
    prompt: str | None = None,
    validation: Any = None,
    test: Any = None,
    samples_per_prompt: int = 16,
    prompts_per_step: int | None = None,
    steps: int = 200,
    learning_rate: float | None = None,
    max_new_tokens: int = 256,
    lora_rank: int = 0,
    evaluate_every: int = 50,
    seed: int = 0,
    dir: str | PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | PathLike[str] | None = None,
) -> TrainedRun:
    """Train a model on your data for what the best of k samples gets.

    Args:
        model: a Hub id, a folder, a GGUF file or a shipped model ("tiny-countdown").
        data: dicts; a JSONL, CSV, parquet or Arrow file; a `datasets.Dataset` or a folder that
            one was saved to; "hub:owner/name"; a DataFrame; or the name of a task.
        reward: a function of yours (`bestofk.rewards.from_function` lists the forms), or the name
            of a verifier ("maths", "exact"), which judges by the field `answer`.
        objective: what to train for; `bestofk objectives` lists them.
        prompt: template over the fields of a row, for example "{question} Answer briefly."; by
            default the field prompt, question, problem or instruction.
        validation, test: data to evaluate on; by default parts of `data`. With fewer than 50 rows
            nothing is held out.
        samples_per_prompt: n, larger than k.
        prompts_per_step: P; by default 16, or all rows where there are fewer.
        evaluate_every: steps between evaluations; 0 is never.
        dir: folder of the run; by default a new one in runs/.
        settings: any other setting by its name in a recipe: {"optimizer.schedule": "cosine"}.
        resume: folder of an interrupted run to finish; then only `reward` matters beside it.

    Returns:
        The finished run.

    Raises:
        ValueError: settings or data that cannot work; says what to change.
        bestofk.rewards.TooManyUnscored: the reward raises or times out too often.
        KeyboardInterrupt, SystemExit: the run was stopped by a signal; resume it.
    """
    verifier, name = named_reward(reward)
    if resume is not None:
        config = read_own_config(Path(resume))
        return run_to_the_end(merged(config, {"run": {"dir": str(resume)}}), verifier, resume=True)
    folder = free_folder(dir, str(model), objective)
    stated: dict[str, Any] = {
        "objective": objective,
        "model": {"path": str(model), "lora_rank": lora_rank},
        "sampling": {"samples_per_prompt": samples_per_prompt, "max_new_tokens": max_new_tokens},
        "evaluation": {"every": evaluate_every},
        "run": {"dir": str(folder), "steps": steps, "seed": seed},
    }
    if learning_rate is not None:
        stated["optimizer"] = {"learning_rate": learning_rate}
    stated["task"], rows = data_options(
        {"train": data, "validation": validation, "test": test},
        name,
        prompt=prompt,
        style=style_of(str(model)),
        folder=folder,
        few=FEW_ROWS,
    )
    if rows is not None:
        stated["sampling"]["prompts_per_step"] = min(16, rows)
        if rows < FEW_ROWS and validation is None:
            stated["evaluation"]["split"] = "train"
            print(f"{rows} rows: none is held out, and evaluations use the training prompts")
    if prompts_per_step is not None:
        stated["sampling"]["prompts_per_step"] = prompts_per_step
    config = merged(from_dict(Config, stated), _nested(settings or {}))
    return run_to_the_end(config, verifier, resume=False)


def run_to_the_end(config: Config, verifier: Verifier | None, *, resume: bool) -> TrainedRun:
    """Run the training loop; a signal that stopped it is raised, not returned."""
    from bestofk.runs import refuse_begun
    from bestofk.training.checks import check, check_installed

    check_installed(config)
    check(config)
    if not resume:
        refuse_begun(config.run.dir)
    from bestofk.training.hub import push_final
    from bestofk.training.train import train as run_loop

    end = run_loop(config, resume=resume, verifier=verifier)
    if end.signal is not None:
        again = f"bestofk.train(..., resume={str(end.path)!r})"
        stated = f"stopped at step {end.step}; resume with {again}"
        print(stated)
        raise KeyboardInterrupt(stated) if end.signal == SIGINT else SystemExit(128 + end.signal)
    push_final(config, end.path)
    return TrainedRun(end.path, config, verifier)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as the tables of a recipe.

    >>> _nested({"run.seed": 7, "run.options.keep_last": 3})
    {'run': {'seed': 7, 'options': {'keep_last': 3}}}
    """
    tables: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, key = name.split(".")
        table = tables
        for section in sections:
            table = table.setdefault(section, {})
        table[key] = value
    return tables
