"""OpenRLHF: `python -m bestofk.adapters.openrlhf max@8 ...`; checked with openrlhf 0.11.2.

After the objective come OpenRLHF's own flags. Its parser takes a fixed list of estimators, and
advantages are made in a Ray actor, where patches of the driver have no effect. The parsed arguments
are pickled into that actor. There the estimator is an `OpenRLHFEstimator`, a string of this module:
unpickling it imports this module, which extends OpenRLHF's `RemoteExperienceMaker`. bestofk must be
installed on every node.
"""

from __future__ import annotations

import itertools
import runpy
import sys
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from openrlhf import utils
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from bestofk.adapters.groups import group_advantages, on_policy_objective
from bestofk.objectives import Objective, ObjectiveWarning

PREFIX, FLAG = "bestofk:", "--algo.advantage.estimator"
theirs = RemoteExperienceMaker.compute_advantages_and_returns


class OpenRLHFEstimator(str):
    """`bestofk:max@8`, with options of `bestofk.objective`: a value of OpenRLHF's estimator."""

    options: Mapping[str, Any] = MappingProxyType({})

    def chosen(self) -> Objective:
        return on_policy_objective("OpenRLHF", self.removeprefix(PREFIX), self.options)


def use(args: Any, text: str, **options: Any) -> None:
    """Put an objective into OpenRLHF's parsed arguments: before its strategy is made from them."""
    estimator = OpenRLHFEstimator(PREFIX + text)
    estimator.options = options
    estimator.chosen().require_samples(args.rollout.n_samples_per_prompt)
    if args.actor.loss_agg_mode != "token-mean":
        message = f"biased update: --actor.loss_agg_mode {args.actor.loss_agg_mode} divides each "
        message += "response by its own length; token-mean divides all by one number"
        warnings.warn(message, ObjectiveWarning, stacklevel=2)
    args.algo.advantage.estimator = estimator


@torch.no_grad()
def advantages(self: RemoteExperienceMaker, experiences: list[Experience]) -> list[Experience]:
    """Instead of `compute_advantages_and_returns`, where the estimator is one of ours.

    As OpenRLHF does for rloo: length penalties, then one number per row on its last token, the KL
    penalty on every token, and their sums from each token on. Unlike it, rewards are clipped before
    the objective and weights never are. A row's group is its place in the rollout, which dynamic
    batches keep in `index`, over n; that its rows have one prompt is checked. Rows with a NaN
    reward or without actions do not count in n.
    """
    args = self.strategy.args
    estimator = args.algo.advantage.estimator
    if not isinstance(estimator, OpenRLHFEstimator):
        return theirs(self, experiences)
    for each in experiences:
        each.rewards = each.rewards.to(torch.promote_types(each.rewards.dtype, torch.float32))
    apply_length_penalties(experiences, args)
    rewards = torch.cat([each.rewards for each in experiences])
    if args.reward.clip_range:
        rewards = _clipped(rewards, *args.reward.clip_range)
    index = torch.tensor([i for each in experiences for i in each.index])
    groups = index // args.rollout.n_samples_per_prompt
    _check_prompts(groups.tolist(), [prompt for each in experiences for prompt in each.prompts])
    chosen = estimator.chosen()
    weights = group_advantages(
        rewards,
        groups,
        chosen,
        live=torch.cat([each.action_mask.bool().any(dim=-1) for each in experiences]),
        rng=int(torch.randint(2**31, ())) if "rng" in chosen.needs else None,
    )
    for each, weight in zip(experiences, weights.split([len(e.index) for e in experiences])):
        reward = compute_reward(weight, self.kl_ctl.value, each.kl, action_mask=each.action_mask)
        each.returns = self.get_cumulative_returns(reward, each.action_mask, 1.0)
        each.advantages = each.returns.clone()
        each.info["return"], each.kl = reward.sum(dim=-1), None
    return experiences


def main(argv: Sequence[str]) -> None:
    """OpenRLHF's `train_ppo_ray` with an objective instead of an estimator."""
    if not argv or argv[0].startswith("-") or FLAG in argv:
        raise ValueError(f"give an objective and then OpenRLHF's flags, without {FLAG}: max@8 ...")
    make = utils.get_strategy

    def make_with_objective(args: Any) -> Any:
        use(args, argv[0])
        return make(args)

    # rloo is the estimator whose needs are ours: several samples per prompt, no critic
    sys.argv = ["train_ppo_ray", *argv[1:], FLAG, "rloo"]
    utils.get_strategy = make_with_objective
    try:
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
    finally:
        utils.get_strategy = make


def _clipped(rewards: torch.Tensor, low: float, high: float) -> torch.Tensor:
    clipped = rewards.clamp(low, high)
    if bool((clipped != rewards).logical_and(~rewards.isnan()).any()):
        message = f"biased update: --reward.clip_range {low:g} {high:g} changes rewards: widen it"
        warnings.warn(message, ObjectiveWarning, stacklevel=3)
    return clipped


def _check_prompts(groups: Sequence[int], prompts: Sequence[str]) -> None:
    rows = sorted(zip(groups, prompts))
    for group, pairs in itertools.groupby(rows, key=lambda row: row[0]):
        if len(several := {prompt for _, prompt in pairs}) > 1:
            raise ValueError(f"group {group} of the rollout has {len(several)} prompts, not one")


if __name__ == "__main__":  # what is pickled must be of the module, not of this script
    from bestofk.adapters.openrlhf import main as run

    run(sys.argv[1:])
else:
    RemoteExperienceMaker.compute_advantages_and_returns = advantages
