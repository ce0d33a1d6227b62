"""bestofk's objectives in TRL: `GRPOTrainer` with the weights of any objective.

    from bestofk.adapters.trl import BestOfKTrainer
    BestOfKTrainer(model, rewards, args=GRPOConfig(num_generations=16), objective="max@8", ...)

TRL has the rewards of all processes on every process, and the n samples of a prompt side by side,
until it makes its advantages. There the weights are made over whole groups and replace TRL's own.
With several optimiser steps per batch they are made again for each step, from the log-ratios of
its groups (`trl_off_policy`). Checked with TRL 1.10 and 1.16.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from bestofk.adapters.trl_host import check_host, check_model, check_rows, replaced_methods
from bestofk.adapters.trl_off_policy import InnerStepsEnded, for_loss, keep_rewards, weigh_step
from bestofk.adapters.trl_options import as_objective, by_name, exact_steps, floor_of, prepared
from bestofk.adapters.trl_rows import (
    combined,
    in_loss,
    progress_of,
    record,
    replace_last,
    score_rows,
    shared,
)
from bestofk.objectives import Objective, ObjectiveWarning

_Host: Any = object


def _of_class(trainer: Any) -> Any:
    """What a trainer's class names as its objective; `goal` is how earlier versions called it."""
    named = trainer.training_objective
    old = None if isinstance(trainer.goal, property) else trainer.goal
    if named is None and old is not None:
        warnings.warn(
            f"the attribute `goal` of {trainer.__name__} is now called `training_objective`",
            DeprecationWarning,
            stacklevel=3,
        )
    return old if named is None else named


