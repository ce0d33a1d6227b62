"""verl's actor with exact off-policy weights, made again before each optimiser step.

In the worker, before verl trains on a mini-batch: score it under the current weights, gather uid,
reward, liveness and log-ratio of its rows over the data-parallel ranks, let `bestofk.objectives`
make the weights, and write them where verl reads advantages. `verl_trainer` has put whole groups
into the mini-batch. The loss is then the unclipped −(1/rows) Σ A_i Σ_t log π(y_it). When the
policy has moved too far from the batch, its remaining optimiser steps are left out.
"""

from __future__ import annotations

import functools
import json
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu

from bestofk.adapters.inner_steps import weigh_and_measure
from bestofk.adapters.verl_rollouts import RolloutRow, row_weights
from bestofk.adapters.verl_settings import NAME, chosen, ess_floor_of
from bestofk.objectives import Objective

ENDED = "_bestofk_ended"
"""Attribute of a worker: the trainer's step on whose batch the inner steps have ended."""
WEIGHED: ContextVar[bool] = ContextVar("weighed", default=False)
"""Whether the mini-batch in training has exact weights."""


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
    if not WEIGHED.get():
        raise RuntimeError(
            "policy_loss.loss_mode=bestofk: this worker did not make the weights of the mini-batch "
            "(another worker class, or verl without its V1 trainer); set loss_mode=vanilla and "
            "take one optimiser step per batch"
        )
    if rollout_is_weights is not None:
        raise ValueError(
            "policy_loss.loss_mode=bestofk: algorithm.rollout_correction.rollout_is multiplies the "
            "loss with each sample's own ratio; set it to null"
        )
    info = {} if config is None else config.global_batch_info
    loss = core_algos.agg_loss(-advantages * log_prob, response_mask, loss_agg_mode, **info)
    return loss, {}


def weigh_each_step(workers: Any) -> None:
    """Let verl's TrainingWorker make the weights before it trains on a mini-batch."""
    train_batch = workers.TrainingWorker.train_batch

    @functools.wraps(train_batch)
    def weighed(self: Any, data: Any) -> Any:
        reported = tu.get(data, NAME)
        if reported is None:
            return train_batch(self, data)
        from_trainer = json.loads(reported)
        ended = getattr(self, ENDED, None) == from_trainer["step"]
        result = {} if ended else weigh(self, data, from_trainer)
        if ended or result["effective_share"] < ess_floor_of(from_trainer["options"]):
            setattr(self, ENDED, from_trainer["step"])
            return without_update(self, data, result)
        token = WEIGHED.set(True)
        try:
            output = train_batch(self, data)
        finally:
            WEIGHED.reset(token)
        if output is not None:
            tu.get(output, "metrics").update(result | {"inner_steps_ended": 0.0})
        return output

    workers.TrainingWorker.train_batch = weighed


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


def weigh(worker: Any, data: Any, from_trainer: dict[str, Any]) -> dict[str, float]:
    """Write `advantages` of this rank's rows of a mini-batch; return what is logged.

    Args:
        worker: verl's TrainingWorker.
        data: the rows, as nested tensors.
        from_trainer: the trainer's `algorithm.bestofk`, `progress` and number of the batch, `step`.
    """
    masks = [mask.bool() for mask in data["response_mask"].unbind()]
    ratios = log_ratios(worker, data, masks)
    rewards = [float(scores.sum()) for scores in data["rm_scores"].unbind()]
    trained = [bool(mask.any()) for mask in masks]
    group = worker.engine.get_data_parallel_group()
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    everyone: list[Any] = [None] * ranks
    mine = list(zip(tu.get(data, "uid"), rewards, trained, ratios, strict=True))
    dist.all_gather_object(everyone, mine, group)
    rows = [row for part in everyone for row in part]
    log_ratio = torch.tensor([row[3] for row in rows], dtype=torch.float64)
    live = torch.tensor([row[2] for row in rows])
    scores = torch.tensor([row[1] for row in rows], dtype=torch.float64)
    named = [RolloutRow(str(row[0]), str(i)) for i, row in enumerate(rows)]
    inputs: dict[str, Any] = {"log_ratio": log_ratio, "progress": from_trainer["progress"]}

    def make(objective: Objective) -> torch.Tensor:
        return row_weights(objective, scores, named, live, **inputs)

    objective = chosen({NAME: from_trainer["options"]})
    weights, result = weigh_and_measure(objective, make, log_ratio, live, from_trainer["progress"])
    start = sum(len(part) for part in everyone[:rank])
    own = weights[start : start + len(mine)].to(data["old_log_probs"].dtype)
    pieces = [float(weight) * mask.to(own.dtype) for weight, mask in zip(own, masks, strict=True)]
    data["advantages"] = torch.nested.as_nested_tensor(pieces, layout=torch.jagged)
    return result


def log_ratios(worker: Any, data: Any, masks: list[torch.Tensor]) -> list[float]:
    """log π_θ − log π_old of each row over the tokens of the loss, by verl's own scoring."""
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
    rows = zip(now.unbind(), data["old_log_probs"].unbind(), masks, strict=True)
    return [float((new.double() - old.cpu().double())[mask.cpu()].sum()) for new, old, mask in rows]
