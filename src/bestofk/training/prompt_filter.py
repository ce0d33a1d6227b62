"""Training prompts by pass rate: those that a file of samples shows to be neither easy nor hard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bestofk.evaluation import read
from bestofk.tasks import Split, Task


def with_pass_rates(
    task: Task,
    split: str,
    file: str,
    *,
    low: float,
    high: float,
    threshold: float = 1.0,
    seed: int = 0,
) -> Task:
    """The task with only those prompts in a split whose pass rate in a file lies in [low, high].

    Args:
        file: samples of prompts of this split, for example from `bestofk eval MODEL --task NAME
            --split train`; rows are matched with prompts by id. A prompt without a scored sample
            there is left out.

    Raises:
        ValueError: no prompt of the split is in the file, or none lies in the range.
    """
    samples = read(file)
    passed = samples.count(samples.rewards >= threshold)
    rates = np.divide(
        passed, samples.live, out=np.full(len(passed), np.nan), where=samples.live > 0
    )
    rate_of = dict(zip(samples.problems, rates.tolist()))

    def make(name: str) -> Split:
        built = task.make(name)
        if name != split:
            return built
        known = [prompt for prompt in built if prompt.id in rate_of]
        kept = [prompt for prompt in known if low <= rate_of[prompt.id] <= high]
        if not kept:
            raise ValueError(
                f"run.options.pass_rates: {len(known)} of {len(built)} prompts of split {split!r} "
                f"are in {file}, and none has a pass rate in [{low:g}, {high:g}]: widen "
                "run.options.pass_rate_range, or sample this split again"
            )
        return Split(kept, len(kept), seed=seed)

    return replace(task, make=make, _cache={})
