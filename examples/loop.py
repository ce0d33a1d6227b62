"""The whole method in one file: train a tiny policy for the best of k, on two CPU cores.

    python examples/loop.py                      # max@8, about a minute
    python examples/loop.py --objective grpo     # the mean of one sample, to compare

One prompt and its n samples are a group. Each step draws P groups, scores every completion,
turns the rewards of a group into one weight per sample, and takes one optimiser step on
(1/P) Σ_p (1/n) Σ_i weight_pi · log π(y_pi).
"""

import argparse

import numpy as np

import bestofk
from bestofk import models, rewards, tasks
from bestofk.learning import Learner, Optimizer
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler

KS = (1, 4, 16, 32)


def score(groups, verifier):
    """The reward of every completion, (P, n); NaN where it could not be judged."""
    verdicts = rewards.judge(groups, verifier)
    return np.array([[verdict.reward for verdict in row] for row in verdicts])


def evaluate(sampler, verifier, prompts, name):
    """Samples of test prompts, for unbiased pass@k up to n = max(KS)."""
    sampling = Sampling(samples_per_prompt=max(KS), max_new_tokens=24)
    return bestofk.read(
        score(sampler.sample(prompts, seed=1, sampling=sampling), verifier), name=name
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--objective", default="max@8", help="`bestofk objectives` lists them")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--prompts", type=int, default=32, help="P, groups per step")
    parser.add_argument("--samples", type=int, default=32, help="n, completions per prompt")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--test-prompts", type=int, default=200)
    args = parser.parse_args()

    policy = models.load("tiny-countdown")  # 0.2 million weights, shipped with the package
    task = tasks.task("countdown", style="compact")  # "3 5 7 2 = 24:" → "3*5+7+2"
    verifier = rewards.verifier(task.verifier, **task.verifier_options)
    sampler = ModelSampler(policy.model, policy.tokenizer)
    objective = bestofk.objective(args.objective)
    learner = Learner(
        policy.model, optimizer=Optimizer(learning_rate=args.learning_rate, warmup_steps=5)
    )
    train, test = task.split("train"), task.split("test")
    test_prompts = [test[i] for i in range(args.test_prompts)]
    sampling = Sampling(samples_per_prompt=args.samples, max_new_tokens=24)

    before = evaluate(sampler, verifier, test_prompts, "before")
    for step in range(args.steps):
        prompts = [train.at(step * args.prompts + i) for i in range(args.prompts)]
        groups = sampler.sample(prompts, seed=step + 2, sampling=sampling)
        reward = score(groups, verifier)  # (P, n)
        weights = objective(reward)  # (P, n), the gradient of max@k lives in here
        stats = learner.step(groups, weights)
        if step % 10 == 0:
            best = float(np.mean(bestofk.max_at_k(reward, 8)))
            print(
                f"step {step:3}  reward {np.mean(reward):.3f}  max@8 {best:.3f}  "
                f"grad norm {stats['grad_norm']:.2f}",
                flush=True,
            )
    after = evaluate(sampler, verifier, test_prompts, "after")

    rollouts = args.steps * args.prompts * args.samples
    print(f"\n{args.objective}, {rollouts:,} rollouts, {args.test_prompts} test problems")
    curves = [bestofk.evaluate(each, k=KS) for each in (before, after)]
    for k in KS:
        print(f"pass@{k:<3} {curves[0].at(k)} → {curves[1].at(k)}")
    print(bestofk.compare(before, after).verdict)
    return curves


if __name__ == "__main__":
    main()
