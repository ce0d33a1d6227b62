"""The method in plain PyTorch, with the loss in sight: sample, judge, advantages, step.

    python examples/plain_loop.py        # max@8 on Countdown, two minutes on two CPU cores

Each step draws n completions for each of P prompts and minimises
−(1/P) Σ_p (1/n) Σ_i A_pi Σ_t log π(y_pit), where A comes from all n rewards of a group.
"""

import torch

import bestofk
from bestofk import models, rewards, tasks

STEPS, P, N, LENGTH = 60, 16, 32, 24


@torch.no_grad()
def sample(model, prompt, end):
    """N completions of a prompt, each up to its first `end`, drawn from the model as it is."""
    ids = prompt.repeat(N, 1)
    for _ in range(LENGTH):
        logits = model(input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], dim=1)
    rows = ids[:, len(prompt) :]
    lengths = (rows == end).int().cumsum(1).eq(0).sum(1) + 1
    return [row[:length] for row, length in zip(rows, lengths.tolist())]


def log_probs(model, prompt, completions):
    """log π(y) of each completion (n), with gradient. What is padded lies behind the end."""
    rows = torch.nn.utils.rnn.pad_sequence(
        [torch.cat([prompt, completion]) for completion in completions], batch_first=True
    )
    token = model(input_ids=rows).logits[:, :-1].log_softmax(-1).gather(-1, rows[:, 1:, None])
    place = torch.arange(rows.shape[1] - 1) - (len(prompt) - 1)
    lengths = torch.tensor([len(completion) for completion in completions])
    return torch.where((place >= 0) & (place < lengths[:, None]), token[..., 0], 0.0).sum(1)


def step(model, optimizer, groups, advantages):
    """One optimiser step on groups (prompt, completions) with their advantages (P, n)."""
    loss = -torch.stack(
        [(a * log_probs(model, *group)).mean() for group, a in zip(groups, advantages)]
    ).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def main(steps=STEPS):
    torch.manual_seed(0)
    policy = models.load("tiny-countdown")  # 0.2 million weights, shipped with the package
    model, tokenizer = policy.model.eval(), policy.tokenizer
    task = tasks.task("countdown", style="compact")  # "3 5 7 2 = 24:" → "3*5+7+2"
    verifier, prompts = rewards.verifier(task.verifier), task.split("train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    for number in range(steps):
        batch = [prompts.at(number * P + i) for i in range(P)]
        encoded = [torch.tensor(tokenizer(prompt.text).input_ids) for prompt in batch]
        groups = [(ids, sample(model, ids, tokenizer.eos_token_id)) for ids in encoded]
        texts = [tokenizer.batch_decode(rows, skip_special_tokens=True) for _, rows in groups]
        verdicts = [verifier([prompt] * N, row) for prompt, row in zip(batch, texts)]
        reward = torch.tensor([[verdict.reward for verdict in row] for row in verdicts])
        step(model, optimizer, groups, bestofk.advantages(reward, "max@8"))
        best = bestofk.max_at_k(reward, 8).mean()
        print(f"step {number:3}  reward {reward.mean():.3f}  max@8 {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
