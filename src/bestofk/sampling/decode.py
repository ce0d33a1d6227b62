"""The default sampler: any Hugging Face causal LM, CPU or GPU, the prompt prefilled once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase

from bestofk.common import base_model
from bestofk.sampling import cache as caches
from bestofk.sampling import decode_attention
from bestofk.sampling.draw import draw
from bestofk.sampling.prompts import encode, uniforms
from bestofk.sampling.sampler import Sampling
from bestofk.types import Completion, FinishReason, Group, Prompt

LEAVE = 0.25
"""Finished rows leave the batch when they are this share of it: leaving copies the cache."""


class ModelSampler:
    """Samples a model in this process: a `bestofk.sampling.Sampler`.

    Prompts are prefilled once, their keys and values repeated n times, and all rows decoded
    together; rows that have ended leave. Tokens come from the untouched softmax unless `Sampling`
    says otherwise, whatever the model's generation config suggests.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_rows: int = 2048,
        precision: str = "fp32",
        cache_gib: float | None = None,
    ) -> None:
        """
        Args:
            model: sampled as it is at each call; the learner may train the same object in between.
            max_rows: completions decoded at once, at most; more prompts are taken in turns.
            cache_gib: room for keys and values; fewer rows at once where they need more. By
                default 4 on CPU, and half of what is free on a GPU.
            precision: "bf16" decodes under autocast.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is at least 1, got {max_rows}")
        self.model, self.tokenizer = model, tokenizer
        self.max_rows, self.precision, self.cache_gib = max_rows, precision, cache_gib
        self.ends = end_tokens(model, tokenizer)
        accepted = inspect.signature(base_model(model).forward).parameters
        self._last_only = "logits_to_keep" in accepted

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], *, seed: int, params: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        encoded = [encode(self.tokenizer, prompt) for prompt in prompts]
        draws = uniforms(prompts, seed, params.n, params.max_new_tokens)
        # Prompts of one length need no padding and no mask: take like with like.
        order = sorted(range(len(prompts)), key=lambda p: len(encoded[p]))
        longest = max(map(len, encoded), default=0) + params.max_new_tokens
        at_once = max(1, self._rows_at_once(longest) // params.n)
        groups: dict[int, Group] = {}
        with self._ready():
            for start in range(0, len(order), at_once):
                chosen = order[start : start + at_once]
                rows = self._decode([encoded[p] for p in chosen], draws[chosen], params)
                for at, p in enumerate(chosen):
                    own = rows[at * params.n : (at + 1) * params.n]
                    done = (completion(*row, self.tokenizer, self.ends, params.stop) for row in own)
                    groups[p] = Group(prompts[p], tuple(done), encoded[p])
        return [groups[p] for p in range(len(prompts))]

    def _rows_at_once(self, length: int) -> int:
        device = self.model.device
        room = caches.room_on(device) if self.cache_gib is None else self.cache_gib * 2**30
        return min(self.max_rows, caches.rows_that_fit(base_model(self.model).config, length, room))

    def _decode(
        self, prompts: Sequence[tuple[int, ...]], draws: np.ndarray, params: Sampling
    ) -> list[tuple[list[int], list[float]]]:
        """Tokens and log-probs of n rows per prompt, in order."""
        device, n, most = self.model.device, params.n, params.max_new_tokens
        uniform = torch.from_numpy(draws).flatten(0, 1).to(device)
        logits, cache, mask = self._prefill(prompts)
        logits = logits.repeat_interleave(n, dim=0)
        caches.spread(cache, len(prompts), n, most)
        position = torch.tensor([len(p) for p in prompts], device=device).repeat_interleave(n)
        if mask is not None:
            mask = torch.nn.functional.pad(mask.repeat_interleave(n, dim=0), (0, most), value=1)
        width = max(map(len, prompts))
        rows = _Rows(len(prompts) * n, most, self.ends, device)
        for step in range(most):
            tokens, log_probs = draw(logits, uniform[rows.active, step], params)
            rows.add(step, tokens, log_probs)
            if params.stop:
                rows.end(step, self._stopped(rows, step, params.stop))
            if rows.all_ended() or step == most - 1:
                break
            kept = rows.leave(LEAVE)
            if kept is not None:
                caches.keep(cache, kept)
                tokens, position = tokens[kept], position[kept]
                mask = None if mask is None else mask[kept]
            logits = self._next(tokens, position + step, mask, width + step + 1, cache)
        return rows.lists()

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Cache, Tensor | None]:
        """Last logits (P, V) and the cache; a mask where prompts differ in length."""
        width = max(map(len, prompts))
        ids = np.zeros((len(prompts), width), dtype=np.int64)
        real = np.zeros_like(ids)
        for at, prompt in enumerate(prompts):
            ids[at, width - len(prompt) :] = prompt
            real[at, width - len(prompt) :] = 1
        mask = None if real.all() else torch.from_numpy(real).to(self.model.device)
        positions = torch.from_numpy(np.maximum(real.cumsum(-1) - 1, 0)).to(self.model.device)
        cache = caches.fresh(base_model(self.model).config)
        logits = self._forward(torch.from_numpy(ids).to(self.model.device), positions, mask, cache)
        return logits, cache, mask

    def _next(
        self, tokens: Tensor, position: Tensor, mask: Tensor | None, length: int, cache: Cache
    ) -> Tensor:
        seen = None if mask is None else mask[:, :length]
        return self._forward(tokens[:, None], position[:, None], seen, cache)

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache) -> Tensor:
        extra: dict[str, Any] = {"logits_to_keep": 1} if self._last_only else {}
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **extra,
        )
        return out.logits[:, -1]

    def _stopped(self, rows: _Rows, step: int, stop: Sequence[str]) -> Tensor:
        """Which active rows have a text that has come to hold a stop string."""
        reach = max(map(len, stop)) + 4
        tails = rows.tokens[rows.active, max(0, step + 1 - reach) : step + 1]
        texts = self.tokenizer.batch_decode(tails, skip_special_tokens=True)
        held = [any(word in text for word in stop) for text in texts]
        return torch.tensor(held, device=tails.device)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Evaluation mode and, where asked, one autocast for the whole call: weights cast once."""
        training, kind = self.model.training, self.model.device.type
        self.model.eval()
        try:
            with (
                torch.autocast(kind, dtype=torch.bfloat16, enabled=self.precision == "bf16"),
                decode_attention.on_cpu(base_model(self.model)),
            ):
                yield
        finally:
            self.model.train(training)


