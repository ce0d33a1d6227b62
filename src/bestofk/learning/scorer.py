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

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of each of the batch's N tokens, in float32."""
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
        return self._chunked(head, F.embedding(batch.source, hidden), batch.target)

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


@torch.no_grad()
def _head_is_last(causal: Any) -> bool:
    """Whether logits = head(hidden), tried out; some models scale or cap them afterwards."""
    head = causal.get_output_embeddings()
    if head is None or not hasattr(causal, "get_decoder"):
        return False
    device = next(causal.parameters()).device
    probe = torch.tensor([[0, 1, 2]], device=device) % causal.config.get_text_config().vocab_size
    hidden = causal.get_decoder()(input_ids=probe, use_cache=False).last_hidden_state
    logits = causal(input_ids=probe, use_cache=False).logits
    return bool(torch.allclose(head(hidden).float(), logits.float(), rtol=1e-4, atol=1e-4))