class BestOfKMixin(_Host):
    """In front of a `GRPOTrainer` (Unsloth's, Axolotl's, your own) it trains an objective.

    class Mine(BestOfKMixin, SomeGRPOTrainer):
        training_objective = "max@8"  # or objective="max@8" as an argument
    """

    training_objective: Any = None
    """The Objective; on a class, its default. (`Trainer.objective` belongs to transformers.)"""
    _buffered_inputs: Any
    _ended = False
    """Whether the inner steps on the present batch have ended."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *others: Any,
        objective: str | Objective | None = None,
        truncate: float | None = None,
        trust_region: float | tuple[float, float] | None = None,
        ess_floor: float = 0.5,
        loss_type: str | None = None,
        passing: float = 1.0,
        **named: Any,
    ) -> None:
        """
        Args:
            model, reward_funcs, args, others, named: the host trainer's, passed on by name.
            objective: "max@8", "max@8/60%/mean", or an Objective of `bestofk.objective`.
            truncate, trust_region: options of `bestofk.objective` for several optimiser steps per
                batch, where the objective is given as a string.
            ess_floor: with several optimiser steps per batch, the steps on a batch end when the
                effective share of its samples, exp(-2kD), falls below this; 0 never ends them.
            loss_type: TRL's; None replaces TRL's default by the unbiased "dr_grpo".
            passing: rewards of at least this count as a pass in the logged pass@k; an objective
                with a threshold uses that.

        Raises:
            ValueError: n is too small for the objective, or a setting would make the update
                something else than the objective's gradient.
        """
        replaced = replaced_methods(type(self), BestOfKMixin)
        given = _of_class(type(self)) if objective is None else objective
        self.training_objective: Objective = as_objective(
            given, truncate=truncate, trust_region=trust_region
        )
        self.passing = (
            passing
            if self.training_objective.threshold is None
            else self.training_objective.threshold
        )
        args = prepared(self.training_objective, GRPOConfig() if args is None else args, loss_type)
        self.exact_steps = exact_steps(self.training_objective, args)
        self.ess_floor = floor_of(ess_floor, args, several_steps=self.exact_steps)
        cautions = check_host(replaced, self.exact_steps)
        named |= by_name(others, named)
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, **named)
        for caution in [*cautions, *check_model(self.model, self.exact_steps)]:
            if args.process_index == 0:
                warnings.warn(caution, ObjectiveWarning, stacklevel=2)

    @property
    def goal(self) -> Objective:
        """Deprecated: `training_objective`."""
        warnings.warn("goal is now called training_objective", DeprecationWarning, stacklevel=2)
        objective: Objective = self.training_objective
        return objective

    def _calculate_rewards(self, *args: Any, **named: Any) -> Tensor:
        self._columns: Tensor | None = super()._calculate_rewards(*args, **named)
        self._judged = named["completion_ids_list"] if named else args[-1]
        return self._columns

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        mode = "train" if self.model.training else "eval"
        n = self.num_generations if mode == "train" else self.num_generations_eval
        metrics, self._columns, self._judged = self._metrics[mode], None, ()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        theirs = output["advantages"]
        columns = check_rows(self._columns, self._judged, output, self.accelerator.num_processes)
        start = self.accelerator.process_index * len(theirs)
        own = slice(start, start + len(theirs))
        rewards = combined(columns.cpu(), self.reward_weights.cpu(), n)  # a few numbers
        live = self._live(rewards, output)
        weights = self._weigh(rewards, live, output, metrics).reshape(-1)
        output["advantages"] = weights[own].to(theirs)
        if self.exact_steps and mode == "train":
            keep_rewards(output, rewards.reshape(-1)[own], live.reshape(-1)[own])
        replace_last(self._logs["advantages"], weights.tolist())
        record(metrics, rewards, weights.reshape(-1, n), self.training_objective.k, self.passing)
        return output

    def _live(self, rewards: Tensor, output: dict[str, Any]) -> Tensor:
        """(P, n): False for a row that is unscored, or that TRL leaves out of the loss."""
        live = ~rewards.isnan()
        if self.mask_truncated_completions:
            kept = self.accelerator.gather(in_loss(output).any(dim=1))
            live &= kept.cpu().reshape(rewards.shape)
        return live

    def _weigh(self, rewards: Tensor, live: Tensor, output: dict[str, Any], metrics: Any) -> Tensor:
        """(P, n): the objective's weights of samples that were just drawn."""
        objective, state = self.training_objective, self.state
        inputs: dict[str, Any] = {"progress": progress_of(state)}
        least = max(term.least for term in objective.at(inputs["progress"]))
        if rewards.shape[-1] < least and not self.model.training:
            return torch.zeros_like(rewards)  # an evaluation with fewer samples: metrics only
        if "rng" in objective.needs:
            seed = [self.args.seed, state.global_step, self._step]
            inputs["rng"] = np.random.default_rng(seed)
        if "entropy" in objective.needs:
            inputs["entropy"] = self._entropy(output).cpu().reshape(rewards.shape)
        if self.exact_steps:
            inputs["log_ratio"] = torch.zeros_like(rewards)
        weights, whole = shared(objective, rewards, live, **inputs)
        metrics["dropped"].extend((~whole).float().flatten().tolist())
        return weights

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """As TRL does it; for several exact steps without its shuffling, which splits groups."""
        if not (self.exact_steps and self.model.training):
            batch: dict[str, Any] = super()._prepare_inputs(generation_batch)
            return batch
        micro, accumulated = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        inner = self._step % (micro * self.num_iterations)
        if inner == 0 or self._buffered_inputs is None:
            rows = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs, self._ended = split_tensor_dict(rows, micro), False
        at = self._step % micro
        if at % accumulated == 0:
            if not self._ended:
                share = weigh_step(self, self._buffered_inputs[at : at + accumulated])
                self._ended = inner >= accumulated and share < self.ess_floor
            self._metrics["train"]["inner_steps_ended"].append(float(self._ended))
        if self._ended:
            raise InnerStepsEnded
        return for_loss(self._buffered_inputs[at])

    def training_step(self, *args: Any, **named: Any) -> Tensor:
        """As TRL does it; after the inner steps of a batch have ended, nothing is computed.

        Without a gradient the optimiser changes neither the weights nor its own state.
        """
        try:
            loss: Tensor = super().training_step(*args, **named)
        except InnerStepsEnded:
            self._step += 1
            return torch.zeros((), device=self.accelerator.device)
        return loss

    @torch.no_grad()
    def _entropy(self, output: dict[str, Any]) -> Tensor:
        """Mean entropy over the tokens of each completion, of all processes."""
        if "pixel_values" in output:
            raise ValueError(
                f"objective {self.training_objective} looks at entropy: text models only"
            )
        spread = score_rows(self, output, compute_entropy=True)[1]
        kept = in_loss(output)
        return self.accelerator.gather((spread * kept).sum(1) / kept.sum(1).clamp(min=1))


class BestOfKTrainer(BestOfKMixin, GRPOTrainer):
    """TRL's `GRPOTrainer`, trained for best-of-k. Arguments: see `BestOfKMixin`."""
