"""From logits and a uniform number to a token and its log-probability."""

from __future__ import annotations

import torch
from torch import Tensor

from bestofk.sampling.sampler import Sampling


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities (R, V) that tokens are drawn with: temperature, then top-k, then top-p."""
    logits = logits.float()
    if sampling.temperature == 0.0:
        best = torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
        return best.log()
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if not sampling.truncated:
        return logits.log_softmax(-1)
    if 0 < sampling.top_k < logits.shape[-1]:
        top = logits.topk(sampling.top_k, dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, top.indices, top.values)
    if sampling.top_p < 1.0:
        ordered, places = logits.log_softmax(-1).sort(dim=-1, descending=True, stable=True)
        chance = ordered.exp()
        before = chance.cumsum(-1) - chance
        dropped = torch.zeros_like(logits, dtype=torch.bool)
        dropped = dropped.scatter(-1, places, before >= sampling.top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    return logits.log_softmax(-1)


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row by inverting the distribution function in float64.

    Args:
        logits: (R, V).
        uniform: (R,) in [0, 1), float64.

    Returns:
        Tokens (R,) and their log-probabilities (R,) under the distribution they were drawn from.
    """
    log_probs = distribution(logits, sampling)
    cumulative = log_probs.double().exp_().cumsum_(-1)
    total = cumulative[:, -1]
    below = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, below[:, None], right=True)
    return tokens[:, 0], log_probs.gather(-1, tokens)[:, 0]
