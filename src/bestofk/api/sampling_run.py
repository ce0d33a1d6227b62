"""Samples of a trained run's final model, drawn as its evaluations were, into its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bestofk.common import unknown
from bestofk.config import Config
from bestofk.types import Verifier


def sample_model(
    run: Path,
    config: Config,
    verifier: Verifier | None,
    split: str | None,
    n: int | None,
    prompts: int | None,
) -> Path:
    """Draw n completions of each prompt of a split, score them, and return the file.

    The draws are fixed by the run's seed, the split and n: the same call gives the same file.
    """
    import torch

    from bestofk import models, runs
    from bestofk.rewards import score
    from bestofk.sampling.local import local_sampler
    from bestofk.training.batch import RolloutBatch
    from bestofk.training.record import sample_rows
    from bestofk.training.task_setup import make_prompts, make_verifier

    task = make_prompts(config)
    usual = "test" if "test" in task.splits else config.evaluation.split
    if split is not None and split not in task.splits:
        raise unknown("split", split, task.splits)
    chosen = task.split(split or usual)
    count = n or config.evaluation.samples_per_prompt
    file = run / "evaluations-final" / f"{split or usual}-n{count}.jsonl"
    device = config.model.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = models.load(str(run / "final"), device=device)
    policy.model.eval()
    precision = config.model.precision if device.startswith("cuda") else None
    groups = local_sampler(policy.model, policy.tokenizer, precision=precision).sample(
        list(chosen[:prompts]) if prompts else list(chosen),
        seed=config.run.seed,
        params=replace(config.sampling, samples_per_prompt=count),
    )
    judge = verifier or make_verifier(config, task)
    verdicts = score(groups, judge)
    batch = RolloutBatch(tuple(groups), tuple(map(tuple, verdicts)))
    file.parent.mkdir(exist_ok=True)
    runs.write_jsonl(file, sample_rows(config.run.steps, batch))
    return file
