"""vLLM in the trainer's own process: a sampler that holds a copy of the policy's weights.

`VLLMEngine.update` gives it new ones, in place and without a file; nothing is drawn before the
first. What vLLM is asked for, and how its answers become groups, is shared with the server
(`bestofk.sampling.vllm_server`). Needs vLLM 0.32 or newer.

A server is the recommended way. In the process it is for runs in which every card both learns and
samples (FSDP2 over all cards, as in recipes/maths-7b): the engine gives its memory back while the
learner works, which a server does not.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestofk.model_facts import base_model
from bestofk.sampling import vllm_worker
from bestofk.sampling.decode import end_tokens, trajectory
from bestofk.sampling.prompts import digests, encode
from bestofk.sampling.sampler import Sampling
from bestofk.types import Group, Prompt

FIXED = {
    "logprobs_mode": "processed_logprobs",  # of the distribution drawn from: temperature, top-p
    "generation_config": "vllm",  # not the sampling parameters that come with the model
    "load_format": "dummy",  # the weights come from `update`
}
"""Options of the engine that the log-probabilities depend on."""
SHARE = 0.4
"""Of a GPU's memory, that vLLM takes beside the learner."""
COLDEST = 0.01
"""vLLM raises temperatures between 0 and this one, without a word in its answers."""


class EngineError(OSError):
    """vLLM does not support a setting, failed, or did not do what it said."""


class VLLMEngine:
    """Samples with vLLM in this process: a `bestofk.sampling.Sampler`.

    The random numbers of a sample are fixed by the seed, the prompt's id and the sample's place.
    What they select is not quite: vLLM computes a row in batches that depend on the other rows, and
    rounding depends on the batch (see docs/adapters/vllm.md).
    """

    version: int | None = None
    """Of the weights it holds, as `update` was told; None when it has none."""
    shared = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        dtype: str = "float32",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            model: read for its architecture and ending tokens alone; weights come with `update`.
            dtype: that vLLM computes in.
            options: of vLLM's engine (`gpu_memory_utilization`, `max_model_len`, …).
        """
        llm = _llm()
        self.tokenizer, self.ends = tokenizer, end_tokens(model, tokenizer)
        self.on_gpu, self._asleep = torch.cuda.is_available(), False
        self._alone = not torch.distributed.is_initialized()
        given = engine_options(options or {}, self.on_gpu)
        if not self.on_gpu:
            check_heads(model.config.get_text_config())
        self._folder = tempfile.mkdtemp(prefix="bestofk-vllm-")
        try:
            describe(model, tokenizer, self._folder)
            with _undisturbed():
                self.llm = llm(model=self._folder, dtype=dtype, **given)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def sample(self, prompts: Sequence[Prompt], *, seed: int, sampling: Sampling) -> list[Group]:
        """See `Sampler.sample`.

        Raises:
            EngineError: it has no weights yet, or vLLM gave up on a request.
        """
        from vllm import SamplingParams

        if self.version is None:
            raise EngineError("the engine has no weights: `update` comes before `sample`")
        encoded = [encode(self.tokenizer, prompt) for prompt in prompts]
        requested = [
            SamplingParams(**request(sampling, own, self.ends), detokenize=bool(sampling.stop))
            for own in seeds(prompts, seed)
        ]
        tokens: list[Any] = [{"prompt_token_ids": list(ids)} for ids in encoded]
        with self._uncompiled():
            outputs = self.llm.generate(tokens, requested, use_tqdm=False)
        return [
            self._group(prompt, ids, output, sampling)
            for prompt, ids, output in zip(prompts, encoded, outputs, strict=True)
        ]

    def update(self, weights: Iterable[tuple[str, Tensor]], *, version: int = 0) -> None:
        """Take new weights, in place; forget the keys and values that the old ones computed.

        Raises:
            EngineError: requests were running, so that the prefix cache could not be emptied.
        """
        self.version = None
        if self._asleep:
            self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc(vllm_worker.load, args=(weights,))
        if self._asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        if not self.llm.reset_prefix_cache():
            raise EngineError("vLLM kept its prefix cache: requests were running at the update")
        self.version = version

    def sleep(self) -> None:
        """Give the GPU's memory back, weights included, until the next `update`; nothing on CPU."""
        if self.on_gpu and not self._asleep:
            self.llm.sleep(level=2)
            self._asleep, self.version = True, None

    def close(self) -> None:
        """Free the engine. vLLM ends the process group with it: where that is not its own, it gives
        its memory back, and ends with the process."""
        client = self.llm.llm_engine.engine_core
        if self._alone:
            self.version = None
            client.shutdown()
        else:
            self.sleep()
        client._finalizer.detach()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _group(
        self, prompt: Prompt, ids: tuple[int, ...], output: Any, sampling: Sampling
    ) -> Group:
        drawn = sorted(output.outputs, key=lambda row: row.index)
        rows = [
            (
                np.array(row.token_ids, np.int32),
                np.array([at[t].logprob for at, t in zip(row.logprobs, row.token_ids)], np.float32),
            )
            for row in drawn
        ]
        reasons = [row.finish_reason for row in drawn]
        return group(prompt, ids, rows, reasons, sampling, self.tokenizer, self.ends)

    def _uncompiled(self) -> Any:
        """On CPU vLLM compiles some functions of its sampler at their first call: a minute."""
        if self.on_gpu:
            return contextlib.nullcontext()
        return torch.compiler.set_stance("force_eager")


