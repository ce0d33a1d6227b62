"""Several optimiser steps on one batch of rollouts, weighted exactly: examples/loop.py off policy.

    python examples/off_policy.py                # 16 steps per batch, about a minute
    python examples/off_policy.py --seed 1       # other training and test problems

A batch is split into mini-batches of whole groups. From the second step on the samples come from
an older policy than the one being trained, so before each step the learner scores the completions
again, and the objective makes the weights from the log-ratios of all siblings of a group. One pass
over fresh samples is unbiased; a second pass over the same samples is not, whatever the formula.

Unbiased is not precise: watch the spread of the log-ratios, and take smaller steps if it grows.
docs/off-policy.md says where ratios pay; `--off-policy none` trains without them.
"""

import argparse

import numpy as np

import bestofk
from bestofk import models, rewards, tasks
from bestofk.learning import Learner, Optimizer
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler


def score(groups, verifier):
    """The reward of every completion, (P, n); NaN where it could not be judged."""
    verdicts = rewards.judge(groups, verifier)
    return np.array([[verdict.reward for verdict in row] for row in verdicts])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--objective", default="max@8:loo-1")
    parser.add_argument("--off-policy", default="exact", help="or first-order, own-ratio, none")
    parser.add_argument("--batches", type=int, default=8, help="batches of rollouts")
    parser.add_argument("--prompts", type=int, default=64, help="P, groups per batch")
    parser.add_argument("--samples", type=int, default=32, help="n, completions per prompt")
    parser.add_argument("--mini-batches", type=int, default=16, help="optimiser steps per batch")
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--test-prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of samples and problems")
    args = parser.parse_args()

    policy = models.load("tiny-countdown")
    task = tasks.task("countdown", style="compact")
    verifier = rewards.verifier("countdown", reward="closeness")  # partial credit for near misses
    sampler = ModelSampler(policy.model, policy.tokenizer)
    objective = bestofk.objective(args.objective, off_policy=args.off_policy)
    learner = Learner(
        policy.model, optimizer=Optimizer(learning_rate=args.learning_rate, warmup_steps=4)
    )
    sampling = Sampling(samples_per_prompt=args.samples, max_new_tokens=24)
    train, test = task.split("train"), task.split("test")
    test_prompts = [test[args.seed * args.test_prompts + i] for i in range(args.test_prompts)]

    def evaluate(name):
        groups = sampler.sample(test_prompts, seed=-1 - args.seed, sampling=sampling)
        return bestofk.read(score(groups, verifier), name=name)

    before, history = evaluate("before"), []
    for batch in range(args.batches):
        first = (args.seed * args.batches + batch) * args.prompts
        prompts = [train.at(first + i) for i in range(args.prompts)]
        groups = sampler.sample(prompts, seed=first, sampling=sampling)
        reward = score(groups, verifier)
        old = learner.log_probs(groups).log_prob  # (P, n): log π_old of each whole completion
        for part in range(args.mini_batches):
            rows = list(range(part, args.prompts, args.mini_batches))  # whole groups
            some = [groups[row] for row in rows]
            log_ratio = learner.sequence_log_probs(some) - old[rows]  # zeros before the first step
            weights = objective(reward[rows], log_ratio=log_ratio)
            learner.step(some, weights)
        best, spread = float(np.mean(bestofk.max_at_k(reward, 8))), float(np.std(log_ratio))
        history.append({"reward": float(np.mean(reward)), "max@8": best, "spread": spread})
        print(
            f"batch {batch}  reward {np.mean(reward):.3f}  max@8 {best:.3f}  "
            f"sd of the last log-ratios {spread:.2f}",
            flush=True,
        )
    after = evaluate("after")
    print(f"\n{args.objective}, {args.mini_batches} steps per batch, {args.test_prompts} problems")
    curves = [bestofk.evaluate(run) for run in (before, after)]
    for k in (1, 8):
        print(f"max@{k}  {curves[0].at(k)} → {curves[1].at(k)}")
    print(bestofk.compare(before, after).verdict)
    return history


if __name__ == "__main__":
    main()
