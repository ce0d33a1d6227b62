"""Several optimiser steps on one batch of rollouts, weighted exactly: examples/loop.py off policy.

    python examples/off_policy.py

A batch is split into mini-batches of whole groups. From the second step on the samples come from
an older policy than the one being trained, so before each step the learner scores the completions
again, and the objective makes the weights from the log-ratios of all siblings of a group. One pass
over fresh samples is unbiased; a second pass over the same samples is not, whatever the formula.
"""

import argparse

import numpy as np

import bestofk
from bestofk import models, rewards, tasks
from bestofk.learning import Learner, Optimisation
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler


def score(groups, verifier):
    """The reward of every completion, (P, n); NaN where it could not be judged."""
    verdicts = rewards.judge(groups, verifier)
    return np.array([[verdict.reward for verdict in row] for row in verdicts])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--objective", default="max@8:loo-1")
    parser.add_argument("--steps", type=int, default=30, help="batches of rollouts")
    parser.add_argument("--prompts", type=int, default=16, help="P, groups per batch")
    parser.add_argument("--samples", type=int, default=16, help="n, completions per prompt")
    parser.add_argument("--mini-batches", type=int, default=4, help="optimiser steps per batch")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--test-prompts", type=int, default=200)
    args = parser.parse_args()

    policy = models.load("tiny-maze")
    task = tasks.task("maze", style="compact", layout="open", sizes=[5, 6], test_sizes=[5, 6])
    verifier = rewards.verifier(task.verifier, **task.verifier_options)
    sampler = ModelSampler(policy.model, policy.tokenizer)
    objective = bestofk.objective(args.objective)
    learner = Learner(policy.model, optimisation=Optimisation(learning_rate=args.learning_rate))
    params = Sampling(samples_per_prompt=args.samples, max_new_tokens=20)
    train, test = task.split("train"), task.split("test")
    test_prompts = [test[i] for i in range(args.test_prompts)]

    before = score(sampler.sample(test_prompts, seed=-1, params=params), verifier)
    history = []
    for step in range(args.steps):
        prompts = [train.at(step * args.prompts + i) for i in range(args.prompts)]
        groups = sampler.sample(prompts, seed=step, params=params)
        reward = score(groups, verifier)
        old = learner.log_probs(groups).log_prob  # (P, n): log π_old of each whole completion
        for part in range(args.mini_batches):
            rows = list(range(part, args.prompts, args.mini_batches))  # whole groups
            some = [groups[row] for row in rows]
            log_ratio = learner.sequence_log_probs(some) - old[rows]  # zeros before the first step
            weights = objective(reward[rows], log_ratio=log_ratio)
            learner.step(some, weights)
        best = float(np.mean(bestofk.max_at_k(reward, 8)))
        spread = float(np.std(log_ratio))
        history.append({"reward": float(np.mean(reward)), "max@8": best, "spread": spread})
        if step % 5 == 0:
            print(
                f"batch {step:3}  reward {np.mean(reward):.3f}  max@8 {best:.3f}  "
                f"sd of the last log-ratios {spread:.3f}",
                flush=True,
            )
    after = score(sampler.sample(test_prompts, seed=-1, params=params), verifier)
    runs = [bestofk.read(before, name="before"), bestofk.read(after, name="after")]
    print("\ntest problems, max@8:", *(bestofk.evaluate(run).at(8) for run in runs))
    print(bestofk.compare(*runs).verdict)
    return history


if __name__ == "__main__":
    main()
