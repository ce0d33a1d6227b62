"""Seconds per step when batches are drawn 0, 1 or 2 steps ahead from a vLLM server; needs vLLM.

python benchmarks/ahead.py [--device cpu] [--steps 16] [--model FOLDER] [--ahead 0,1,2]
python benchmarks/ahead.py --recipe recipes/code-qwen/run.toml --device cuda --precision bf16
python benchmarks/ahead.py --own         bestofk's own sampler in turns, without vLLM

The server has one core (or one GPU's other half) and the learner another, so that they can overlap.
Without --recipe the model is random, 4.5 million weights; 8 prompts × 16 samples of at most 64
tokens, and one answer in seven is right by chance. Steps of the warm-up are left out. Nothing is
evaluated, and nothing is saved before the last step. S, J and L are seconds of sampling, judging
and learning in turns; the floor of an overlap is max(S + J, L).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
ON_CPU = ["--enforce-eager", "--max-model-len=512", "--block-size=32",
          f"--kv-cache-memory-bytes={2**28}"]  # fmt: skip
"""Options of vLLM where there is no GPU, unless --options says others."""


@contextmanager
def served(model: str, url: str, dtype: str, options: list[str], core: int) -> Iterator[None]:
    """A vLLM server for the time inside, on one core where there is no GPU."""
    import httpx

    from bestofk.sampling.openai_wire import socket_and_base
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
            socket, base = socket_and_base(url)
            transport = httpx.HTTPTransport(uds=socket)
            with httpx.Client(transport=transport, base_url=base) as client:
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


def timed(ahead: int, asked: argparse.Namespace, url: str | None) -> dict[str, float]:
    """Mean seconds of a step after the warm-up, by the clock and by part; means of statistics."""
    import numpy as np

    import bestofk
    from bestofk.api.training_run import run_to_the_end
    from bestofk.config import merged, read
    from bestofk.training.resolve import resolve

    times, lines = [], []

    def stamp(line: dict[str, Any]) -> None:
        if line["kind"] == "train":
            times.append(time.perf_counter())
            lines.append(line)

    def mean(values: Any) -> float:
        return float(np.mean(np.array(list(values), dtype=float)))

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ahead-") as folder:
        settings: dict[str, Any] = {
            "model.path": asked.model, "model.device": asked.device,
            "model.precision": asked.precision, "off_policy.ahead": ahead,
            "off_policy.correct_sampler": bool(url), "optimizer.warmup_steps": asked.warmup,
            "evaluation.every": 0, "run.dir": folder, "run.steps": asked.steps,
            "run.checkpoint_every": asked.steps,
        }  # fmt: skip
        if url:
            settings |= {"sampling.engine": "vllm", "sampling.server": url}
        settings |= {key: json.loads(value) for key, value in asked.set}
        if asked.recipe:
            config = merged(read(asked.recipe), settings)
            run_to_the_end(resolve(config), None, callback=stamp)
        else:
            bestofk.train(
                asked.model, [{"prompt": f"{i} 7 {i + 3} = {2 * i}:"} for i in range(64)],
                reward=one_in_seven, objective="max@8", samples_per_prompt=16, prompts_per_step=8,
                max_new_tokens=64, dir=folder, settings=settings, callback=stamp,
            )  # fmt: skip
    # the queue is full, and is filled again
    kept = slice(asked.warmup + ahead, asked.steps - 1 - ahead)
    steps, after = np.diff(times)[kept], lines[1:][kept]
    error = float(np.std(steps, ddof=1) / len(steps) ** 0.5)
    found = {"a step": mean(steps), "± (standard error)": error, "steps": len(steps)}
    for part in sorted({name for line in lines for name in line["seconds"]}):
        found[part] = mean(line["seconds"].get(part, 0.0) for line in after)
    for name in ("ess", "sampler_gap_mean", "length"):
        found[name] = mean(line.get(name) for line in after)
    found["first step after"] = times[0] - began
    rounded = {name: round(value, 3) for name, value in found.items()}
    print(json.dumps({"ahead": ahead, "server": bool(url), **rounded}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=4, help="steps, drawn in turns and left out")
    parser.add_argument("--model", default="")
    parser.add_argument("--recipe", help="settings of this file instead of the small job's")
    parser.add_argument("--precision", default="fp32", choices=DTYPES)
    parser.add_argument("--ahead", default="0,1,2", help="distances, separated by commas")
    parser.add_argument("--own", action="store_true", help="sample in turns, without a server")
    parser.add_argument("--options", default="", help="of vLLM: --options='--max-num-seqs=512'")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON",
                        type=lambda text: text.split("=", 1), help="a further setting")  # fmt: skip
    asked = parser.parse_args()
    cpu = asked.device == "cpu"
    if cpu and not asked.own:
        os.sched_setaffinity(0, {0})
        os.environ["OMP_NUM_THREADS"] = "1"
    from bestofk.config import read
    from bestofk.models import Policy, save, tiny

    folder = Path(tempfile.mkdtemp(prefix="ahead-"))
    if not asked.model and asked.recipe:
        asked.model = read(asked.recipe).model.path
    elif not asked.model:
        made = tiny.untrained(hidden=256, layers=6, heads=8, inner=768)
        save(Policy(made, tiny.tokenizer()), folder / "model")
        asked.model = str(folder / "model")
    url = None if asked.own else f"unix://{folder / 'socket'}"
    options = asked.options.split() or (ON_CPU if cpu else [])
    core = 1 if cpu else -1
    with served(asked.model, url, DTYPES[asked.precision], options, core) if url else nullcontext():
        rows = {ahead: timed(ahead, asked, url) for ahead in map(int, asked.ahead.split(","))}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    print("| ahead | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for ahead, row in rows.items():
        print(f"| {ahead} | " + " | ".join(f"{row.get(name, 0):.2f}" for name in names) + " |")
    if 0 in rows:
        turns = rows[0]
        floor = max(turns["sample"] + turns["judge"], turns["learn"])
        print(f"\nfloor of the overlap, max(S + J, L): {floor:.2f} s")
        print(f"updates of the server, which are not hidden: {turns.get('update', 0):.2f} s")


if __name__ == "__main__":
    main()
