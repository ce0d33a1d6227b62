"""The policy as a function of a batch: log-prob and entropy of each token, at a temperature.

The logits of a batch, tokens × vocabulary, are never held: the head is applied to a few thousand
tokens at a time, and once more in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bestofk.common import base_model
from bestofk.learning.head import HeadLogProbs, WeighedHead, scores
from bestofk.learning.layout import Batch

CHUNK = 2**24
"""Logits held at once: 64 MiB in float32."""


class Scorer(nn.Module):
    """Wraps a causal LM; what DDP and FSDP wrap in turn, since all computation goes through it."""

    def __init__(self, model: nn.Module, temperature: float = 1.0, chunk: int = CHUNK) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk = chunk
        self._no_split_modules = getattr(model, "_no_split_modules", None)
        self._split = _head_is_last(base_model(model))
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
            if coefficient is not None:
                result: tuple[Tensor, ...] = WeighedHead.apply(
                    hidden, weight, batch.target, coefficient, inverse, size
                )
                return result
            if torch.is_grad_enabled():
                built: tuple[Tensor, ...] = HeadLogProbs.apply(
                    hidden, weight, batch.target, inverse, size
                )
                return built
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
        logits = head(hidden).float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        log_probs = logits.log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, target[:, None])[:, 0], entropy


LARGE = 100.0
"""The largest logit of the trial below: caps and scales show there, whatever the weights."""


@torch.no_grad()
def _head_is_last(causal: Any) -> bool:
    """Whether logits = head(hidden), tried out; some models scale or cap them afterwards.

    The hidden states are scaled up on their way to the head: a cap of 30 changes logits of 0.1 by
    less than rounding does.
    """
    head = causal.get_output_embeddings()
    if head is None or not hasattr(causal, "get_decoder"):
        return False
    decoder = causal.get_decoder()
    if decoder is None or decoder is causal:
        return False
    device = next(causal.parameters()).device
    probe = torch.tensor([[0, 1, 2]], device=device) % causal.config.get_text_config().vocab_size
    hidden = decoder(input_ids=probe, use_cache=False).last_hidden_state
    top = float(head(hidden).abs().max())
    if not top > 0.0:
        return False
    hidden = hidden * (LARGE / top)

    def enlarge(module: nn.Module, args: Any, out: Any) -> Any:
        out.last_hidden_state = hidden
        return out

    hook = decoder.register_forward_hook(enlarge)
    try:
        logits = causal(input_ids=probe, use_cache=False).logits.float()
    finally:
        hook.remove()
    near = 1e-4 if hidden.dtype == torch.float32 else 2e-2
    return bool(torch.allclose(head(hidden).float(), logits, rtol=near, atol=near * LARGE))
