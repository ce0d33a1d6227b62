"""max@k in OpenRLHF: its advantages made by `group_advantages`. Checked with openrlhf 0.11.2.

PYTHONPATH=examples python -m openrlhf_best_of_k max@8 --rollout.n_samples_per_prompt 16 ...

After the objective come OpenRLHF's own flags. Its parser takes a fixed list of estimators, and
advantages are made in a Ray actor. The parsed arguments are pickled into that actor, and there the
estimator is an `Estimator`, a string of this module: unpickling it imports the module, which
replaces OpenRLHF's function. So this file and bestofk must be found on every node.
"""

import runpy
import sys
import warnings

import torch
from openrlhf import utils
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from bestofk.adapters import group_advantages
from bestofk.objectives import ObjectiveWarning, objective

theirs = RemoteExperienceMaker.compute_advantages_and_returns


class Estimator(str):
    """An objective's text, as a value of OpenRLHF's setting."""


def use(args, text):
    """Put an objective into OpenRLHF's parsed arguments: before its strategy is made from them."""
    objective(text).require_samples(args.rollout.n_samples_per_prompt)
    if args.actor.loss_agg_mode != "token-mean":
        warn(f"--actor.loss_agg_mode {args.actor.loss_agg_mode} divides by own lengths")
    args.algo.advantage.estimator = Estimator(text)


@torch.no_grad()
def advantages(self, experiences):
    """As OpenRLHF's rloo: length penalties, one number per row, then the KL penalty per token.

    Unlike it, rewards are clipped before the objective, and weights never are. A row's group is
    its place in the rollout, which dynamic batches keep in `index`, over n. Rows with a NaN reward
    or without actions do not count in n.
    """
    args = self.strategy.args
    text = args.algo.advantage.estimator
    if not isinstance(text, Estimator):
        return theirs(self, experiences)
    for each in experiences:
        each.rewards = each.rewards.to(torch.promote_types(each.rewards.dtype, torch.float32))
    apply_length_penalties(experiences, args)
    rewards = torch.cat([each.rewards for each in experiences])
    clipped = rewards.clamp(*args.reward.clip_range) if args.reward.clip_range else rewards
    if bool(((clipped != rewards) & ~rewards.isnan()).any()):
        warn(f"--reward.clip_range {args.reward.clip_range} changes rewards: widen it")
    index = torch.tensor([i for each in experiences for i in each.index])
    groups = index // args.rollout.n_samples_per_prompt
    prompts = [prompt for each in experiences for prompt in each.prompts]
    if len(set(zip(groups.tolist(), prompts))) > len(set(groups.tolist())):
        raise ValueError("a group of the rollout has several prompts: its rows were reordered")
    live = torch.cat([each.action_mask.bool().any(dim=-1) for each in experiences])
    weights = group_advantages(clipped, groups, str(text), live=live)
    for each, weight in zip(experiences, weights.split([len(e.index) for e in experiences])):
        reward = compute_reward(weight, self.kl_ctl.value, each.kl, action_mask=each.action_mask)
        each.returns = self.get_cumulative_returns(reward, each.action_mask, 1.0)
        each.advantages = each.returns.clone()
        each.info["return"], each.kl = reward.sum(dim=-1), None
    return experiences


def warn(text):
    warnings.warn(f"biased update: {text}", ObjectiveWarning, stacklevel=3)


def main():
    text, make = sys.argv[1], utils.get_strategy

    def with_objective(args):
        use(args, text)
        return make(args)

    utils.get_strategy = with_objective
    # rloo is the estimator whose needs are ours: several samples per prompt, no critic
    sys.argv[1:] = [*sys.argv[2:], "--algo.advantage.estimator", "rloo"]
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":  # what is pickled must be of the module, not of this script
    from openrlhf_best_of_k import main as run

    run()
else:
    RemoteExperienceMaker.compute_advantages_and_returns = advantages