def engine_options(options: Mapping[str, Any], on_gpu: bool) -> dict[str, Any]:
    """What vLLM's engine is started with: ours, the user's, and what may not be changed."""
    for name in FIXED.keys() & options.keys():
        raise ValueError(
            f"engine option {name} is {FIXED[name]!r}: the log-probabilities depend on it; got "
            f"{options[name]!r}"
        )
    place = (
        {"gpu_memory_utilization": SHARE, "enable_sleep_mode": True}
        if on_gpu
        else {"kv_cache_memory_bytes": 2**30, "enforce_eager": True}
    )
    many = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    return {
        **place,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        # Every process has an engine of its own, beside those of the other processes.
        "distributed_executor_backend": "external_launcher" if many else "uni",
        **options,
        **FIXED,
    }


def check_heads(config: Any) -> None:
    """Raise an error for a model whose head size vLLM's CPU build does not support."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    have = CPUAttentionBackend.get_supported_head_sizes()
    if size not in have:
        raise ValueError(
            f"on CPU vLLM takes attention heads of {', '.join(map(str, have))} numbers, and this "
            f"model's have {size}: take a GPU, or sampling.engine = 'transformers'"
        )


def request(sampling: Sampling, seed: int, ends: frozenset[int]) -> dict[str, Any]:
    """Everything about a request, nothing left to defaults: some models come with their own."""
    if 0.0 < sampling.temperature < COLDEST:
        raise ValueError(
            f"vLLM draws at a temperature of 0 or of at least {COLDEST}, got {sampling.temperature}"
        )
    return {
        # The most likely tokens are the same n times, and vLLM draws them once.
        "n": 1 if sampling.temperature == 0.0 else sampling.n,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": seed,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(ends),
        "logprobs": 0,
    }


def seeds(prompts: Sequence[Prompt], seed: int) -> list[int]:
    """A seed for each prompt. vLLM adds the place of the sample to it; 62 bits: no two overlap but
    by a miracle."""
    return [int.from_bytes(digest[:8]) >> 2 for digest in digests(prompts, seed)]


def group(
    prompt: Prompt,
    ids: tuple[int, ...],
    rows: Sequence[tuple[np.ndarray, np.ndarray]],
    reasons: Sequence[str | None],
    sampling: Sampling,
    tokenizer: Any,
    ends: frozenset[int],
) -> Group:
    """A group from what vLLM drew for one prompt.

    Raises:
        EngineError: a request was given up, or answered with too few completions.
    """
    if sampling.temperature == 0.0:  # the most likely token has all the probability
        rows = [(tokens, np.zeros(len(tokens), np.float32)) for tokens, _ in rows] * sampling.n
    if len(rows) != sampling.n or any(reason not in ("stop", "length") for reason in reasons):
        raise EngineError(
            f"vLLM answered prompt {prompt.id!r} with {len(rows)} of {sampling.n} completions, "
            f"which ended by {', '.join(sorted({str(reason) for reason in reasons})) or 'nothing'}"
        )
    done = tuple(trajectory(*row, tokenizer, ends, sampling.stop) for row in rows)
    return Group(prompt, done, ids, sampling.temperature)


def describe(model: Any, tokenizer: Any, folder: str) -> None:
    """Everything of a model but its weights, as vLLM reads it."""
    base = base_model(model)
    config = base.config
    if not config.architectures:
        config.architectures = [type(base).__name__]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _llm() -> Any:
    """vLLM's engine class, set up to run in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM

    return LLM


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """vLLM seeds this process's random numbers and lowers its threads: put them back."""
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_num_threads = set_threads
        set_threads(threads)
