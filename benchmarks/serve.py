"""What `bestofk serve` adds to a request: 200 clients for a minute, beside the upstream alone.

Upstream, server and clients are three processes on loopback. Every answer is of its own request and
of a draw that no other answer has, and the upstream and the server count as many as came.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from _measure import machine, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from deploy.scripted_upstream import command, running

CLIENTS, UPSTREAM_SECONDS = 200, 2.0


def upstream(told: Any, stop: Any) -> None:
    """Answers after two seconds, right half of the time, and names the draw."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    count = 0

    async def complete(request: Request) -> JSONResponse:
        nonlocal count
        body = await request.json()
        count += 1
        draw = count
        await asyncio.sleep(UPSTREAM_SECONDS)
        word = body["messages"][0]["content"]
        content = f"{word} {draw} {'right' if random.random() < 0.5 else 'wrong'}"
        choice = {"index": 0, "message": {"content": content}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return JSONResponse({"id": str(draw), "choices": [choice], "usage": usage})

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    config = uvicorn.Config(app, log_level="critical", ws="none", timeout_keep_alive=75)
    with running(uvicorn.Server(config)) as address:
        told.send(address)
        stop.wait()
    told.send(count)


async def ask(address: str, seconds: float, own: dict[str, Any]) -> tuple[list[float], list[str]]:
    """The seconds of every request, and every answer, of clients that ask one after the other."""
    latencies, answers = list[float](), list[str]()
    end = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:

        async def client(number: int) -> None:
            request = 0
            while time.monotonic() < end:
                request += 1
                word = f"w{number}-{request}"
                message = {"role": "user", "content": word}
                body = json.dumps({"model": "m", "messages": [message], **own})
                begin = time.monotonic()
                response = await http.post(
                    f"{address}/v1/chat/completions",
                    content=body,
                    headers={"Content-Type": "application/json"},
                )
                latencies.append(time.monotonic() - begin)
                content = response.raise_for_status().json()["choices"][0]["message"]["content"]
                assert content.split()[0] == word, content
                answers.append(content.split()[1])

        await asyncio.gather(*map(client, range(CLIENTS)))
    return latencies, answers


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answered(address: str) -> int:
    counts = httpx.get(f"{address}/metrics").text
    match = re.search(r'requests_total\{status="200"\} (\d+)', counts)
    return int(match[1]) if match else 0


def main() -> None:
    context = multiprocessing.get_context("spawn")
    told, other_end = context.Pipe()
    stop = context.Event()
    process = context.Process(target=upstream, args=(other_end, stop))
    process.start()
    direct = told.recv()
    rows = [("", "answers", "a second", "p50", "p99", "added p50", "added p99", "p50 / alone",
             "CPU a request")]  # fmt: skip
    draws, alone = 0, (0.0, 0.0)
    minute = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    words = ["--k", "4", "--concurrency", "1024"]
    with (
        tempfile.TemporaryDirectory() as folder,
        command(direct, Path(folder), *words) as (served, address),
    ):
        for name, target, seconds, own in (
            ("upstream alone", direct, minute / 3, {}),
            ("serve, k = 1", address, minute, {"bestofk": {"k": 1}}),
            ("serve, k = 4", address, minute / 3, {}),
        ):
            before, cpu = answered(address), cpu_seconds(served.pid)
            latencies, answers = asyncio.run(ask(target, seconds, own))
            assert len(set(answers)) == len(answers), "an answer came twice"
            assert target == direct or answered(address) - before == len(answers)
            p50, p99 = (float(np.quantile(latencies, q)) for q in (0.5, 0.99))
            alone = alone if draws else (p50, p99)
            draws += len(answers)
            rows.append((
                name, f"{len(answers):,}", f"{len(answers) / seconds:.0f}", f"{p50:.2f} s",
                f"{p99:.2f} s", f"{1e3 * (p50 - alone[0]):.0f} ms",
                f"{1e3 * (p99 - alone[1]):.0f} ms", f"{p50 / alone[0]:.3f}",
                f"{1e3 * (cpu_seconds(served.pid) - cpu) / len(answers):.1f} ms",
            ))  # fmt: skip
    stop.set()
    assert told.recv() >= draws
    process.join()
    table(f"{CLIENTS} clients, an upstream that takes {UPSTREAM_SECONDS:g} s ({machine()})", rows)


if __name__ == "__main__":
    main()
