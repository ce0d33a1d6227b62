"""verl's actor with exact off-policy advantages, made again before each optimiser step.

In the worker, before verl trains on a mini-batch: score it under the current weights, gather uid,
reward, liveness and log-ratio of its rows over the data-parallel ranks, let `bestofk.objectives`
make the advantages, and write them where verl reads its own. `ppo_trainer` has put whole groups
into the mini-batch. The loss is then the unclipped −(1/rows) Σ A_i Σ_t log π(y_it). When the
policy has moved too far from the batch, its remaining optimiser steps are left out; the first
step of a batch is always taken.
"""

from __future__ import annotations

import functools
import json
from contextvars import ContextVar
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu

from bestofk.adapters.inner_steps import advantages_of_step, warn_first_step

from .ppo_settings import FLOOR, NAME, chosen, ess_floor_of
from .rollout_rows import RolloutRow, row_advantages, scores_of

BEGUN, ENDED = "_bestofk_begun", "_bestofk_ended"
"""Attributes of a worker: the trainer's step on whose batch inner steps have begun, have ended."""
RENEWED: ContextVar[bool] = ContextVar("renewed", default=False)
"""Whether the mini-batch in training has exact advantages of its own."""


def unclipped(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The policy loss `bestofk`: −A log π, aggregated as verl aggregates; no ratio, no clip."""
    if not RENEWED.get():
        raise RuntimeError(
            "policy_loss.loss_mode=bestofk: this worker did not make the advantages of the "
            "mini-batch (another worker class, or verl without its V1 trainer); set "
            "loss_mode=vanilla and take one optimiser step per batch"
        )
    info = {} if config is None else config.global_batch_info
    loss = core_algos.agg_loss(-advantages * log_prob, response_mask, loss_agg_mode, **info)
    return loss, {}


def renew_before_each_step(workers: Any) -> None:
    """Let verl's TrainingWorker make the advantages before it trains on a mini-batch."""
    train_batch = workers.TrainingWorker.train_batch

    @functools.wraps(train_batch)
    def renewed(self: Any, data: Any) -> Any:
        reported = tu.get(data, NAME)
        if reported is None:
            return train_batch(self, data)
        told = json.loads(reported)
        step, floor = told["step"], ess_floor_of(told["options"])
        first, ended = getattr(self, BEGUN, None) != step, getattr(self, ENDED, None) == step
        setattr(self, BEGUN, step)
        result = {} if ended else renew_advantages(self, data, told)
        if first and dist.get_rank() == 0:
            warn_first_step(result["effective_share"], floor, FLOOR)
        if ended or (not first and result["effective_share"] < floor):
            setattr(self, ENDED, step)
            return without_update(self, data, result)
        token = RENEWED.set(True)
        try:
            output = train_batch(self, data)
        finally:
            RENEWED.reset(token)
        if output is not None:
            tu.get(output, "metrics").update(result | {"inner_steps_ended": 0.0})
        return output

    workers.TrainingWorker.train_batch = renewed


def without_update(worker: Any, data: Any, result: dict[str, float]) -> Any:
    """What verl expects of a mini-batch, where neither weights nor optimiser state may move.

    The learning rate is stepped once per batch, by its last mini-batch.
    """
    metrics: dict[str, Any] = result | {"inner_steps_ended": 1.0}
    if tu.get(data, "update_lr_scheduler", default=False):
        metrics["lr"] = worker.engine.lr_scheduler_step()
    if not worker.engine.is_mp_src_rank_with_outputs():
        return None
    return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": metrics})


def renew_advantages(worker: Any, data: Any, told: dict[str, Any]) -> dict[str, float]:
    """Write `advantages` of this rank's rows of a mini-batch; return what is logged.

    Args:
        worker: verl's TrainingWorker.
        data: the rows, as nested tensors.
        told: the trainer's `algorithm.bestofk`, `progress` and number of the batch, `step`.
    """
    masks, options = [mask.bool() for mask in data["response_mask"].unbind()], told["options"]
    old = "rollout_log_probs" if options.get("correct_sampler") else "old_log_probs"
    mine = [
        list(tu.get(data, "uid")),
        [bool(mask.any()) for mask in masks],
        [float(scores.sum()) for scores in data["rm_scores"].unbind()],
        log_ratios(worker, data, masks, old),
    ]
    if scorer := options.get("scorer"):
        mine.append(scores_of(tu.get(data, "extra_fields"), scorer).tolist())
    group = worker.engine.get_data_parallel_group()
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group)
    uids, live, *numbers = (list(chain(*column)) for column in zip(*everyone, strict=True))
    rewards, log_ratio, *scores = (torch.tensor(each, dtype=torch.float64) for each in numbers)
    rows, trained = [RolloutRow(str(uid), str(i)) for i, uid in enumerate(uids)], torch.tensor(live)
    inputs: dict[str, Any] = {"log_ratio": log_ratio, "progress": told["progress"]}
    inputs |= zip(["scores"], scores)
    advantages, result = advantages_of_step(
        chosen({NAME: options}),
        lambda objective: row_advantages(objective, rewards, rows, trained, **inputs),
        log_ratio,
        trained,
        told["progress"],
        len(rows) // len(set(uids)),
    )
    start = sum(len(part[0]) for part in everyone[: dist.get_rank(group)])
    own = advantages[start : start + len(masks)].to(data["old_log_probs"].dtype)
    pieces = [float(one) * mask.to(own.dtype) for one, mask in zip(own, masks, strict=True)]
    data["advantages"] = torch.nested.as_nested_tensor(pieces, layout=torch.jagged)
    return result


def log_ratios(worker: Any, data: Any, masks: list[torch.Tensor], old: str) -> list[float]:
    """log π_θ − log π_old of each row over the tokens of the loss, by verl's own scoring.

    π_old is the learner before its first step, or the sampler itself: the field `old` of the data.
    """
    from verl.workers.utils.padding import response_from_nested

    scored, engine = data.copy(), worker.engine_config
    tu.assign_non_tensor(
        scored,
        compute_loss=False,
        calculate_entropy=False,
        micro_batch_size_per_gpu=engine.micro_batch_size_per_gpu,  # it divides the mini-batch
        max_token_len_per_gpu=engine.max_token_len_per_gpu,
    )
    output = worker.infer_batch(scored)
    now = response_from_nested(output["log_probs"], data["response_mask"].cpu())
    rows = zip(now.unbind(), data[old].unbind(), masks, strict=True)
    return [float((new.double() - was.cpu().double())[mask.cpu()].sum()) for new, was, mask in rows]
