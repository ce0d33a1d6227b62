"""The first RL step on one GPU: in a process without caches, and in a second one that has them.

    python benchmarks/gpu_first.py [135m] [15b] [3b-lora]      needs CUDA

Each process makes the model and takes two steps. A line of JSON has the seconds of both steps and
the compilations of torch.compile: id, name, seconds, why again. Kernels of our own are compiled by
Triton, which the list does not hold.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
LISTED = 0.05
"""Seconds from which a compilation is listed."""


def compilations() -> dict[str, Any]:
    """How often torch.compile compiled, how long, and what."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    rows = []
    for each in get_compilation_metrics():
        taken = (each.duration_us or 0) / 1e6
        name = f"{each.co_name or ''}:{each.co_firstlineno or ''}"
        way = {True: "forward", False: "backward"}.get(each.is_forward, "")
        rows.append((str(each.compile_id), name, way, round(taken, 2), each.recompile_reason))
    caches = ("inductor", "aot_autograd")
    return {
        "compilations": len(rows),
        "compilation_s": round(sum(row[3] for row in rows), 2),
        "compiled": [
            [*row[:4], *([str(row[4])[:120]] if row[4] else [])] for row in rows if row[3] >= LISTED
        ],
        "caches": {
            key: count for kind in caches for key, count in counters[kind].items() if "cache" in key
        },
        "graphs": counters["stats"].get("unique_graphs", 0),
    }


def first(name: str, **changes: Any) -> dict[str, Any]:
    """Two steps in this process."""
    from torch._dynamo.utils import set_compilation_metrics_limit

    import gpu_step

    set_compilation_metrics_limit(1000)
    imported = time.perf_counter() - BEGAN
    found = gpu_step.measured(**{**gpu_step.SHAPES[name], "steps": 2, **changes})
    kept = ("shape", "first_step", "sampler", "peak_gib")
    return {
        "import_s": imported, "first_step_s": found["first_step"]["step"],
        "second_step": found["phases"], **{key: found[key] for key in kept}, **compilations(),
    }  # fmt: skip


def main(asked: list[str]) -> None:
    if asked[:1] == ["--child"]:
        from _gpu import needs_cuda, reported

        needs_cuda()
        reported("first", " ".join(asked[1:]), lambda: first(asked[1]))
        return
    for name in asked or ["135m"]:
        with tempfile.TemporaryDirectory() as folder:
            caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")
            places = {key: str(Path(folder, key.lower())) for key in caches}
            for run in ("cold", "again"):
                command = [sys.executable, __file__, "--child", name, run]
                subprocess.run(command, env={**os.environ, **places})


if __name__ == "__main__":
    main(sys.argv[1:])
