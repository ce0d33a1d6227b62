"""Steps of the GSM8K recipe with SmolLM2 on one GPU: seconds a step, by phase; needs CUDA.

    python benchmarks/gpu_recipe.py [--model.path runs/gsm8k-start]      other flags of `train` too

32 prompts × 32 samples × at most 256 tokens, with one refill and two exact optimiser steps a batch,
which the recipe does not take; the first three steps, which compile, are left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from _gpu import needs_cuda
from bestofk.cli import main as bestofk

RECIPE = Path(__file__).parent.parent / "recipes" / "gsm8k-smollm2" / "run.toml"


def main(flags: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = ["--objective", "max@8", "--sampling.refill", "1", "--off_policy.mini_batches", "2"]
        words += ["--run.steps", "12", "--evaluation.every", "0", "--run.checkpoint_every", "12"]
        code = bestofk(["train", str(RECIPE), *words, "--run.dir", f"{folder}/run", *flags])
        if code:
            sys.exit(code)
        text = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
    steps = [line["seconds"] for line in lines if line["kind"] == "train"]
    later = steps[3:]
    names = sorted({name for step in steps for name in step})
    print(json.dumps({
        "gsm8k_step_s": float(np.median([sum(step.values()) for step in later])),
        "steps": [round(sum(step.values()), 3) for step in steps],
        "phases": {name: float(np.median([s.get(name, 0.0) for s in later])) for name in names},
    }))  # fmt: skip


if __name__ == "__main__":
    needs_cuda()
    main(sys.argv[1:])
