"""Web servers of the tests on loopback: any ASGI application, and an upstream with a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bestofk.deploy.serving import listening


@contextlib.contextmanager
def running(server: Any) -> Iterator[str]:
    """The address of a uvicorn server in a thread, until the context ends."""
    listener = listening("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@contextlib.contextmanager
def command(upstream: str, folder: Path, *words: str) -> Iterator[tuple[Any, str]]:
    """`bestofk serve` as a process with a verifier in this folder, and its address."""
    verifier = "def reward(completion):\n    return completion.endswith('right')\n"
    (folder / "mine.py").write_text(verifier)
    process = subprocess.Popen(
        [sys.executable, "-m", "bestofk", "serve", "--verifier", "mine.py:reward", "--port", "0",
         "--upstream", upstream, *words],
        cwd=folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = re.match(r"(http://127.0.0.1:\d+)/v1", process.stderr.readline())
        assert address is not None
        yield process, address[1]
    finally:
        process.kill()
        process.communicate()


class ScriptedUpstream:
    """Answers chat and text completions; says which requests ended and which were cut off.

    Args:
        script: the text and the seconds of an answer, from the request and its number.
    """

    def __init__(self, script: Callable[[dict[str, Any], int], tuple[str, float]]) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.ends = Counter[str]()
        self.at_once = self.most_at_once = 0

    async def complete(self, request: Request) -> Response:
        try:
            body = await request.json()
        except ClientDisconnect:
            self.ends["cancelled"] += 1
            return Response()
        number = len(self.requests)
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization"))
        text, seconds = self.script(body, number)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                await asyncio.sleep(min(0.02, seconds))
                if await request.is_disconnected():
                    self.ends["cancelled"] += 1
                    return Response()
        finally:
            self.at_once -= 1
        self.ends["finished"] += 1
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "text": text}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": choice.pop("text")}
        usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
        return JSONResponse(
            {"id": f"c{number}", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )

    async def models(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization"))
        return JSONResponse({"object": "list", "data": [{"id": "m"}]})

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        import uvicorn

        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.models),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_level="error", ws="none")
        with running(uvicorn.Server(config)) as address:
            yield f"{address}/v1"


def with_probability(p: float, seconds: float = 0.0) -> Callable[..., tuple[str, float]]:
    """Right or wrong by the seed of the request; the right answer is the prompt's last word."""

    def script(body: dict[str, Any], number: int) -> tuple[str, float]:
        word = json.dumps(body["messages"]).split()[-1].strip('"}]')
        right = random.Random(f"{body['seed']} {word}").random() < p
        return (f"<answer>{word}</answer>" if right else "<answer>?</answer>"), seconds

    return script
