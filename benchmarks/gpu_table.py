"""The table of GPU figures in research/performance.md, made from benchmarks/results/gpu.json.

python benchmarks/gpu_table.py           prints it
python benchmarks/gpu_table.py --write   puts it into the page
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu.json"
PAGE = HERE.parent / "research" / "performance.md"
BEGIN, END = "<!-- gpu: made by benchmarks/gpu_table.py -->", "<!-- /gpu -->"

WORK = {
    "rl_step_135m_s": "RL step, 135M: 32 × 16, 64 + 128 tokens",
    "first_step_135m_s": "first RL step, 135M, nothing compiled before",
    "first_step_again_135m_s": "first RL step, 135M, compiled before on this machine",
    "sampling_32x16_tok_s": "sampling, 135M: 32 × 16, 64 + 128",
    "sampling_64x16_tok_s": "sampling, 135M: 64 × 16, 64 + 256",
    "sampling_16x64_tok_s": "sampling, 135M: 16 × 64, 512 + 128",
    "sampling_4x512_tok_s": "sampling, 135M: 4 × 512, 64 + 256",
    "sampling_2x1024_tok_s": "sampling, 135M: 2 × 1,024, 64 + 256",
    "sampling_long_2048_tok_s": "sampling, 135M: 32 × 16, 128 + 512 on average, at most 2,048",
    "sampling_long_4096_tok_s": "sampling, 135M: 32 × 16, 128 + 1,024 on average, at most 4,096",
    "learner_20x32_row_tok_s": "learner, 135M: 20 × 32, 512 + 128",
    "learner_64x16_row_tok_s": "learner, 135M: 64 × 16, 64 + 256",
    "learner_4x512_row_tok_s": "learner, 135M: 4 × 512, 64 + 256",
    "learner_2x1024_row_tok_s": "learner, 135M: 2 × 1,024, 64 + 256",
    "sampling_15b_tok_s": "sampling, 1.5B: 32 × 16, 128 + 256",
    "rl_step_15b_s": "RL step, 1.5B: 32 × 16, 128 + 256",
    "lora_step_3b_s": "RL step, 3B, LoRA of rank 16: 32 × 16, 128 + 256",
    "lora_step_7b_s": "RL step, 7B, LoRA of rank 16: 32 × 16, 128 + 256",
    "lora_peak_7b_gib": "peak memory, 7B, LoRA of rank 16: 32 × 16, 128 + 256",
    "lora_fp8_step_3b_s": "RL step, 3B in FP8, LoRA of rank 16: 32 × 16, 128 + 256",
    "lora_fp8_step_7b_s": "RL step, 7B in FP8, LoRA of rank 16: 32 × 16, 128 + 256",
    "lora_fp8_peak_7b_gib": "peak memory, 7B in FP8, LoRA of rank 16: 32 × 16, 128 + 256",
    "gsm8k_step_s": "GSM8K recipe, 32 × 32 × 256, one refill",
    "tail_share": "exponential lengths against equal ones, refilled",
    "long_2048_share": "exponential lengths, 32 × 16, mean 512, at most 2,048",
    "long_4096_share": "exponential lengths, 32 × 16, mean 1,024, at most 4,096",
    "short_16x32_share": "exponential lengths, 0.5B: 16 × 32, mean 140, at most 512",
    "short_64x32_share": "exponential lengths, 0.5B: 64 × 32, mean 140, at most 512",
}
PEERS = (
    "vllm", "vllm without log-probs", "trl+vllm", "trl+vllm+peft", "trl+transformers",
    "trl learner",
)  # fmt: skip


def shown(key: str, value: float | None) -> str:
    if value is None:
        return "not measured"
    if key.endswith("_share"):
        return f"{value:.0%}"
    if key.endswith("tok_s"):
        unit = "row-tokens/s" if "row_tok" in key else "tokens/s"
        return f"{value:,.0f} {unit}"
    return f"{value:g} {'GiB' if key.endswith('_gib') else 's'}"


def ratio(key: str, mine: float | None, other: float) -> str:
    """How many times better ours is: more tokens, fewer seconds, fewer GiB."""
    if mine is None:
        return ""
    better = mine / other if key.endswith("tok_s") else other / mine
    return f" ({better:.1f}×)"


def made(results: dict[str, Any]) -> str:
    """The Markdown table: our figure, the goal, the peers' and how many times better ours is."""
    lines = ["| work | bestofk | goal | peers |", "|---|---|---|---|"]
    for key, work in WORK.items():
        if not any(key in results.get(name, {}) for name in ("bestofk", "goals", *PEERS)):
            continue
        mine = results["bestofk"].get(key)
        goal = shown(key, results["goals"][key]) if key in results["goals"] else ""
        peers = "; ".join(
            f"{name} {shown(key, results[name][key])}{ratio(key, mine, results[name][key])}"
            for name in PEERS
            if key in results.get(name, {})
        )
        lines.append(f"| {work} | {shown(key, mine)} | {goal} | {peers} |")
    return "\n".join(lines)


def page_with(table: str, page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def main(words: list[str]) -> None:
    table = made(json.loads(RESULTS.read_text(encoding="utf-8")))
    if "--write" in words:
        PAGE.write_text(page_with(table, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
