"""verl's V1 trainer: settings checked at its start, whole groups in mini-batches, unbiased metrics.

Methods are wrapped, so that every trainer made from `PPOTrainer` has them.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any

from bestofk.adapters.groups import best_of_k_metrics
from bestofk.adapters.inner_steps import check_version
from bestofk.objectives import ObjectiveWarning

from .ppo_settings import (
    LEAST,
    LEGACY,
    NAME,
    NAME_SCORER,
    check_environment,
    check_settings,
    chosen,
    exact_loss,
    options_of,
)
from .rollout_rows import RolloutRow, last_rows, scores_of

INPUTS: ContextVar[Mapping[str, Any]] = ContextVar("inputs")
"""While advantages are computed: the share of the run done, the batch's rows and their scores."""


def around(wrapper: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of methods, from a function that is called with the method and its arguments."""

    def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapped(*args: Any, **named: Any) -> Any:
            return wrapper(method, *args, **named)

        return wrapped

    return decorated


def extend_trainer(module: Any) -> None:
    """Wrap the methods of `PPOTrainer` in `verl.trainer.ppo.v1.trainer_base`."""
    trainer = module.PPOTrainer
    for name, wrapper in WRAPPERS.items():
        setattr(trainer, name, wrapper(getattr(trainer, name)))


def refuse_legacy_trainer(module: Any) -> None:
    """`verl.trainer.ppo.ray_trainer`: its trainer hands over neither rollouts nor progress."""
    module.RayPPOTrainer.__init__ = _refused(module.RayPPOTrainer.__init__)


@around
def _refused(init: Any, self: Any, config: Any, *args: Any, **named: Any) -> None:
    if config.algorithm.adv_estimator == NAME or exact_loss(config):
        check_version("verl", version("verl"), LEAST)
        raise ValueError(LEGACY)
    init(self, config, *args, **named)


@around
def _checked(init: Any, self: Any, config: Any, *args: Any, **named: Any) -> None:
    if config.algorithm.adv_estimator == NAME or exact_loss(config):
        for caution in check_settings(config)[1]:
            warnings.warn(f"biased update: {caution}", ObjectiveWarning, stacklevel=3)
    else:
        check_environment(config)
    init(self, config, *args, **named)


@around
def _with_inputs(compute: Any, self: Any, batch: Any, *args: Any, **named: Any) -> Any:
    if self.config.algorithm.adv_estimator != NAME:
        return compute(self, batch, *args, **named)
    scorer = options_of(self.config.algorithm).get("scorer")
    inputs: dict[str, Any] = {"progress": progress_of(self)}
    inputs["rows"] = [RolloutRow.of_key(key) for key in batch.keys]
    if scorer is not None:
        inputs["scores"] = scores_of(list(from_queue(batch, "extra_fields")), scorer)
        if inputs["scores"].isnan().all():
            raise ValueError(f"no reward of this batch has a {scorer!r}: {NAME_SCORER}")
    token = INPUTS.set(inputs)
    try:
        return compute(self, batch, *args, **named)
    finally:
        INPUTS.reset(token)


def from_queue(batch: Any, field: str) -> Any:
    """A field of the batch's rows, in the order of its keys."""
    from verl.trainer.ppo.v1 import trainer_base

    names = {"keys": batch.keys, "partition_id": batch.partition_id}
    return trainer_base.tq.kv_batch_get(**names, select_fields=[field])[field]


@around
def _with_objective(update: Any, self: Any, batch: Any, *args: Any, **named: Any) -> Any:
    """The workers learn the objective and the progress with each batch."""
    if exact_loss(self.config):
        options = options_of(self.config.algorithm)
        news = {"options": options, "progress": progress_of(self), "step": self.global_steps}
        batch.extra_info[NAME] = json.dumps(news)
    return update(self, batch, *args, **named)


@around
def _whole(balance: Any, self: Any, batch: Any, *args: Any, **named: Any) -> Any:
    """After verl's balancing, which scatters siblings over mini-batches."""
    batch = balance(self, batch, *args, **named)
    if exact_loss(self.config):
        settings = self.config.actor_rollout_ref
        rows = settings.actor.ppo_mini_batch_size * settings.rollout.n
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        lengths = [tag["seq_len"] for tag in batch.tags]
        batch.reorder(whole_groups(batch.keys, lengths, rows=rows, ranks=ranks))
    return batch


def whole_groups(
    keys: Sequence[str], lengths: Sequence[int], *, rows: int, ranks: int
) -> list[int]:
    """An order of the batch in which every mini-batch has whole groups, on all ranks together.

    verl gives rank r the r-th part of the batch, and mini-batch j is the j-th piece of every part.
    Groups come in the order of their uids, which are random; padding fills up. Inside a mini-batch
    rows go to the ranks by length, as verl balances them.

    Args:
        keys: `{uid}_{session}_{part}` of every row.
        lengths: tokens of every row.
        rows: of a mini-batch, on all ranks together.
        ranks: data-parallel ranks.

    Raises:
        ValueError: a rollout of several rows, or groups that do not fit.
    """
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    groups: dict[str, list[int]] = defaultdict(list)
    padding: list[int] = []
    for i, key in enumerate(keys):
        row = RolloutRow.of_key(key)
        if row.part > 0:
            raise ValueError(
                "actor_rollout_ref.actor.policy_loss.loss_mode=bestofk: the agent loop returned a "
                "rollout as several rows, which has no exact off-policy advantages here; set "
                "loss_mode=vanilla and take one optimiser step per batch"
            )
        (padding if row.padding else groups[row.uid]).append(i)
    count = len(keys) // rows
    batches: list[list[int]] = [[] for _ in range(count)]
    for place, uid in enumerate(sorted(groups)):
        batches[place * count // len(groups)] += groups[uid]
    parts: list[list[list[int]]] = [[] for _ in range(ranks)]
    for batch in batches:
        if len(batch) > rows:
            raise ValueError(
                f"a mini-batch of {rows} rows cannot hold the {len(batch)} rows of its whole "
                "groups: too many rollouts of this batch failed"
            )
        batch += [padding.pop() for _ in range(rows - len(batch))]
        sizes = [lengths[i] for i in batch]
        split = get_seqlen_balanced_partitions(sizes, k_partitions=ranks, equal_size=True)
        for part, places in zip(parts, split, strict=True):
            part.append([batch[place] for place in places])
    return [i for part in parts for piece in part for i in piece]


@around
def _with_metrics(
    compute: Any, self: Any, batch: Any, metrics: Any, *args: Any, **named: Any
) -> Any:
    """With an `algorithm.bestofk`, whatever the estimator: `bestofk/pass@4` and others."""
    if options := options_of(self.config.algorithm):
        last = last_rows([RolloutRow.of_key(key) for key in batch.keys])
        rewards = [float(scores.sum()) for scores in from_queue(batch, "rm_scores").unbind()]
        scored, uids = [rewards[i] for i in last.values()], [uid for uid, _ in last]
        figures = best_of_k_metrics(scored, uids, **_logged(options))
        metrics.update({f"bestofk/{name}": value for name, value in figures.items()})
    return compute(self, batch, metrics, *args, **named)


@around
def _unbiased(
    update: Any, self: Any, sources: Any, uids: Any, infos: Any, *args: Any, **named: Any
) -> dict[str, float]:
    """Beside verl's `best@k`, which draws with replacement."""
    metrics: dict[str, float] = update(self, sources, uids, infos, *args, **named)
    if options := options_of(self.config.algorithm):
        metrics |= validation_metrics(sources, uids, infos, **_logged(options))
    return metrics


def validation_metrics(
    sources: Sequence[str],
    uids: Sequence[Any],
    infos: Mapping[str, Sequence[Any]],
    *,
    k: int = 1,
    passing: float = 1.0,
) -> dict[str, float]:
    """`best_of_k_metrics` of each data source."""
    result: dict[str, float] = {}
    for name in [name for name in ("reward", "acc") if name in infos]:
        for source in dict.fromkeys(sources):
            here = [i for i, each in enumerate(sources) if each == source]
            values, ids = [infos[name][i] for i in here], [str(uids[i]) for i in here]
            figures = best_of_k_metrics(values, ids, k=k, passing=passing)
            result |= {f"val-core/{source}/{name}/{key}": one for key, one in figures.items()}
    return result


def _logged(options: Mapping[str, Any]) -> dict[str, Any]:
    """The k and the passing reward of the logged metrics."""
    k = chosen({NAME: options}).k if "objective" in options else 1
    return {"k": k, "passing": options.get("passing", 1.0)}


def progress_of(trainer: Any) -> float:
    """Share of the run done: verl counts its steps from 1."""
    return min(max(trainer.global_steps - 1, 0) / max(trainer.total_training_steps, 1), 1.0)


WRAPPERS: dict[str, Callable[..., Any]] = {
    "__init__": _checked,
    "_balance_batch": _whole,
    "_compute_advantage": _with_inputs,
    "_compute_metrics": _with_metrics,
    "_update_actor": _with_objective,
    "_val_metrics_update": _unbiased,
}
