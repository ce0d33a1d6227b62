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
    "sampling_32x16_tok_s": "sampling, 135M: 32 × 16, 64 + 128",
    "sampling_64x16_tok_s": "sampling, 135M: 64 × 16, 64 + 256",
    "sampling_16x64_tok_s": "sampling, 135M: 16 × 64, 512 + 128",
    "learner_20x32_row_tok_s": "learner, 135M: 20 × 32, 512 + 128",
    "sampling_15b_tok_s": "sampling, 1.5B: 32 × 16, 128 + 256",
    "rl_step_15b_s": "RL step, 1.5B: 32 × 16, 128 + 256",
    "lora_step_3b_s": "RL step, 3B, LoRA of rank 16: 32 × 16, 128 + 256",
    "gsm8k_step_s": "GSM8K recipe, 32 × 32 × 256, one refill",
    "tail_share": "exponential lengths against equal ones, refilled",
}
PEERS = ("vllm", "vllm without log-probs", "trl+vllm", "trl+transformers", "trl learner")


def shown(key: str, value: float | None) -> str:
    if value is None:
        return "not measured"
    if key.endswith("_share"):
        return f"{value:.0%}"
    if key.endswith("tok_s"):
        unit = "row-tokens/s" if "row_tok" in key else "tokens/s"
        return f"{value:,.0f} {unit}"
    return f"{value:g} s"


def ratio(key: str, mine: float | None, other: float) -> str:
    if mine is None:
        return ""
    faster = mine / other if key.endswith("tok_s") else other / mine
    return f" ({faster:.1f}×)"


def made(results: dict[str, Any]) -> str:
    """The Markdown table: our figure, the goal, the peers' and how many times faster ours is."""
    lines = ["| work | bestofk | goal | peers |", "|---|---|---|---|"]
    for key, work in WORK.items():
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
