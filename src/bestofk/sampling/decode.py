"""The default sampler: any Hugging Face causal LM, CPU or GPU, the prompt prefilled once."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from bestofk.agreement.log_prob_gaps import gap_to_plain
from bestofk.agreement.tolerances import DECODED
from bestofk.model_facts import base_model
from bestofk.precision import PRECISIONS, warn_where_bf16_is_slow
from bestofk.sampling import cache as caches
from bestofk.sampling import decode_attention
from bestofk.sampling.draw import distribution, draw
from bestofk.sampling.prompts import encode, uniforms
from bestofk.sampling.sampler import Sampling
from bestofk.types import FinishReason, Group, Prompt, Trajectory

LEAVE = 0.25
"""Finished rows leave the batch when they are this share of it: leaving copies the cache."""
WAYS = ("cache", "cache of equal lengths", "no cache")
"""How rows are decoded, the fastest first: prompts padded to one length, one length at a time,
and every token by a pass over the whole text."""

UNUSABLE = (TypeError, ValueError, AttributeError, LookupError, NotImplementedError, RuntimeError)
"""What a model raises that does not take a cache, a mask or positions as it gets them."""


Drawn: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Token ids and log-probs of what was drawn after a text."""


class ModelSampler:
    """Samples a model in this process: a `bestofk.sampling.Sampler`.

    Prompts are prefilled once, their keys and values repeated n times, and all rows decoded
    together; rows that have ended leave. Tokens come from the untouched softmax unless `Sampling`
    says otherwise, whatever the model's generation config suggests.

    Not every model decodes rightly so: some do not take a mask or positions, some have a cache of
    their own kind. A few tokens are decoded before the first call and compared with plain forward
    passes; a model that fails is decoded in a way that it can do (`WAYS`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_rows: int = 2048,
        precision: str = "fp32",
    ) -> None:
        """
        Args:
            model: sampled as it is at each call; the learner may train the same object in between.
            max_rows: completions decoded at once, at most, and as many as have room for their keys
                and values: 4 GiB on CPU, half of what is free on a GPU.
            precision: "bf16" decodes under autocast.
        """
        self.precision = PRECISIONS[precision]
        if self.precision.reduced:
            warn_where_bf16_is_slow(model)
        self.model, self.tokenizer = model, tokenizer
        self.max_rows = max_rows
        self.ends = end_tokens(model, tokenizer)
        self.way: str | None = None
        """Of `WAYS`; chosen at the first call."""
        self._accepted = inspect.signature(base_model(model).forward).parameters

    def sample(self, prompts: Sequence[Prompt], *, seed: int, sampling: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        draws = uniforms(prompts, seed, sampling.n, sampling.max_new_tokens)
        return draw_groups(self, prompts, draws, sampling)

    @torch.no_grad()
    def continue_from(
        self, texts: Sequence[tuple[int, ...]], draws: np.ndarray, sampling: Sampling
    ) -> Iterator[tuple[int, list[Drawn]]]:
        """The place of each text (in any order), and tokens and log-probs of its n continuations.

        Args:
            texts: token ids.
            draws: (texts, n, max_new_tokens) in [0, 1); fixes every token.
        """
        longest = max(map(len, texts), default=0) + sampling.max_new_tokens
        at_once = max(1, self._rows_at_once(longest) // sampling.n)
        with self._ready():
            if self.way is None and texts:
                self.way = self._right_way(max(texts, key=len))
            for chosen in self._turns(texts, at_once):
                rows = self._decode([texts[p] for p in chosen], draws[chosen], sampling)
                for at, p in enumerate(chosen):
                    yield p, rows[at * sampling.n : (at + 1) * sampling.n]

    def _turns(self, encoded: Sequence[tuple[int, ...]], at_once: int) -> Iterator[list[int]]:
        """Prompts that are decoded together. Those of one length need no padding and no mask."""
        order = sorted(range(len(encoded)), key=lambda p: len(encoded[p]))
        padded = self.way == "cache"
        for _, like in groupby(order, key=lambda p: 0 if padded else len(encoded[p])):
            alike = list(like)
            yield from (alike[at : at + at_once] for at in range(0, len(alike), at_once))

    def _rows_at_once(self, length: int) -> int:
        room = caches.room_on(self.model.device)
        return min(self.max_rows, caches.rows_that_fit(base_model(self.model).config, length, room))

    def _right_way(self, prompt: tuple[int, ...]) -> str:
        """The fastest of `WAYS` whose log-probs are those of plain forward passes.

        Raises:
            ValueError: none is, so the log-probs of this model have no meaning.
        """
        name, gap, reason = type(base_model(self.model)).__name__, math.inf, ""
        reduced = self.precision.reduced or self.model.dtype != torch.float32
        limit = DECODED.limit(reduced=reduced)
        for self.way in WAYS:
            try:
                gap = self._gap_to_plain(prompt[:64])
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except UNUSABLE as error:
                if self.way == WAYS[-1]:
                    raise
                reason = f" ({type(error).__name__}: {error})"
                continue
            if gap <= limit:
                if self.way == "no cache":
                    warnings.warn(
                        f"{name} cannot be decoded with transformers' key-value cache{reason}: "
                        "every token is computed by a pass over the whole text, which is slower",
                        stacklevel=5,
                    )
                return self.way
        raise ValueError(
            f"sampled one token at a time, {name} has log-probs {gap:.2g} per token away from "
            f"those of one pass over the text, more than {limit:g}: its forward pass is random, or "
            "it is not a causal language model"
        )

    def _gap_to_plain(self, prompt: tuple[int, ...]) -> float:
        """Mean |log-prob difference| per token of a few rows to plain passes over their text.

        The two prompts differ in length, and an eighth of the vocabulary ends a row, so that
        padding and the leaving of rows are tried too.
        """
        pair = [prompt, prompt[: len(prompt) // 2] or prompt * 2]
        turns = [pair] if self.way == "cache" else [[each] for each in pair]
        sampling = Sampling(samples_per_prompt=4, max_new_tokens=16)
        draws = np.random.default_rng(0).random((2, sampling.n, sampling.max_new_tokens))
        vocabulary = base_model(self.model).config.get_text_config().vocab_size
        gaps: list[Tensor] = []
        for turn in turns:
            rows = self._decode(turn, draws[: len(turn)], sampling, set(range(0, vocabulary, 8)))
            for at, row in enumerate(rows):
                drawn_with = partial(distribution, sampling=sampling)
                gaps.append(gap_to_plain(self.model, turn[at // sampling.n], *row, drawn_with))
        mean = float(torch.cat(gaps).mean())
        return math.inf if math.isnan(mean) else mean

    def _decode(
        self,
        prompts: Sequence[tuple[int, ...]],
        draws: np.ndarray,
        sampling: Sampling,
        ends: Collection[int] | None = None,
    ) -> list[Drawn]:
        """Tokens and log-probs of n rows per prompt, in order."""
        device, n, longest = self.model.device, sampling.n, sampling.max_new_tokens
        uniform = torch.from_numpy(draws).flatten(0, 1).to(device)
        rows = _Rows(len(prompts) * n, longest, self.ends if ends is None else ends, device)
        kind = _WithoutCache if self.way == "no cache" else _WithCache
        text: _WithCache | _WithoutCache = kind(self.model, self._accepted, prompts, n, longest)
        logits = text.first()
        for step in range(longest):
            tokens, log_probs = draw(logits, uniform[rows.active, step], sampling)
            rows.add(step, tokens, log_probs)
            if sampling.stop:
                rows.end(step, self._stopped(rows, step, sampling.stop))
            if rows.all_ended() or step == longest - 1:
                break
            going_on = rows.leave(LEAVE)
            if going_on is not None:
                text.keep(going_on)
                tokens = tokens[going_on]
            logits = text.next(tokens)
        return rows.arrays()

    def _stopped(self, rows: _Rows, step: int, stop: Sequence[str]) -> Tensor:
        """Which active rows have a text that has come to hold a stop string."""
        begin = max(0, step + 1 - tokens_of_stop(stop))
        tails = rows.tokens[rows.active, begin : step + 1]
        texts = self.tokenizer.batch_decode(tails, skip_special_tokens=True)
        held = [any(word in text for word in stop) for text in texts]
        return torch.tensor(held, device=tails.device)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Evaluation mode and, where asked, one autocast for the whole call: weights cast once."""
        training = self.model.training
        self.model.eval()
        try:
            with (
                self.precision.autocast(self.model.device.type),
                decode_attention.on_cpu(base_model(self.model)),
            ):
                yield
        finally:
            self.model.train(training)


