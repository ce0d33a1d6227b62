"""How sampling and learning on one GPU grow with n, prompts and lengths; needs CUDA.

python benchmarks/gpu_growth.py [--out FILE]

One of the four sizes is doubled at a time; a slope of 1 is proportional, 0 is free. Seconds are of
whole calls, as in gpu_sampling.py and gpu_learner.py.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _gpu import needs_cuda, smollm_135m

BASE = {"prompts": 16, "samples": 16, "prompt tokens": 128, "new tokens": 64}


def shape(sizes: dict[str, int]) -> str:
    return "x".join(str(sizes[name]) for name in BASE)


def growth(
    seconds: Callable[[str], float], base: dict[str, int] = BASE, doublings: int = 2
) -> dict[str, dict[str, Any]]:
    """Seconds for each size doubled up to four times, and the slope in log-log coordinates."""
    start = seconds(shape(base))
    found: dict[str, dict[str, Any]] = {}
    for name in base:
        times = {base[name]: start}
        for power in range(1, doublings + 1):
            size = base[name] << power
            times[size] = seconds(shape({**base, name: size}))
        last = max(times)
        slope = math.log(times[last] / start) / math.log(last / base[name])
        found[name] = {"seconds": times, "slope": round(slope, 2)}
    return found


def sampling_seconds(asked: str) -> float:
    import gpu_sampling

    return float(min(gpu_sampling.measured(smollm_135m, asked)["seconds"]))


def learner_seconds(asked: str) -> float:
    import gpu_learner

    return float(min(gpu_learner.measured(smollm_135m, asked, profiled=False)["seconds"]))


def main() -> None:
    needs_cuda()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for phase, seconds in (("sampling", sampling_seconds), ("learner", learner_seconds)):
        found[phase] = growth(seconds)
        for name, row in found[phase].items():
            times = "  ".join(f"{size}: {taken:.3f} s" for size, taken in row["seconds"].items())
            print(f"{phase:9} {name:14} slope {row['slope']:5.2f}   {times}", flush=True)
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
