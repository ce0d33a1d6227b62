"""bestofk's objectives in TRL: `GRPOTrainer` with the advantages of any objective.

    from bestofk.adapters.trl import BestOfKTrainer
    BestOfKTrainer(model, rewards, args=GRPOConfig(num_generations=16), objective="max@8", ...)

TRL has the rewards of all processes on every process, and the n samples of a prompt side by side,
until it makes its advantages. There ours are made over whole groups and replace TRL's own. With
several optimiser steps per batch they are made again for each step, from the log-ratios of its
groups. Checked with TRL 1.10 to 1.16.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from bestofk.adapters.groups import smallest_group
from bestofk.adapters.inner_steps import (
    check_floor,
    check_inputs,
    check_version,
    warn_first_step,
)
from bestofk.objectives import Objective, ObjectiveWarning, has_signal

from .grpo_rows import (
    REWARDS,
    SCORES,
    BestOfKLog,
    InnerStepsEnded,
    by_group,
    check_prompts,
    check_rows,
    combined,
    for_loss,
    in_loss,
    log_best_of_k,
    mean_entropy,
    progress_of,
    renew_advantages,
    replace_last,
)
from .grpo_settings import (
    NAME_SCORER,
    as_objective,
    check_data,
    check_model,
    check_scaler,
    check_trainer,
    exact_steps,
    prepared,
    scorer_column,
)
from .replies import RolloutsWithReplies, any_template, conversations, take_rollouts

__all__ = ["BestOfKMixin", "BestOfKTrainer", "RolloutsWithReplies", "log_best_of_k"]

check_version("TRL", version("trl"), (1, 10))
_Host: Any = object


class BestOfKMixin(_Host):
    """In front of a `GRPOTrainer` (Unsloth's, Axolotl's, your own) it trains an objective.

    class Mine(BestOfKMixin, SomeGRPOTrainer):
        training_objective = "max@8"  # or objective="max@8" as an argument
    """

    training_objective: Any = None
    """The Objective; on a class, its default. (`Trainer.objective` belongs to transformers.)"""
    _buffered_inputs: Any
    _columns: Tensor | None
    rollout_func: Any = None
    _ended = False
    """Whether the inner steps on the present batch have ended."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *by_place: Any,
        objective: str | Objective | None = None,
        ess_floor: float = 0.5,
        loss_type: str | None = None,
        passing: float = 1.0,
        scorer: str | None = None,
        **named: Any,
    ) -> None:
        """
        Args:
            model, reward_funcs, args, by_place, named: the host trainer's, passed on by name.
            objective: "max@8", "max@8/60%/mean", or an Objective of `bestofk.objective`, which
                has options for several optimiser steps per batch (truncate, trust_region).
            ess_floor: with several optimiser steps per batch, the steps on a batch end when the
                effective share of its samples falls below this; 0 never ends them.
            loss_type: TRL's; None replaces TRL's default by the unbiased "dr_grpo".
            passing: rewards of at least this count as a pass in the logged pass@k; an objective
                with a threshold uses that.
            scorer: for select@k, the name of the reward function whose values choose a sample and
                pay nothing; the other functions pay. A sample that it gives None is unscored.

        Raises:
            ValueError: n is too small for the objective, or a setting would make the update
                something else than the objective's gradient.
        """
        if not isinstance(self, GRPOTrainer):
            raise TypeError(
                f"{type(self).__name__}: BestOfKMixin goes in front of a trainer made from TRL's "
                "GRPOTrainer, as in class Mine(BestOfKMixin, GRPOTrainer)"
            )
        self.training_objective: Objective = as_objective(
            type(self).training_objective if objective is None else objective
        )
        absent = {"answers", "tokens"}
        check_inputs(self.training_objective, "TRL", absent, scorer, NAME_SCORER)
        threshold = self.training_objective.threshold
        self._best_of_k = BestOfKLog(
            self.training_objective.k, passing if threshold is None else threshold
        )
        args = prepared(self.training_objective, GRPOConfig() if args is None else args, loss_type)
        self.exact_steps = exact_steps(self.training_objective, args)
        self.ess_floor = check_floor(ess_floor, "ess_floor")
        if self.exact_steps:
            check_scaler(self.ess_floor, args)
        cautions = check_trainer(type(self), BestOfKMixin, several_steps=self.exact_steps)
        theirs = inspect.signature(GRPOTrainer.__init__)
        by_name = theirs.bind_partial(self, model, reward_funcs, args, *by_place).arguments
        del by_name["self"]
        arguments = dict(**by_name, **named)  # a name given twice is an error
        cautions += check_data(arguments)
        rollouts = take_rollouts(arguments)
        with any_template() if rollouts else nullcontext():
            super().__init__(**arguments)
        self.rollout_func = rollouts or self.rollout_func
        self._scorer = scorer_column(scorer, self.reward_func_names)
        if self._scorer is not None:
            self.reward_weights[self._scorer] = 0.0
        if not self.reward_weights.any():
            raise ValueError("no reward function pays: add one, or give one a weight other than 0")
        cautions += check_model(self.model, several_steps=self.exact_steps)
        for caution in cautions:
            if args.process_index == 0:
                warnings.warn(caution, ObjectiveWarning, stacklevel=2)

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        if isinstance(self.rollout_func, RolloutsWithReplies):
            completions = conversations(inputs, completions)
        columns: Tensor = super()._calculate_rewards(
            inputs, prompts, completions, completion_ids_list
        )
        self._columns, self._judged = columns, completion_ids_list
        return columns

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        mode = "train" if self.model.training else "eval"
        n = self.num_generations if mode == "train" else self.num_generations_eval
        metrics, self._columns, self._judged = self._metrics[mode], None, ()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        theirs = output["advantages"]
        columns = check_rows(self._columns, self._judged, output, self.accelerator.num_processes)
        check_prompts(self, output)
        start = self.accelerator.process_index * len(theirs)
        own = slice(start, start + len(theirs))
        rewards = combined(columns.cpu(), self.reward_weights.cpu(), n)  # a few numbers
        further: dict[str, Any] = {}
        if self._scorer is not None:
            output[SCORES] = columns[own, self._scorer]
            further["scores"] = columns[:, self._scorer].cpu().reshape(-1, n)
            rewards = rewards.masked_fill(further["scores"].isnan(), torch.nan)
        trained = rewards
        if self.mask_truncated_completions:  # TRL leaves them out of its loss
            kept = self.accelerator.gather(in_loss(output).any(dim=1)).cpu()
            trained = rewards.where(kept.reshape(rewards.shape), torch.nan)
        advantages = self._advantages(trained, output, metrics, **further).reshape(-1)
        output["advantages"] = advantages[own].to(theirs)
        if self.exact_steps and mode == "train":
            output[REWARDS] = trained.reshape(-1)[own].to(theirs.device)
        replace_last(self._logs["advantages"], advantages.tolist())
        self._best_of_k.add(metrics, rewards)
        silent = ~has_signal(advantages.reshape(-1, n))
        metrics["no_signal"].extend(silent.float().tolist())
        return output

    def _advantages(
        self, rewards: Tensor, output: dict[str, Any], metrics: Any, **inputs: Any
    ) -> Tensor:
        """(P, n): the objective's advantages of samples that were just drawn."""
        objective, state = self.training_objective, self.state
        inputs["progress"] = progress_of(state)
        smallest = smallest_group(objective, inputs["progress"])
        if rewards.shape[-1] < smallest and not self.model.training:
            return torch.zeros_like(rewards)  # an evaluation with fewer samples: metrics only
        if "rng" in objective.needs:
            seed = [self.args.seed, state.global_step, self._step]
            inputs["rng"] = np.random.default_rng(seed)
        if "entropy" in objective.needs:
            inputs["entropy"] = mean_entropy(self, output).cpu().reshape(rewards.shape)
        if self.exact_steps:
            inputs["log_ratio"] = torch.zeros_like(rewards)
        too_small = (~rewards.isnan()).sum(dim=1) < smallest
        metrics["dropped"].extend(too_small.float().tolist())
        return by_group(objective, rewards, **inputs)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """As TRL does it; for several exact steps without its shuffling, which splits groups."""
        if not (self.exact_steps and self.model.training):
            batch: dict[str, Any] = super()._prepare_inputs(generation_batch)
            return batch
        micro, accumulated = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        inner = self._step % (micro * self.num_iterations)
        if inner == 0 or self._buffered_inputs is None:
            steps = micro * self.num_iterations // accumulated
            if self._step == 0 and self.state.global_step % steps:
                warnings.warn(
                    f"resumed at step {self.state.global_step}, inside a generation batch of "
                    f"{steps} optimiser steps: TRL does not save its samples, so a new batch is "
                    f"drawn here; a save_steps that is a multiple of {steps} avoids it",
                    ObjectiveWarning,
                    stacklevel=2,
                )
            rows = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs, self._ended = split_tensor_dict(rows, micro), False
        at = self._step % micro
        if at % accumulated == 0:
            if not self._ended:
                share = renew_advantages(self, self._buffered_inputs[at : at + accumulated])
                self._ended = inner >= accumulated and share < self.ess_floor
                if inner == 0 and self.accelerator.is_main_process:
                    warn_first_step(share, self.ess_floor, "ess_floor")
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


class BestOfKTrainer(BestOfKMixin, GRPOTrainer):
    """TRL's `GRPOTrainer`, trained for best-of-k. Arguments: see `BestOfKMixin`."""
