"""TRL's rows as groups: rewards, advantages and what is logged; the rows of an optimiser step.

With several optimiser steps per batch, each has whole groups. Before its first micro-batch all of
them are scored under the current weights; `bestofk.objectives` turns rewards and log-ratios into
advantages, plain numbers, and the loss is the unclipped −(1/rows) Σ A_i Σ_t log π(y_it): TRL's
own, once π_old is left out.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bestofk.adapters.groups import best_of_k_metrics, group_advantages
from bestofk.adapters.inner_steps import advantages_of_step
from bestofk.objectives import Objective
from bestofk.objectives.options import finite_number

REWARDS, SCORES, OLD = "bestofk_rewards", "bestofk_scores", "old_per_token_logps"


class InnerStepsEnded(Exception):
    """The policy has moved too far from this batch: its remaining optimiser steps are left out."""


def check_rows(columns: Tensor | None, judged: Any, output: dict[str, Any], ranks: int) -> Tensor:
    """The rewards, if the rows of the batch are those that were scored, in that order.

    Raises:
        RuntimeError: the host dropped, repeated, reordered or replaced rows (a replay buffer).
    """
    rows = output["completion_ids"].tolist()
    if (
        columns is None
        or len(columns) != len(rows) * ranks
        or any(row[: len(ids)] != list(ids) for row, ids in zip(rows, judged, strict=True))
    ):
        got = "no rewards" if columns is None else f"{len(columns)} rewards"
        raise RuntimeError(
            f"the batch is not the completions that were scored, in their order ({got} for "
            f"{len(rows)} rows on each of {ranks} processes): a host trainer that drops, repeats, "
            "reorders or replays rows cannot be used, since their advantages would be those of "
            "other rows"
        )
    return columns


def check_prompts(trainer: Any, output: dict[str, Any]) -> None:
    """Raise where the samples of a group answer different prompts: none has siblings then."""
    n = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    rows = zip(output["prompt_ids"], output["prompt_mask"])
    keys = [zlib.crc32(repr(ids[mask.bool()].tolist()).encode()) for ids, mask in rows]
    mine = torch.tensor(keys, device=trainer.accelerator.device)
    groups = trainer.accelerator.gather(mine).reshape(-1, n)
    mixed = int((groups != groups[:, :1]).any(dim=1).sum())
    if mixed:
        raise ValueError(
            f"{mixed} of {len(groups)} groups hold samples of different prompts, and the {n} "
            "samples of a group must answer one: an environment must not make or vary the problem "
            "in reset() by itself. Give train_dataset a row for each problem (its text, or a seed) "
            "and let reset(self, seed, **row) take it from there: all samples of a group get the "
            "same row. A rollout_func returns the same prompt_ids for equal prompts"
        )


def combined(columns: Tensor, weights: Tensor, n: int) -> Tensor:
    """(P, n): the weighted sum of the reward functions' columns (P·n, F); NaN where unscored.

    A function that judges no sample of a prompt is not meant for that prompt, and left out. One
    that judges some siblings and not others failed on those: they are unscored, never worth 0.
    """
    judged = columns[:, weights != 0].reshape(-1, n, int((weights != 0).sum()))
    missing = judged.isnan()
    failed = missing & ~missing.all(dim=1, keepdim=True)
    total = (judged * weights[weights != 0]).nansum(dim=-1)
    return total.masked_fill(failed.any(dim=-1) | missing.all(dim=-1), torch.nan)


def replace_last(log: deque[float], values: Iterable[float]) -> None:
    """TRL just appended its advantages to the log: replace them by ours."""
    values = list(values)
    for _ in range(min(len(values), len(log))):
        log.pop()
    log.extend(values)


def in_loss(output: dict[str, Any]) -> Tensor:
    """(rows, tokens): 1 for the tokens that enter TRL's loss."""
    mask = output["completion_mask"]
    return mask * output["tool_mask"] if "tool_mask" in output else mask


def by_group(objective: Objective, rewards: Tensor, **inputs: Any) -> Tensor:
    """Advantages (P, n) for TRL's loss, which divides by all rows: see `group_advantages`."""
    ids = torch.arange(len(rewards)).repeat_interleave(rewards.shape[1])
    flat: Any = {name: value.reshape(-1) if isinstance(value, Tensor) else value
                 for name, value in inputs.items()}  # fmt: skip
    made: Tensor = group_advantages(rewards.reshape(-1), ids, objective, **flat)
    return made.reshape(rewards.shape)


def score_rows(trainer: Any, rows: dict[str, Any], **named: Any) -> tuple[Any, ...]:
    """TRL's per-token log-probs of the completions (and entropies) under the current weights."""
    if any(rows.get(name) is not None for name in ("pixel_values", "num_images")):
        raise ValueError(
            "images: the completions cannot be scored again, as num_iterations or "
            "steps_per_generation above one step per batch and objectives of entropy need; take "
            "one optimiser step per batch (num_iterations=1, steps_per_generation left out)"
        )
    names = ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask")
    prompt, completion, before, after = (rows[name] for name in names)
    result: tuple[Any, ...] = trainer._get_per_token_logps_and_entropies(
        trainer.model, torch.cat([prompt, completion], 1), torch.cat([before, after], 1),
        completion.shape[1], trainer.args.per_device_train_batch_size, **named,
    )  # fmt: skip
    return result


