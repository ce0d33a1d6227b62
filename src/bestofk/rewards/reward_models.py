"""Reward models: sequence classifiers with one label, in this process or behind vLLM or SGLang."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bestofk.rewards.base import BatchVerifier, UnusableFunction
from bestofk.rewards.served import NotServed, ServedVerifier, client_of, model_and_url
from bestofk.sampling.retrying_client import RequestFailed
from bestofk.types import Prompt, Verdict, status_of

LARGEST = 1e6
"""Beyond it a number is no reward model's."""


def scored_verdict(score: float, detail: str = "") -> Verdict:
    """A score as a reward too."""
    return Verdict(score, status_of(score), detail=detail, score=score)


def is_score(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST


class RewardModel(BatchVerifier):
    """A sequence classifier with one label, as transformers saves it: its logit is the reward."""

    is_learned = True

    def __init__(self, source: str, *, device: str = "auto", batch: int = 16) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.name, self.batch, self.device = f"reward-model:{source}", batch, device
        self.tokenizer: Any = AutoTokenizer.from_pretrained(source)
        self.model: Any = AutoModelForSequenceClassification.from_pretrained(
            source, dtype=torch.bfloat16 if device.startswith("cuda") else torch.float32
        )
        if (labels := self.model.config.num_labels) != 1:
            raise ValueError(f"a reward model has one label, {source} has {labels}")
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model.config.pad_token_id = self.tokenizer.pad_token_id
        self.model.eval().to(device)
        self._lock = threading.Lock()

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        import torch

        verdicts = []
        longest = getattr(self.model.config, "max_position_embeddings", 0) or 4096
        for start in range(0, len(texts), self.batch):
            part = slice(start, start + self.batch)
            rows = [
                judged_text(self.tokenizer, *pair)
                for pair in zip(prompts[part], texts[part], strict=True)
            ]
            encoded = encoded_texts(
                self.tokenizer, rows, longest, return_tensors="pt", padding=True
            ).to(self.device)
            with self._lock, torch.no_grad():
                scores = self.model(**encoded).logits[:, 0].double().tolist()
            verdicts += [
                scored_verdict(score)
                if is_score(score)
                else Verdict.unscored(f"{self.name} gave {score}")
                for score in scores
            ]
        return verdicts


def judged_text(tokenizer: Any, prompt: Prompt, text: str) -> str:
    """Prompt and completion as a reward model read them in its training."""
    if tokenizer.chat_template:
        return tokenizer.apply_chat_template(conversation(prompt, text), tokenize=False)
    return plain_prompt(prompt) + text


def encoded_texts(tokenizer: Any, rows: Any, longest: int, **more: Any) -> Any:
    """Token ids of judged texts; a chat template states the special tokens itself."""
    own = not tokenizer.chat_template
    return tokenizer(rows, truncation=True, max_length=longest, add_special_tokens=own, **more)


def conversation(prompt: Prompt, text: str) -> list[dict[str, str]]:
    """The prompt's messages and the completion as the assistant's."""
    own = {"role": "assistant", "content": text}
    if isinstance(prompt.text, str):
        return [{"role": "user", "content": prompt.text}, own]
    return [*map(dict, prompt.text), own]


def plain_prompt(prompt: Prompt) -> str:
    if isinstance(prompt.text, str):
        return prompt.text
    return "\n\n".join(message["content"] for message in prompt.text)


@dataclass(frozen=True)
class ServedModel:
    """What a server says of itself."""

    model: str
    is_sglang: bool
    tokenizer: str
    longest: int


class ServedRewardModel(ServedVerifier):
    """A reward model behind a server: vLLM's /classify or, where it has none, /pooling, or SGLang's
    /classify. The logit is the reward."""

    def __init__(self, source: str, *, tokenizer: str = "", **connection: Any) -> None:
        """
        Args:
            source: URL or MODEL@URL; the first model of the server unless stated.
            tokenizer: of the model, for SGLang, which takes token ids; by default the model's name.
            connection: options of `Client`.
        """
        self.model, url = model_and_url("reward-model", source)
        self.url, _, own = url.removesuffix("/v1").rpartition("/")
        self.paths = [own]
        if own not in ("classify", "pooling"):
            self.url, self.paths = url.removesuffix("/v1"), ["classify", "pooling"]
        self.tokenizer_name = tokenizer
        self._tokenizer: Any = None
        self._service: ServedModel | None = None
        self._lock = threading.Lock()
        client = client_of("reward-model", connection)
        super().__init__(f"reward-model:{source}", client, self._score)

    @property
    def service(self) -> ServedModel:
        with self._lock:
            if self._service is None:
                self._service = self._found()
            return self._service

    def _found(self) -> ServedModel:
        """What /v1/models says."""
        address = f"{self.url}/v1/models"
        said = "without a model"
        try:
            content = self.client.sent(address, None)
            models = [each for each in json.loads(content)["data"] if isinstance(each["id"], str)]
        except (ValueError, KeyError, TypeError, RecursionError):
            models = []
        except RequestFailed as failure:
            if not failure.is_final:
                raise
            said, models = str(failure), []
        if not models:
            raise UnusableFunction(
                f"{address} answered {said}: a reward model is asked by the URL of vLLM or SGLang, "
                "up to the port"
            )
        names = [each["id"] for each in models]
        name = self.model or names[0]
        if name not in names:
            raise UnusableFunction(f"{self.url} serves {', '.join(names)}, and not {name}")
        entry = models[names.index(name)]
        is_sglang, longest = entry.get("owned_by") == "sglang", entry.get("max_model_len")
        return ServedModel(
            name,
            is_sglang,
            self.tokenizer_name or str(entry.get("root") or name),
            longest if type(longest) is int and longest > 0 else 2**20,
        )

    def _score(self, prompt: Prompt, text: str) -> Verdict:
        service = self.service
        if service.is_sglang:
            ids = self._token_ids(service, prompt, text)
            body: dict[str, Any] = {"model": service.model, "input_ids": ids}
            score = self.client.asked(f"{self.url}/classify", body, sglang_score)
            return scored_verdict(score)
        body = {
            "model": service.model,
            "messages": conversation(prompt, text),
            "use_activation": False,  # the logit, and no probability
            "truncate_prompt_tokens": -1,  # to what the model reads
        }
        path = self.paths[0]
        try:
            score = self.client.asked(f"{self.url}/{path}", body, partial(vllm_score, path))
        except NotServed:
            if path == self.paths[-1]:
                raise
            self.paths = self.paths[-1:]
            return self._score(prompt, text)
        return scored_verdict(score)

    def _token_ids(self, service: ServedModel, prompt: Prompt, text: str) -> list[int]:
        from transformers import AutoTokenizer

        with self._lock:
            if self._tokenizer is None:
                try:
                    self._tokenizer = AutoTokenizer.from_pretrained(service.tokenizer)
                except (OSError, ValueError) as error:
                    raise UnusableFunction(
                        f"SGLang's /classify takes token ids, and there is no tokenizer "
                        f"{service.tokenizer} here ({type(error).__name__}): state the option "
                        "tokenizer = FOLDER of the reward model"
                    ) from error
            row = judged_text(self._tokenizer, prompt, text)
            return list(encoded_texts(self._tokenizer, row, service.longest).input_ids)


def one_score(value: Any, where: str) -> float:
    """The number in nested lists of one."""
    number = value
    while isinstance(number, list) and len(number) == 1:
        number = number[0]
    if not is_score(number):
        raise ValueError(
            f"one number from {-LARGEST:,.0f} to {LARGEST:,.0f} is needed, {where} gave "
            f"{value!s:.80}"
        )
    return float(number)


def parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} gave no JSON: {content[:80]!r}") from None


