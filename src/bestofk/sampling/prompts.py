"""Prompts as token ids, and the random numbers that belong to them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bestofk.types import Prompt


def encode(
    tokenizer: Any,
    prompt: Prompt,
    tools: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> tuple[int, ...]:
    """The ids a model sees: chat messages through the chat template, text as it is.

    The template gets the schemas of `tools`, and `options` of its own.

    Text keeps the special tokens its tokenizer adds in front (a beginning-of-sequence token), and
    loses an end-of-sequence token that some add behind: the completion goes on from there.
    """
    if isinstance(prompt.text, str):
        ids = list(tokenizer(prompt.text)["input_ids"])
        if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
            ids.pop()
    elif getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            f"prompt {prompt.id!r} holds chat messages, but the tokenizer has no chat template: "
            "give the task a style that is plain text ('text'; 'compact' where it has one: "
            "`bestofk tasks show`), or take an instruction-tuned model"
        )
    else:
        messages = [dict(message) for message in prompt.text]
        prefilled = messages[-1]["role"] == "assistant"  # the completion continues it
        ids = tokenizer.apply_chat_template(
            messages,
            tools=list(tools) or None,
            add_generation_prompt=not prefilled,
            continue_final_message=prefilled,
            tokenize=True,
            return_dict=True,
            **(options or {}),
        )["input_ids"]
    if not ids:
        raise ValueError(f"prompt {prompt.id!r} has no tokens; a model cannot go on from nothing")
    return tuple(ids)


def uniforms(prompts: Sequence[Prompt], seed: int, n: int, length: int) -> np.ndarray:
    """A number in [0, 1) for each prompt, sample and token: (P, n, length).

    Fixed by the seed, the prompt's id, how often that id came before in this call, and the place of
    sample and token; not by the other prompts, nor by n.
    """
    draws = np.empty((len(prompts), n, length))
    for own, digest in zip(draws, digests(prompts, seed)):
        key = int.from_bytes(digest[:16], "little")
        np.random.Generator(np.random.Philox(key=key)).random(out=own)
    return draws


def digests(prompts: Sequence[Prompt], seed: int) -> Iterator[bytes]:
    """What the random numbers of each prompt are made from: the seed, its id, and how often that id
    came before."""
    occurrences: Counter[str] = Counter()
    for prompt in prompts:
        text = f"{seed}/{occurrences[prompt.id]}/{prompt.id}"
        occurrences[prompt.id] += 1
        yield hashlib.sha256(text.encode()).digest()