class _Texts:
    """Texts that grow by a token a step, n for each prompt."""

    def __init__(
        self,
        model: PreTrainedModel,
        accepted: Collection[str],
        prompts: Sequence[tuple[int, ...]],
        n: int,
        longest: int,
    ) -> None:
        self.model, self.prompts, self.n, self.longest = model, prompts, n, longest
        self.options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        own = "cache_params" in accepted and "past_key_values" not in accepted
        self.cache_name = "cache_params" if own else "past_key_values"


class _WithCache(_Texts):
    """Each step computes the new tokens alone.

    Prompts of different lengths are padded on the left.
    """

    def first(self) -> Tensor:
        """Logits (P · n, V) after the prompts, which are computed once."""
        # Of the kinds of layers that the model has, windows and recurrent states included.
        self.cache = DynamicCache(config=base_model(self.model).config)
        self.options[self.cache_name] = self.cache
        self.width = max(map(len, self.prompts))
        ids = np.zeros((len(self.prompts), self.width), dtype=np.int64)
        real = np.zeros_like(ids)
        for at, prompt in enumerate(self.prompts):
            ids[at, self.width - len(prompt) :] = prompt
            real[at, self.width - len(prompt) :] = 1
        device = self.model.device
        mask = None if real.all() else torch.from_numpy(real).to(device)
        positions = torch.from_numpy(np.maximum(real.cumsum(-1) - 1, 0)).to(device)
        logits = self._forward(torch.from_numpy(ids).to(device), positions, mask)
        caches.spread(self.cache, len(self.prompts), self.n, self.longest)
        lengths = torch.tensor([len(prompt) for prompt in self.prompts], device=device)
        self.position = lengths.repeat_interleave(self.n)
        self.mask = None
        if mask is not None:
            rows = mask.repeat_interleave(self.n, dim=0)
            self.mask = torch.nn.functional.pad(rows, (0, self.longest), value=1)
        return logits.repeat_interleave(self.n, dim=0)

    def next(self, tokens: Tensor) -> Tensor:
        self.width += 1
        mask = None if self.mask is None else self.mask[:, : self.width]
        logits = self._forward(tokens[:, None], self.position[:, None], mask)
        self.position = self.position + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        layers: list[Any] = self.cache.layers
        for layer in layers:
            layer.reorder_cache(rows)
        self.position = self.position[rows]
        self.mask = None if self.mask is None else self.mask[rows]

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **self.options,
        )
        return out.logits[:, -1]


