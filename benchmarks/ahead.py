"""Seconds per step when batches are drawn 0, 1 or 2 steps ahead from a vLLM server; needs vLLM.

python benchmarks/ahead.py [--device cpu] [--steps 16] [--model FOLDER]

The server has one core (or one GPU's other half) and the learner another, so that they can overlap.
By default the model is random, 4.5 million weights; 8 prompts × 16 samples of at most 64 tokens,
and one answer in seven is right by chance. Steps of the warm-up are left out. S, J and L are
seconds of sampling, judging and learning in turns; the floor of an overlap is max(S + J, L).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

WARMUP = 4


@contextmanager
def served(model: str, url: str, dtype: str, options: list[str], core: int) -> Iterator[None]:
    """A vLLM server for the time inside, on one core where there is no GPU."""
    import httpx

    from bestofk.sampling.openai_wire import base_of, socket_of
    from bestofk.sampling.vllm_server import command

    words = command(model, url, dtype, options)
    if core >= 0:
        words = ["taskset", "-c", str(core), *words]
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if core >= 0:
        environment |= {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        try:
            transport = httpx.HTTPTransport(uds=socket_of(url))
            with httpx.Client(transport=transport, base_url=base_of(url)) as client:
                while server.poll() is None:
                    time.sleep(1)
                    with suppress(httpx.TransportError):
                        if client.get("/health").status_code == 200:
                            break
                else:
                    log.seek(0)
                    raise SystemExit(log.read().decode()[-2000:])
            yield
        finally:
            server.terminate()
            server.wait(60)


def one_in_seven(completion: str) -> float:
    return float(sum(map(ord, completion)) % 7 == 0)


def timed(ahead: int, asked: argparse.Namespace, url: str, folder: Path) -> dict[str, float]:
    """Mean seconds of a step after the warm-up: by the clock, and by part."""
    import numpy as np

    import bestofk

    times, parts = [], []

    def stamp(line: dict[str, Any]) -> None:
        if line["kind"] == "train":
            times.append(time.perf_counter())
            parts.append(line["seconds"])

    settings = {
        "sampling.engine": "vllm", "sampling.server": url, "sampling.max_new_tokens": 64,
        "off_policy.ahead": ahead, "off_policy.correct_sampler": True,
        "optimizer.warmup_steps": WARMUP, "model.device": asked.device,
        "evaluation.at_start": False, "run.advanced.keep_best": False,
    }  # fmt: skip
    bestofk.train(
        asked.model, [{"prompt": f"{i} 7 {i + 3} = {2 * i}:"} for i in range(64)],
        reward=one_in_seven, objective="max@8", samples_per_prompt=16, prompts_per_step=8,
        steps=asked.steps, evaluate_every=0, dir=folder / f"ahead-{ahead}", settings=settings,
        callback=stamp,
    )  # fmt: skip
    kept = slice(WARMUP + ahead, asked.steps - 1 - ahead)  # the queue is full, and is filled again
    found = {"a step": float(np.mean(np.diff(times)[kept]))}
    for part in parts[0]:
        found[part] = float(np.mean([line.get(part, 0.0) for line in parts[1:][kept]]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--model", default="")
    asked = parser.parse_args()
    cpu = asked.device == "cpu"
    if cpu:
        os.sched_setaffinity(0, {0})
        os.environ["OMP_NUM_THREADS"] = "1"
    from bestofk.models import Policy, save, tiny

    folder = Path(tempfile.mkdtemp(prefix="ahead-"))
    if not asked.model:
        made = tiny.untrained(hidden=256, layers=6, heads=8, inner=768)
        save(Policy(made, tiny.tokenizer(), "random"), folder / "model")
        asked.model = str(folder / "model")
    url = f"unix://{folder / 'socket'}"
    options = ["--enforce-eager", "--max-model-len=512", "--block-size=32",
               f"--kv-cache-memory-bytes={2**28}"] if cpu else []  # fmt: skip
    with served(asked.model, url, "float32", options, core=1 if cpu else -1):
        rows = {ahead: timed(ahead, asked, url, folder) for ahead in (0, 1, 2)}
    print("| ahead | " + " | ".join(rows[0]) + " |\n|---|" + "---|" * len(rows[0]))
    for ahead, row in rows.items():
        print(f"| {ahead} | " + " | ".join(f"{row.get(name, 0):.2f}" for name in rows[0]) + " |")
    turns = rows[0]
    floor = max(turns["sample"] + turns["judge"], turns["learn"])
    print(f"\nfloor of the overlap, max(S + J, L): {floor:.2f} s")


if __name__ == "__main__":
    main()
