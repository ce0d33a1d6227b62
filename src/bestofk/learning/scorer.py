"""The policy as a function of a batch: log-prob and entropy of each token, at a temperature.

The logits of a batch, tokens × vocabulary, never exist in full, neither forwards nor backwards: the
head is applied to a few thousand tokens at a time. Where the gradient that will arrive is known
beforehand (the exact loss weighs every token's log-prob by a number that does not depend on it),
the head's gradient is made in the forward pass; otherwise the logits of each stretch are computed
again in the backward pass. On a GPU logits are float32, as the sampler's are: bfloat16 rounds them
by more than an optimizer step changes them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bestofk.agreement.one_model import head_is_last
from bestofk.devices import keep_compiled
from bestofk.learning.layout import Batch
from bestofk.model_facts import base_model
from bestofk.precision import float32_product

CHUNK = 2**24
"""Logits held at once: 64 MiB in float32."""


class Scorer(nn.Module):
    """Wraps a causal LM; what DDP and FSDP wrap in turn, since all computation goes through it."""

    def __init__(self, model: nn.Module, temperature: float = 1.0, chunk: int = CHUNK) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk = chunk
        self._split = head_is_last(base_model(model))
        head = base_model(model).get_output_embeddings() if self._split else None
        self.can_fuse = type(head) is nn.Linear and head.bias is None
        """Whether the head is a plain matrix product, whose gradient `head` knows."""
        self.fused = False

    def forward(self, batch: Batch, coefficient: Tensor | None = None) -> tuple[Tensor, ...]:
        """Log-prob and entropy of each of the batch's N tokens, in float32.

        With a coefficient (N,), first their Σ coefficient · log-prob, which alone has a gradient
        then. Only where `fused`.
        """
        causal = base_model(self.model)
        inputs: dict[str, Any] = {
            "input_ids": batch.input_ids,
            "position_ids": batch.position_ids,
            "attention_mask": batch.attention_mask,
            "use_cache": False,
        }
        if batch.segments is not None:
            # A mask of four dimensions is taken as it is: no T × T mask is made.
            inputs["attention_mask"] = torch.empty(1, 1, 1, 1, device=batch.input_ids.device)
            inputs["segments"] = batch.segments
        if not self._split:
            logits = causal(**inputs).logits.flatten(0, 1)
            return self._chunked(nn.Identity(), F.embedding(batch.source, logits), batch.target)
        hidden = causal.get_decoder()(**inputs).last_hidden_state.flatten(0, 1)
        head = causal.get_output_embeddings()
        if self.fused:
            return self._fused(head.weight, F.embedding(batch.source, hidden), batch, coefficient)
        return self._chunked(head, F.embedding(batch.source, hidden), batch.target)

    def _fused(
        self, weight: Tensor, hidden: Tensor, batch: Batch, coefficient: Tensor | None
    ) -> tuple[Tensor, ...]:
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            hidden = hidden.to(torch.get_autocast_dtype(kind))
        size = max(1, self.chunk // len(weight))
        inverse = 1.0 / self.temperature
        with torch.autocast(kind, enabled=False):
            operands = hidden, weight, batch.target
            if coefficient is not None:
                return tuple(WeighedHead.apply(*operands, coefficient, inverse, size))
            if torch.is_grad_enabled():
                return tuple(HeadLogProbs.apply(*operands, inverse, size))
            return scores(hidden, weight.to(hidden.dtype), batch.target, inverse, size)

    def _chunked(self, head: nn.Module, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        vocabulary = base_model(self.model).config.get_text_config().vocab_size
        size = max(1, self.chunk // vocabulary)
        parts = []
        for start in range(0, len(target), size):
            piece = (head, hidden[start : start + size], target[start : start + size])
            if torch.is_grad_enabled() and len(target) > size:
                parts.append(
                    checkpoint(
                        self._log_probs, *piece, use_reentrant=False, preserve_rng_state=False
                    )
                )
            else:
                parts.append(self._log_probs(*piece))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _log_probs(self, head: nn.Module, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if type(head) is nn.Linear and hidden.is_cuda and torch.is_autocast_enabled("cuda"):
            logits = Float32Logits.apply(hidden, head.weight, torch.get_autocast_dtype("cuda"))
            logits = logits if head.bias is None else logits + head.bias.float()
        else:
            logits = head(hidden)
        return log_probs_and_entropies(logits, target, 1.0 / self.temperature)


def log_probs_and_entropies(
    logits: Tensor, target: Tensor, inverse: float
) -> tuple[Tensor, Tensor]:
    """Log-prob of the target and entropy of softmax(logits · inverse), (N, V) → (N,) each."""
    x = logits.float() * inverse
    total = x.logsumexp(-1, keepdim=True)
    entropy = total[:, 0] - (torch.exp(x - total) * x).sum(-1)
    return x.gather(-1, target[:, None])[:, 0] - total[:, 0], entropy


def scores_and_gradient(
    logits: Tensor, target: Tensor, by_log_prob: Tensor, by_entropy: Tensor | None, inverse: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`log_probs_and_entropies`, and a gradient in the logits, in `dtype`.

    It is that of Σ by_log_prob · log-prob + by_entropy · entropy, with
    d log p_y / dx = 1_y − p;  d entropy / dx = −p (log p + entropy).
    """
    x = logits.float() * inverse
    log_probs = x - x.logsumexp(-1, keepdim=True)
    chance = log_probs.exp()
    entropy = -(chance * log_probs).sum(-1, keepdim=True)
    hit = torch.arange(x.shape[-1], device=x.device) == target[:, None]
    grad = by_log_prob[:, None] * (hit.to(x.dtype) - chance)
    if by_entropy is not None:
        grad = grad - by_entropy[:, None] * chance * (log_probs + entropy)
    log_prob = log_probs.gather(-1, target[:, None])[:, 0]
    return log_prob, entropy[:, 0], (grad * inverse).to(dtype)


