"""From hidden states to log-probs and entropies of tokens, a stretch of tokens at a time.

The logits, tokens × vocabulary, never exist in full, neither forwards nor backwards. Where the
gradient that will arrive is known beforehand (the exact loss weighs every token's log-prob by a
number that does not depend on it), the head's gradient is made in the forward pass; otherwise the
logits of each stretch are computed again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def values(logits: Tensor, target: Tensor, inverse: float) -> tuple[Tensor, Tensor]:
    """Log-prob of the target and entropy of softmax(logits · inverse), (N, V) → (N,) each."""
    x = logits.float() * inverse
    total = x.logsumexp(-1, keepdim=True)
    entropy = total[:, 0] - (torch.exp(x - total) * x).sum(-1)
    return x.gather(-1, target[:, None])[:, 0] - total[:, 0], entropy


def pull(
    logits: Tensor, target: Tensor, by_log_prob: Tensor, by_entropy: Tensor, inverse: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`values`, and the gradient of Σ by_log_prob · log-prob + by_entropy · entropy in the logits.

    d log p_y / dx = 1_y − p;  d entropy / dx = −p (log p + entropy).
    """
    x = logits.float() * inverse
    total = x.logsumexp(-1, keepdim=True)
    log_probs = x - total
    chance = log_probs.exp()
    entropy = -(chance * log_probs).sum(-1, keepdim=True)
    hit = torch.arange(x.shape[-1], device=x.device) == target[:, None]
    first = by_log_prob[:, None] * (hit.to(x.dtype) - chance)
    grad = (first - by_entropy[:, None] * chance * (log_probs + entropy)) * inverse
    log_prob = log_probs.gather(-1, target[:, None])[:, 0]
    return log_prob, entropy[:, 0], grad.to(logits.dtype)


def _pull_known(
    logits: Tensor, target: Tensor, by_log_prob: Tensor, inverse: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`pull` without a gradient of the entropy."""
    x = logits.float() * inverse
    total = x.logsumexp(-1, keepdim=True)
    chance = torch.exp(x - total)
    entropy = total[:, 0] - (chance * x).sum(-1)
    hit = torch.arange(x.shape[-1], device=x.device) == target[:, None]
    grad = by_log_prob[:, None] * (hit.to(x.dtype) - chance) * inverse
    return x.gather(-1, target[:, None])[:, 0] - total[:, 0], entropy, grad.to(logits.dtype)


_COMPILED: dict[Any, Any] = {}


def _fast(function: Any, device: torch.device) -> Any:
    if device.type != "cuda":
        return function
    if function not in _COMPILED:
        _COMPILED[function] = torch.compile(function, dynamic=True)
    return _COMPILED[function]


class HeadLogProbs(torch.autograd.Function):
    """Log-probs and entropies (N,) of hidden (N, H) under a head's weight (V, H)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, inverse: float, size: int
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, target)
        ctx.inverse, ctx.size = inverse, size
        return scores(hidden, weight.to(hidden.dtype), target, inverse, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Any, ...]:
        hidden, weight, target = ctx.saved_tensors
        make = _fast(pull, hidden.device)
        into = _Gradients(hidden, weight, ctx.needs_input_grad[1])
        for part in _stretches(len(target), ctx.size):
            logits = hidden[part] @ into.by.t()
            given = by_log_prob[part], by_entropy[part]
            into.add(part, make(logits, target[part], *given, ctx.inverse)[2])
        return into.hidden, into.weight, None, None, None


class WeighedHead(torch.autograd.Function):
    """Σ_t coefficient_t · log-prob_t, whose gradient is made in the forward pass.

    Also returns log-probs and entropies, without gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        coefficient: Tensor,
        inverse: float,
        size: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        make = _fast(_pull_known, hidden.device)
        into = _Gradients(hidden, weight, ctx.needs_input_grad[1])
        result = []
        for part in _stretches(len(target), size):
            logits = hidden[part] @ into.by.t()
            log_prob, entropy, grad = make(logits, target[part], coefficient[part], inverse)
            into.add(part, grad)
            result.append((log_prob, entropy))
        log_probs, entropies = (torch.cat(each) for each in zip(*result))
        ctx.save_for_backward(into.hidden, into.weight)
        ctx.mark_non_differentiable(log_probs, entropies)
        return (coefficient * log_probs).sum(), log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        hidden, weight = ctx.saved_tensors
        by_weight = None if weight is None else weight * grad
        return hidden * grad.to(hidden.dtype), by_weight, None, None, None, None


class _Gradients:
    def __init__(self, hidden: Tensor, weight: Tensor, wanted: bool) -> None:
        self.source, self.by = hidden, weight.to(hidden.dtype)
        self.hidden = torch.empty_like(hidden)
        self.weight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None

    def add(self, part: slice, grad: Tensor) -> None:
        self.hidden[part] = grad @ self.by
        if self.weight is not None:
            self.weight += grad.t() @ self.source[part]


def scores(
    hidden: Tensor, weight: Tensor, target: Tensor, inverse: float, size: int
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies without gradient."""
    make = _fast(values, hidden.device)
    result = [
        make(hidden[part] @ weight.t(), target[part], inverse)
        for part in _stretches(len(target), size)
    ]
    log_probs, entropies = (torch.cat(each) for each in zip(*result))
    return log_probs, entropies


def _stretches(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
