"""Samples that `bestofk serve` draws until the first pass, against drawing all k.

Drawn one by one from a scripted server on loopback: the expectation is (1 - (1 - p)^k) / p.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import numpy as np

from bestofk.deploy.requests import Rules
from bestofk.deploy.serving import ServerLimits, Service, server_of
from bestofk.rewards import from_function

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from deploy.scripted_upstream import ScriptedUpstream, running, with_probability

K, PROBLEMS = 8, 500


async def ask_all(address: str) -> list[dict[str, float]]:
    slots = asyncio.Semaphore(8)
    async with httpx.AsyncClient(timeout=300) as client:

        async def one(number: int) -> dict[str, float]:
            message = {"role": "user", "content": f"say w{number}"}
            body = {"messages": [message], "seed": K * number, "bestofk": {"at_once": 1}}
            async with slots:
                answer = await client.post(f"{address}/v1/chat/completions", json=body)
            return answer.raise_for_status().json()["bestofk"]

        return await asyncio.gather(*map(one, range(PROBLEMS)))


def told_of(service: Service) -> list[dict[str, float]]:
    with running(server_of(service)) as address:
        return asyncio.run(ask_all(address))


def main() -> None:
    print("| p | passed | 1 - (1 - p)^8 | drawn | standard error | expected | saved |")
    print("|---" * 7 + "|")
    for p in (0.05, 0.1, 0.3, 0.5, 0.9):
        rules, judge = (
            Rules(k=K, by="verifier"),
            from_function(lambda completion: "?" not in completion),
        )
        with ScriptedUpstream(with_probability(p)).running() as url:
            service = Service(url, judge, rules, ServerLimits(), judges=1)
            told = told_of(service)
        draws, passed = (np.array([each[name] for each in told]) for name in ("draws", "passed"))
        error, within = draws.std() / PROBLEMS**0.5, 1 - (1 - p) ** K
        print(f"| {p} | {passed.mean():.2f} | {within:.2f} | {draws.mean():.2f} | {error:.2f} "
              f"| {within / p:.2f} | {1 - draws.mean() / K:.0%} |")  # fmt: skip


if __name__ == "__main__":
    main()
