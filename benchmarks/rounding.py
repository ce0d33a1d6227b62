"""How far bf16 rounding takes the sampler from the learner, by the length of the answers.

python benchmarks/rounding.py MODEL [--device cuda] [--tokens 1024]      others: --help
python benchmarks/rounding.py MODEL --engine [--device cuda]     the trainer's own sampler

Answers of equal length are drawn (ends are ignored) and scored with the same weights in four ways:
token by token with a cache, as samplers do, and in one pass, as learners do, each with logits in
bf16 and in float32. D is the mean of ρ - 1 - log ρ over answers, whose tokens are cut at each
length; the share is what k = 8, n = 32 keeps. A CPU without bf16 instructions takes hours.

With --engine the weights are float32, as in training (with --lora frozen, in bf16 or FP8): answers
are drawn by the sampler that the trainer takes on that device (the group engine on CUDA) and scored
by its learner.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bestofk import models, tasks
from bestofk.learning import Learner
from bestofk.objectives import effective_share, ratio_divergence
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.local import local_sampler
from bestofk.training.resolve import style_for
from bestofk.types import Group

PAIRS = {
    "decoded against one pass, logits in bf16": ("decoded", "one pass"),
    "the same, the sampler's logits in float32": ("decoded, float32", "one pass"),
    "the same, both in float32": ("decoded, float32", "one pass, float32"),
}


def chosen(hidden: Tensor, head: Tensor, token: Tensor) -> Tensor:
    """Log-prob of each token, its logits in the precision of `hidden` and `head`."""
    logits = F.linear(hidden, head).float()
    return logits.gather(-1, token[..., None])[..., 0] - logits.logsumexp(-1)


@torch.no_grad()
def scored(model: torch.nn.Module, group: Group) -> dict[str, np.ndarray]:
    """(n, T) token log-probs of a group whose answers have equal length, in the four ways."""
    base, head = model.model, model.get_output_embeddings().weight
    device, exact = head.device, head.float()
    answers = torch.tensor([one.tokens.tolist() for one in group.trajectories], device=device)
    prompt = torch.tensor(group.prompt_tokens, device=device).expand(len(answers), -1)
    whole = base(input_ids=torch.cat([prompt, answers[:, :-1]], 1), use_cache=False)
    hidden = {"one pass": whole.last_hidden_state[:, prompt.shape[1] - 1 :]}
    out = base(input_ids=prompt, use_cache=True)
    steps = [out.last_hidden_state[:, -1]]
    for token in answers[:, :-1].T:
        out = base(input_ids=token[:, None], past_key_values=out.past_key_values, use_cache=True)
        steps.append(out.last_hidden_state[:, -1])
    hidden["decoded"] = torch.stack(steps, 1)
    found = {}
    for way, states in hidden.items():
        for name, cast in ((way, lambda x: x), (f"{way}, float32", Tensor.float)):
            weights = exact if "float32" in name else head
            rows = [chosen(cast(row), weights, own) for row, own in zip(states, answers)]
            found[name] = torch.stack(rows).double().cpu().numpy()
    return found


def drawn(sampler: Any, asked: argparse.Namespace) -> list[Group]:
    """Groups of answers of equal length."""
    sampler.ends = frozenset()
    style = style_for(asked.model, asked.task, lambda: models.load_tokenizer(asked.model))
    problems = tasks.task(asked.task, style=style).split("train")
    sampling = Sampling(samples_per_prompt=asked.samples, max_new_tokens=asked.tokens)
    return sampler.sample([problems.at(i) for i in range(asked.prompts)], seed=0, sampling=sampling)


def gaps_of_ways(asked: argparse.Namespace) -> dict[str, np.ndarray]:
    """Log-ratio of every token, (answers, T), for each of PAIRS."""
    policy = models.load(asked.model)
    model = policy.model.to(asked.device, torch.bfloat16)
    parts = [scored(model, group) for group in drawn(ModelSampler(model, policy.tokenizer), asked)]
    return {
        what: np.concatenate([part[learned] - part[sampled] for part in parts])
        for what, (sampled, learned) in PAIRS.items()
    }


def gaps_of_trainer(asked: argparse.Namespace) -> dict[str, np.ndarray]:
    """Log-ratio of every token, (answers, T), of the trainer's learner to its sampler."""
    warnings.filterwarnings("error", message="the group engine does not run")
    frozen: dict[str, Any] = {}
    if asked.lora:
        frozen = {"dtype": "bfloat16", "lora": models.Lora(rank=16, fp8=asked.lora == "fp8")}
    policy = models.load(asked.model, device=asked.device, **frozen)
    learner = Learner(policy.model, precision=asked.precision, max_new_tokens=asked.tokens)
    sampler = local_sampler(learner.policy, policy.tokenizer, precision=asked.precision)
    groups = drawn(sampler, asked)
    sampled = np.array([one.log_probs for group in groups for one in group.trajectories])
    learned = np.concatenate(learner.log_probs(groups).tokens).astype(float)
    kind = f"{asked.precision}, frozen weights in {asked.lora}" if asked.lora else asked.precision
    return {f"{type(sampler).__name__} against the learner, {kind}": learned - sampled}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--task", default="mbpp")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--engine", action="store_true", help="measure the trainer's own sampler")
    parser.add_argument("--precision", default="bf16", help="of --engine: bf16 or fp32")
    parser.add_argument("--lora", choices=["bf16", "fp8"], help="of --engine: the frozen weights")
    asked = parser.parse_args()
    gaps = gaps_of_trainer(asked) if asked.engine else gaps_of_ways(asked)
    lengths = [1 << power for power in range(4, 13) if 1 << power <= asked.tokens]
    print("| |" + "".join(f" {length} tokens |" for length in lengths))
    print("|---|" + "---|" * len(lengths))
    for what, gap in gaps.items():
        cells = []
        for length in lengths:
            log_ratio = gap[:, :length].sum(1)
            far = float(ratio_divergence(log_ratio))
            share = float(effective_share(far, 8, 32))
            cells.append(f"{far:.3f} (sd {log_ratio.std():.2f}, share {share:.2f})")
        print(f"| {what} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
