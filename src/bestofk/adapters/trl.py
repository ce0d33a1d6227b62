"""bestofk's objectives in TRL: `GRPOTrainer` with the weights of any objective.

    from bestofk.adapters.trl import BestOfKTrainer
    BestOfKTrainer(model, rewards, args=GRPOConfig(num_generations=16), objective="max@8", ...)

TRL has the rewards of all processes on every process, the n samples of a prompt side by side, until
its advantages are made; then it shuffles rows. So the weights are made there, over whole groups,
and take the place of TRL's own. Checked with TRL 1.10 and 1.16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from bestofk.adapters.trl_options import as_objective, prepared
from bestofk.objectives import Objective, max_at_k, pass_at_k

_Host: Any = object


class BestOfKMixin(_Host):
    """Put in front of a `GRPOTrainer` (Unsloth's, Axolotl's, your own) it trains an objective.

    class Mine(BestOfKMixin, SomeGRPOTrainer):
        goal = "max@8"               # or objective="max@8" where it is made
    """

    goal: Any = None
    """The Objective, once made; on a class, its default."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *others: Any,
        objective: str | Objective | None = None,
        loss_type: str | None = None,
        passing: float = 1.0,
        **named: Any,
    ) -> None:
        """
        Args:
            model, reward_funcs, args, others, named: the host trainer's, as they are.
            objective: "max@8", "max@8/60%/mean", or an Objective of `bestofk.objective`.
            loss_type: TRL's; None takes the unbiased "dr_grpo" in the place of TRL's default.
            passing: a reward from here on is a pass in the logged pass@k; an objective with a
                threshold uses that.

        Raises:
            ValueError: n is too small for the objective, or an option of `args` would make the
                update something else than the objective's gradient.
        """
        for method in ("_calculate_rewards", "_generate_and_score_completions"):
            if not hasattr(super(), method):
                raise TypeError(
                    f"{type(self).__name__}: BestOfKMixin goes in front of a GRPOTrainer, whose "
                    f"{method} it extends, as in class Mine(BestOfKMixin, GRPOTrainer)"
                )
        self.goal: Objective = as_objective(self.goal if objective is None else objective)
        self.passing = passing if self.goal.threshold is None else self.goal.threshold
        args = prepared(self.goal, GRPOConfig() if args is None else args, loss_type)
        super().__init__(model, reward_funcs, args, *others, **named)

    def _calculate_rewards(self, *args: Any, **named: Any) -> Tensor:
        self._columns: Tensor | None = super()._calculate_rewards(*args, **named)
        return self._columns

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        mode = "train" if self.model.training else "eval"
        n = self.num_generations if mode == "train" else self.num_generations_eval
        self._columns = None
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        theirs, columns = output["advantages"], self._columns
        start = self.accelerator.process_index * len(theirs)
        if columns is None or len(columns) != len(theirs) * self.accelerator.num_processes:
            got = "no rewards" if columns is None else f"{len(columns)} rewards"
            raise RuntimeError(
                f"the host trainer made {got} for {len(theirs)} rows on each of "
                f"{self.accelerator.num_processes} processes: one reward per row is needed to know "
                "the groups, so a trainer that drops or repeats rows cannot be used"
            )
        rewards = combined(columns.cpu(), self.reward_weights.cpu(), n)  # a few numbers
        weights = self._weigh(rewards, output, self._metrics[mode]).reshape(-1)
        output["advantages"] = weights[start : start + len(theirs)].to(theirs)
        replace_last(self._logs["advantages"], weights.tolist())
        self._record(self._metrics[mode], rewards, weights.reshape(-1, n))
        return output

    def _weigh(self, rewards: Tensor, output: dict[str, Any], metrics: Any) -> Tensor:
        """(P, n): the objective's weights, so that the mean over all rows is the mean over prompts.

        A row that is unscored, or that TRL leaves out of the loss, is not live: its group is
        smaller, and its share of the mean goes to its siblings.
        """
        goal, state = self.goal, self.state
        progress = min(state.global_step / max(state.max_steps, 1), 1.0)
        least = max(term.least for term in goal.at(progress))
        if rewards.shape[-1] < least and not self.model.training:
            return torch.zeros_like(rewards)  # an evaluation with fewer samples: metrics only
        live = ~rewards.isnan()
        if self.mask_truncated_completions:
            kept = self.accelerator.gather(in_loss(output).any(dim=1))
            live &= kept.cpu().reshape(rewards.shape)
        inputs: dict[str, Any] = {"progress": progress}
        if "rng" in goal.needs:
            seed = [self.args.seed, state.global_step, self._step]
            inputs["rng"] = np.random.default_rng(seed)
        if "entropy" in goal.needs:
            inputs["entropy"] = self._entropy(output).cpu().reshape(rewards.shape)
        counts = live.sum(dim=1, keepdim=True)
        whole = counts >= least
        metrics["dropped"].extend((~whole).float().flatten().tolist())
        share = rewards.numel() / (whole.sum() * counts).clamp(min=1)
        return goal(rewards, live=live, **inputs) * share.to(rewards.dtype)

    @torch.no_grad()
    def _entropy(self, output: dict[str, Any]) -> Tensor:
        """Mean entropy over the tokens of each completion, of all processes."""
        if "pixel_values" in output:
            raise ValueError(f"objective {self.goal} looks at entropy: text models only")
        names = ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask")
        prompt, completion, before, after = (output[name] for name in names)
        _, spread, *_ = self._get_per_token_logps_and_entropies(
            self.model, torch.cat([prompt, completion], 1), torch.cat([before, after], 1),
            completion.shape[1], self.args.per_device_train_batch_size, compute_entropy=True,
        )  # fmt: skip
        kept = in_loss(output)
        return self.accelerator.gather((spread * kept).sum(1) / kept.sum(1).clamp(min=1))

    def _record(self, metrics: Any, rewards: Tensor, weights: Tensor) -> None:
        """Unbiased max@k and pass@k, one value per group: TRL logs the mean of what it finds."""
        counts = (~rewards.isnan()).sum(dim=1)
        for k in sizes(rewards.shape[-1], self.goal.k):
            enough = rewards[counts >= k]
            if len(enough):
                passed = pass_at_k(enough, k, threshold=self.passing)
                metrics[f"max@{k}"].extend(max_at_k(enough, k).tolist())
                metrics[f"pass@{k}"].extend(passed.tolist())
        metrics["unscored"].extend(rewards.isnan().float().mean(dim=1).tolist())
        metrics["no_signal"].extend((weights.abs().amax(dim=1) <= 1e-12).float().tolist())


class BestOfKTrainer(BestOfKMixin, GRPOTrainer):
    """TRL's `GRPOTrainer`, trained for best-of-k. Arguments: see `BestOfKMixin`."""


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


def in_loss(output: dict[str, Any]) -> Tensor:
    """(rows, tokens): 1 for the tokens that enter TRL's loss."""
    mask = output["completion_mask"]
    return mask * output["tool_mask"] if "tool_mask" in output else mask


def sizes(n: int, k: int) -> list[int]:
    """The k of the logged metrics: powers of two up to n, and the objective's own."""
    return sorted({2**i for i in range(n.bit_length())} | ({k} if k <= n else set()))


def replace_last(log: deque[float], values: Iterable[float]) -> None:
    """TRL's advantages were just appended to the log: ours in their place."""
    values = list(values)
    for _ in range(min(len(values), len(log))):
        log.pop()
    log.extend(values)