@functools.cache
def _compiled(function: Any) -> Any:
    keep_compiled()
    return torch.compile(function, dynamic=True)


def _compiled_on_cuda(function: Any, device: torch.device) -> Any:
    return _compiled(function) if device.type == "cuda" else function


class Float32Logits(torch.autograd.Function):
    """hidden (N, H) times a head's weight (V, H): factors in `dtype`, sums in float32."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.dtype = dtype
        return float32_product(hidden.to(dtype), weight.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        hidden, weight = ctx.saved_tensors
        grad = grad.to(ctx.dtype)
        by_hidden = (grad @ weight.to(ctx.dtype)).to(hidden.dtype)
        by_weight = None
        if ctx.needs_input_grad[1]:
            by_weight = (grad.t() @ hidden.to(ctx.dtype)).to(weight.dtype)
        return by_hidden, by_weight, None


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
        make = _compiled_on_cuda(scores_and_gradient, hidden.device)
        into = _Gradients(hidden, weight, ctx.needs_input_grad[1])
        for part in _chunks(len(target), ctx.size):
            logits = float32_product(hidden[part], into.by)
            by = by_log_prob[part], by_entropy[part]
            into.add(part, make(logits, target[part], *by, ctx.inverse, hidden.dtype)[2])
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
        make = _compiled_on_cuda(scores_and_gradient, hidden.device)
        into = _Gradients(hidden, weight, ctx.needs_input_grad[1])
        result = []
        for part in _chunks(len(target), size):
            logits = float32_product(hidden[part], into.by)
            log_prob, entropy, grad = make(
                logits, target[part], coefficient[part], None, inverse, hidden.dtype
            )
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
    def __init__(self, hidden: Tensor, weight: Tensor, needs_weight: bool) -> None:
        self.source, self.by = hidden, weight.to(hidden.dtype)
        self.hidden = torch.empty_like(hidden)
        self.weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None

    def add(self, part: slice, grad: Tensor) -> None:
        self.hidden[part] = grad @ self.by
        if self.weight is not None:
            self.weight += grad.t() @ self.source[part]


def scores(
    hidden: Tensor, weight: Tensor, target: Tensor, inverse: float, size: int
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies without gradient."""
    make = _compiled_on_cuda(log_probs_and_entropies, hidden.device)
    result = [
        make(float32_product(hidden[part], weight), target[part], inverse)
        for part in _chunks(len(target), size)
    ]
    log_probs, entropies = (torch.cat(each) for each in zip(*result))
    return log_probs, entropies


def _chunks(count: int, size: int) -> list[slice]:
    """As few as `size` allows, of like length: one of a single token would be compiled apart."""
    each = -(-count // -(-count // size))
    return [slice(start, min(start + each, count)) for start in range(0, count, each)]