VLLM_FIELDS = {"classify": "probs", "pooling": "data"}
"""What holds the number in an entry, by path."""


def vllm_score(path: str, content: bytes) -> float:
    """Of vLLM's /classify and /pooling; of a model that scores every token, the last token's.

    >>> vllm_score("classify", b'{"data": [{"index": 0, "label": "LABEL_0", "probs": [-1.5]}]}')
    -1.5
    >>> vllm_score("pooling", b'{"data": [{"index": 0, "data": [[0.5], [0.25], [2.0]]}]}')
    2.0
    """
    match parsed(content, f"/{path}"):
        case {"data": [{**entry}]}:
            value = entry.get(VLLM_FIELDS[path])
        case answer:
            raise ValueError(f"one entry in data is needed, /{path} gave {answer!s:.80}")
    if path == "pooling" and isinstance(value, list):
        is_by_token = all(isinstance(row, list) and len(row) == 1 for row in value)
        value = value[-1:] if is_by_token else value
    return one_score(value, f"/{path}")


def sglang_score(content: bytes) -> float:
    """Of SGLang's /classify.

    >>> sglang_score(b'{"embedding": [0.75], "meta_info": {"prompt_tokens": 9}}')
    0.75
    """
    match parsed(content, "/classify"):
        case {"embedding": value}:
            return one_score(value, "SGLang's /classify")
        case answer:
            raise ValueError(f"an embedding is needed, SGLang's /classify gave {answer!s:.80}")