class _WithoutCache(_Texts):
    """Each step computes the texts from their beginning."""

    def first(self) -> Tensor:
        self.ids = torch.tensor(self.prompts, device=self.model.device)
        logits = self._forward().repeat_interleave(self.n, dim=0)
        self.ids = self.ids.repeat_interleave(self.n, dim=0)
        return logits

    def next(self, tokens: Tensor) -> Tensor:
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        return self._forward()

    def keep(self, rows: Tensor) -> None:
        self.ids = self.ids[rows]

    def _forward(self) -> Tensor:
        out = self.model(input_ids=self.ids, use_cache=False, **self.options)
        return out.logits[:, -1]


class _Rows:
    """Rows being decoded: their tokens so far, which have ended, which are still in the batch."""

    def __init__(
        self, count: int, longest: int, ends: Collection[int], device: torch.device
    ) -> None:
        self.tokens = torch.zeros(count, longest, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(count, longest, device=device)
        self.lengths = torch.full((count,), longest, device=device)
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
        places = (~self.ended).nonzero()[:, 0]
        self.active, self.ended = self.active[places], self.ended[places]
        return places

    def arrays(self) -> list[Drawn]:
        """Tokens and log-probs of every row, up to and with the token it ended at."""
        tokens, values = (each.cpu().numpy() for each in (self.tokens, self.log_probs))
        rows = zip(tokens, values, self.lengths.tolist())
        return [(ids[:length], log_probs[:length]) for ids, log_probs, length in rows]


def draw_groups(
    sampler: Any, prompts: Sequence[Prompt], draws: np.ndarray, sampling: Sampling
) -> list[Group]:
    """A group for each prompt, from a sampler that continues token ids."""
    texts = [encode(sampler.tokenizer, prompt) for prompt in prompts]
    groups: dict[int, Group] = {}
    for p, rows in sampler.continue_from(texts, draws, sampling):
        members = trajectories(rows, sampler.tokenizer, sampler.ends, sampling.stop)
        groups[p] = Group(prompts[p], tuple(members), texts[p], sampling.temperature)
    return [groups[p] for p in range(len(prompts))]


def trajectories(
    rows: Sequence[Drawn], tokenizer: Any, ends: frozenset[int], stop: Sequence[str]
) -> list[Trajectory]:
    """What was drawn, with its text: without the ending token, and up to the first stop string."""
    result = []
    texts = texts_of(tokenizer, [without_end(ids, ends) for ids, _ in rows])
    for (ids, log_probs), full_text in zip(rows, texts):
        text, is_cut = up_to_stop(full_text, stop)
        reason: FinishReason = "stop" if is_cut or int(ids[-1]) in ends else "length"
        result.append(Trajectory(ids, log_probs=log_probs, text=text, finish_reason=reason))
    return result


def without_end(ids: Any, ends: Collection[int]) -> Any:
    """What was drawn, without the token that ended it."""
    return ids[:-1] if int(ids[-1]) in ends else ids


def up_to_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there is one."""
    cuts = [text.index(word) for word in stop if word in text]
    return (text[: min(cuts)], True) if cuts else (text, False)


def tokens_of_stop(stop: Sequence[str]) -> int:
    """Tokens in which a stop string may lie, at most: one for each of its bytes, and those that
    begin or end in the midst of one of its characters."""
    return max(len(word.encode()) for word in stop) + 4


def texts_of(tokenizer: Any, rows: Sequence[np.ndarray | list[int]]) -> list[str]:
    """The text of each row, as `tokenizer.decode` gives it; many rows at once where it can."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    lists = [row if isinstance(row, list) else row.tolist() for row in rows]
    if core is None or getattr(tokenizer, "clean_up_tokenization_spaces", True):
        return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in lists]
    return list(core.decode_batch(lists, skip_special_tokens=True))


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a completion: the tokenizer's and those of the generation config."""
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [listed])}
    return frozenset(int(i) for i in ids if i is not None)