@torch.no_grad()
def mean_entropy(trainer: Any, output: dict[str, Any]) -> Tensor:
    """Mean entropy over the tokens of each completion, of all processes."""
    spread, mask = score_rows(trainer, output, compute_entropy=True)[1], in_loss(output)
    mean: Tensor = trainer.accelerator.gather((spread * mask).sum(1) / mask.sum(1).clamp(min=1))
    return mean


POOLED = 4096
"""Groups whose figures are logged together at most."""


class BestOfKLog:
    """Unbiased max@k and pass@k of all groups since TRL last logged, with their bands."""

    def __init__(self, k: int, passing: float) -> None:
        self.k, self.passing = k, finite_number("passing", passing)
        self.groups: dict[int, list[list[float]]] = {}

    def add(self, metrics: Any, rewards: Tensor) -> None:
        """Write figures of rewards (P, n) into TRL's metrics, which it empties when it logs."""
        if "unscored" not in metrics:
            self.groups[id(metrics)] = []
        pool = self.groups[id(metrics)]
        pool += rewards.tolist()
        del pool[:-POOLED]
        metrics["unscored"].extend(rewards.isnan().float().mean(dim=1).tolist())
        values = [reward for group in pool for reward in group]
        ids = [place for place, group in enumerate(pool) for _ in group]
        for name, value in best_of_k_metrics(values, ids, k=self.k, passing=self.passing).items():
            metrics[name] = [value]


def log_best_of_k(trainer: Any, *, k: int = 1, passing: float = 1.0) -> None:
    """Let any `GRPOTrainer` log unbiased pass@k and max@k with bands, in training and evaluation.

    Call it once, before `train`. The trainer's own objective stays as it is.

    Args:
        trainer: TRL's GRPOTrainer, or one made from it.
        k: logged beside 1, 2, 4, … up to the samples of a prompt.
        passing: a reward of at least this is a pass.
    """
    calculate, log = trainer._calculate_rewards, BestOfKLog(k, passing)
    generate = trainer._generate_and_score_completions

    def calculated(*args: Any, **named: Any) -> Tensor:
        columns: Tensor = calculate(*args, **named)
        training = trainer.model.training
        n = trainer.num_generations if training else trainer.num_generations_eval
        rewards = combined(columns.cpu(), trainer.reward_weights.cpu(), n)
        log.add(trainer._metrics["train" if training else "eval"], rewards)
        return columns

    def generated(inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = generate(inputs)
        check_prompts(trainer, output)
        return output

    trainer._calculate_rewards, trainer._generate_and_score_completions = calculated, generated


def progress_of(state: Any) -> float:
    """Share of the run done, for schedules."""
    return min(float(state.global_step / max(state.max_steps, 1)), 1.0)


def for_loss(batch: dict[str, Any]) -> dict[str, Any]:
    """The micro-batch without π_old: TRL's ratio is then 1 and its gradient A ∇log π."""
    return {name: value for name, value in batch.items() if name not in (REWARDS, SCORES, OLD)}


def renew_advantages(trainer: Any, batches: Sequence[dict[str, Any]]) -> float:
    """Write the exact advantages of one optimiser step's groups, of all processes together.

    Returns:
        The effective share of their samples, the same on all processes.
    """
    names = [name for name in (REWARDS, SCORES) if name in batches[0]]
    columns = [torch.cat([batch[name] for batch in batches]).double() for name in names]
    mine = torch.stack([log_ratios(trainer, batches), *columns], dim=-1)
    everyone = trainer.accelerator.gather(mine).cpu().unflatten(0, (-1, trainer.num_generations))
    log_ratio, rewards, *scores = everyone.unbind(dim=-1)
    inputs: dict[str, Any] = {"log_ratio": log_ratio, "progress": progress_of(trainer.state)}
    inputs |= zip(["scores"], scores)
    advantages, result = advantages_of_step(
        trainer.training_objective,
        lambda objective: by_group(objective, rewards, **inputs),
        log_ratio,
        ~rewards.isnan(),
        inputs["progress"],
        trainer.num_generations,
    )
    start = trainer.accelerator.process_index * len(mine)
    own = advantages.reshape(-1)[start : start + len(mine)]
    for batch, part in zip(batches, own.split([len(batch[REWARDS]) for batch in batches])):
        batch["advantages"] = part.to(batch["advantages"])
    for name, value in result.items():
        trainer._metrics["train"][name].append(value)
    return result["effective_share"]


@torch.no_grad()
def log_ratios(trainer: Any, batches: Sequence[dict[str, Any]]) -> Tensor:
    """(rows,): log π_θ − log π_old of each completion, over the tokens of the loss, in float64."""
    result = []
    for batch in batches:
        moved = score_rows(trainer, batch)[0].double() - batch[OLD].double()
        result.append(torch.where(in_loss(batch).bool(), moved, 0.0).sum(dim=1))
    return torch.cat(result)