class _Rows:
    """Rows being decoded: their tokens so far, which have ended, which are still in the batch."""

    def __init__(self, count: int, most: int, ends: frozenset[int], device: torch.device) -> None:
        self.tokens = torch.zeros(count, most, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(count, most, device=device)
        self.lengths = torch.full((count,), most, device=device)
        self.ends = torch.tensor(sorted(ends), dtype=torch.long, device=device)
        self.active = torch.arange(count, device=device)
        self.ended = torch.zeros(count, dtype=torch.bool, device=device)
        """Of the active rows."""

    def add(self, step: int, tokens: Tensor, log_probs: Tensor) -> None:
        """One token for every active row; what a row gets after it has ended is cut off later."""
        self.tokens[self.active, step] = tokens
        self.log_probs[self.active, step] = log_probs
        self.end(step, torch.isin(tokens, self.ends))

    def end(self, step: int, over: Tensor) -> None:
        """End the active rows of this mask with the token of this step."""
        self.lengths[self.active[over & ~self.ended]] = step + 1
        self.ended |= over

    def all_ended(self) -> bool:
        return bool(self.ended.all())

    def leave(self, share: float) -> Tensor | None:
        """Places of the rows that stay, when enough have ended to be worth a copy."""
        if self.ended.float().mean() < share:
            return None
        kept = (~self.ended).nonzero()[:, 0]
        self.active, self.ended = self.active[kept], self.ended[kept]
        return kept

    def lists(self) -> list[tuple[list[int], list[float]]]:
        """Tokens and log-probs of every row, up to and with the token it ended at."""
        rows = zip(self.tokens.tolist(), self.log_probs.tolist(), self.lengths.tolist())
        return [(tokens[:length], values[:length]) for tokens, values, length in rows]


def completion(
    tokens: Sequence[int],
    log_probs: Sequence[float],
    tokenizer: Any,
    ends: frozenset[int],
    stop: Sequence[str],
    text: str | None = None,
) -> Completion:
    """What was drawn, with its text: without the ending token, and up to the first stop string.

    Args:
        text: of the tokens without the ending one, where it is known already.
    """
    ended = tokens[-1] in ends
    if text is None:
        shown = tokens[:-1] if ended else tokens
        text = str(tokenizer.decode(list(shown), skip_special_tokens=True))
    cuts = [text.index(word) for word in stop if word in text]
    if cuts:
        text = text[: min(cuts)]
    reason: FinishReason = "stop" if ended or cuts else "length"
    return Completion(text, tuple(tokens), tuple(log_probs), reason)


def texts_of(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row, as `tokenizer.decode` gives it; many rows at once where it can."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None or getattr(tokenizer, "clean_up_tokenization_spaces", True):
        return [str(tokenizer.decode(list(row), skip_special_tokens=True)) for row in rows]
    return list(core.decode_batch([list(row) for row in rows], skip_special_tokens=True))


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a completion: the tokenizer's and those of the generation config."""
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [listed])}
    return frozenset(int(i) for i in ids if i is not None)
