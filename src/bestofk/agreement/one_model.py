"""Whether a model is a causal language model, with a plain head, and finite numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestofk.agreement.tolerances import CAUSAL, HEAD
from bestofk.model_facts import NEEDED


def check_causal(model: Any, name: str = "the model") -> None:
    """Raise for a model in which a token changes the logits of tokens before it, as in an encoder.

    Two texts that differ in the last token alone are compared, without its own logits.
    """
    import torch

    kind = f"{name} ({type(model).__name__})"
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder with a decoder: {NEEDED}")
    if model.device.type == "meta":
        return
    ids = torch.arange(1, 9, device=model.device) % model.config.get_text_config().vocab_size
    other = ids.clone()
    other[-1] = 0
    with torch.no_grad():
        both = model(input_ids=torch.stack([ids, other]), use_cache=False).logits[:, :-1].float()
    moved = float((both[0] - both[1]).abs().max())
    limit = CAUSAL.limit(reduced=model.dtype != torch.float32)
    if not moved <= limit * max(float(both.std()), 1e-6):
        raise ValueError(
            f"{kind} is not causal: changing the last token of a text moved the logits of earlier "
            f"tokens by {moved:.2g}, as in an encoder; {NEEDED}"
        )


LARGE = 100.0
"""The largest logit of the trial below: caps and scales show there, whatever the weights."""


def head_is_last(causal: Any) -> bool:
    """Whether logits = head(hidden), tried out; some models scale or cap them afterwards.

    The hidden states are scaled up on their way to the head: a cap of 30 changes logits of 0.1 by
    less than rounding does.
    """
    import torch
    from transformers import PreTrainedModel

    head = causal.get_output_embeddings()
    if head is None or not hasattr(causal, "get_decoder"):
        return False
    decoder = causal.get_decoder()
    if decoder is causal or not isinstance(decoder, PreTrainedModel):
        return False
    device = next(causal.parameters()).device
    probe = torch.tensor([[0, 1, 2]], device=device) % causal.config.get_text_config().vocab_size
    with torch.no_grad():
        hidden = decoder(input_ids=probe, use_cache=False).last_hidden_state
        top = float(head(hidden).abs().max())
        if not top > 0.0:
            return False
        hidden = hidden * (LARGE / top)

        def enlarge(module: Any, args: Any, out: Any) -> Any:
            out.last_hidden_state = hidden
            return out

        hook = decoder.register_forward_hook(enlarge)
        try:
            logits = causal(input_ids=probe, use_cache=False).logits.float()
        finally:
            hook.remove()
        near = HEAD.limit(reduced=hidden.dtype != torch.float32)
        return bool(torch.allclose(head(hidden).float(), logits, rtol=near, atol=near * LARGE))


def unsound_weight(model: Any) -> str | None:
    """The name of a trained weight that is not finite in this process's part of it, or None."""
    import torch

    totals = {}
    for name, weight in model.named_parameters():
        part = weight.to_local() if hasattr(weight, "to_local") else weight
        if part.requires_grad and part.device.type != "meta":  # a sum is finite if all parts are
            totals[name] = part.detach().sum(dtype=torch.float64)
    sound = torch.stack([*totals.values()]).isfinite().tolist() if totals else ()
    return next((name for name, is_sound in zip(totals, sound) if not is_sound), None)


def check_output(model: Any, ids: Sequence[int], step: int) -> None:
    """Raise where the model gives logits that are not finite: it must not be sampled or saved."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids], device=model.device)).logits
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(
            f"after step {step} the model gives logits that are NaN or infinite: the weights have "
            "become too large. The last checkpoint may be good; in a new run, lower "
            "optimizer.learning_rate"
        )
