"""Small chat models and samplers that write a script, for tests of environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bestofk.models import tiny
from bestofk.sampling.sampler import Sampling

CHATML = """{%- if tools %}<|im_start|>system
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tokenizer(template: str | None = CHATML) -> Any:
    """The tokenizer of the tiny policies, with a chat template and its tokens."""
    made = tiny.tokenizer()
    made.add_special_tokens(
        {
            "bos_token": "<|bos|>",
            "eos_token": "<|im_end|>",
            "additional_special_tokens": ["<|im_start|>"],
        }
    )
    made.chat_template = template
    return made


def model(seed: int = 0, **shape: int) -> Any:
    """Random weights for that tokenizer. It ends a message about every tenth token."""
    shape = {"hidden": 32, "layers": 2, "heads": 2, "inner": 64} | shape
    made = tiny.untrained(**shape, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made.resize_token_embeddings(len(tokenizer()), mean_resizing=False)
    end = tokenizer().eos_token_id
    made.generation_config.eos_token_id = made.config.eos_token_id = end
    return made


class Script:
    """Continues a text with what a function of it says, each token with probability 1/2."""

    def __init__(self, write: Callable[[str], str], template: str | None = CHATML) -> None:
        self.write, self.tokenizer = write, tokenizer(template)
        self.ends = frozenset({self.tokenizer.eos_token_id})

    def continue_from(
        self, texts: Sequence[tuple[int, ...]], draws: np.ndarray, sampling: Sampling
    ) -> Iterator[tuple[int, list[tuple[np.ndarray, np.ndarray]]]]:
        for place in reversed(range(len(texts))):
            written = self.write(self.tokenizer.decode(texts[place]))
            ids = self.tokenizer(written)["input_ids"][: sampling.max_new_tokens]
            row = np.array(ids), np.full(len(ids), np.log(0.5))
            yield place, [row] * sampling.n


class Replay:
    """Continues each text as a row did that was drawn before: (prompt ids, ids, own, log-probs)."""

    def __init__(self, rows: Sequence[tuple[Any, Any, Any, Any]], tokenizer: Any) -> None:
        self.rows, self.tokenizer = rows, tokenizer
        self.ends = frozenset({tokenizer.eos_token_id})

    def continue_from(
        self, texts: Sequence[tuple[int, ...]], draws: np.ndarray, sampling: Sampling
    ) -> Iterator[tuple[int, list[tuple[np.ndarray, np.ndarray]]]]:
        unused = list(self.rows)
        for place, text in enumerate(texts):
            turns: list[tuple[np.ndarray, np.ndarray]] = []
            for row in list(unused):
                start, ids, own, log_probs = row
                begin = len(text) - len(start)
                if len(turns) < sampling.n and [*start, *ids[: max(begin, 0)]] == list(text):
                    unused.remove(row)
                    end = begin + int(np.argmin([*own[begin:], False]))
                    turns.append((np.array(ids[begin:end]), np.array(log_probs[begin:end])))
            yield place, turns


class Guess:
    """A number is guessed; the reply says whether it is higher."""

    def reset(self, secret: int, **row: Any) -> str:
        self.secret, self.guesses = secret, list[int]()
        return f" Below {10 * (secret // 10 + 1)}."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.
        """
        self.guesses.append(number)
        return "right" if number == self.secret else "higher" if number < self.secret else "lower"

    def get_reward(self) -> float:
        return float(self.secret in self.guesses) / max(1, len(self.guesses))


class Echo:
    """Answers with the length of the text, three times."""

    def reset(self) -> None:
        self.heard: list[str] = []

    def __call__(self, text: str) -> str | None:
        self.heard.append(text)
        return f"{len(text)} letters. Go on." if len(self.heard) < 3 else None

    def get_reward(self) -> float:
        return sum(map(len, self.heard)) / 1000
