"""`bestofk doctor`: what this machine can promise, and what is missing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import warnings
from typing import Any

from bestofk.cli._options import VerbOptions, parsed
from bestofk.cli._terminal import wrapped

# extra of the package: the distributions it brings, and what for
EXTRAS = {
    "train": (
        ("torch", "transformers", "peft", "huggingface-hub", "safetensors", "gguf"),
        "train and sample on this machine",
    ),
    "math": (("latex2sympy2-extended",), "judge mathematics beyond numbers"),
    "gym": (("reasoning-gym",), "reasoning-gym tasks"),
    "data": (("datasets", "pyarrow"), "data sets from the Hub, parquet files"),
    "vllm": (("vllm",), "sample with vLLM"),
    "nf4": (("bitsandbytes",), "LoRA over weights in 4 bits"),
    "trl": (("trl",), "the objectives inside TRL"),
    "api": (("httpx",), "sample from an OpenAI-compatible endpoint"),
    "serve": (("starlette", "uvicorn", "httpx"), "serve the best of k"),
    "plot": (("matplotlib",), "figures for papers"),
    "trackio": (("trackio",), "log to trackio"),
    "wandb": (("wandb",), "log to Weights & Biases"),
    "tensorboard": (("tensorboard",), "log to TensorBoard"),
}
# module of a host: its name, our side, the least version that was checked
HOSTS = {
    "trl": ("TRL", "bestofk.adapters.trl", (1, 10)),
    "verl": ("verl", "bestofk.adapters.verl.plugin", (0, 9)),
    "skyrl": ("SkyRL", "bestofk.adapters", (0, 3)),
    "openrlhf": ("OpenRLHF", "bestofk.adapters", (0, 11)),
    "vllm": ("vLLM", "bestofk.sampling.vllm_server", (0, 32)),
}
# packages that programs and reference solutions import, and where they do
PROGRAM_PACKAGES = {
    "sortedcontainers": "LeetCode references",
    "numpy": "a LeetCode reference",
}
ADVICE = {
    3: "run as root with CAP_SYS_ADMIN (a container: --cap-add SYS_ADMIN); tier 2 or 1 will do "
    "for most",
    2: "let users make namespaces (sysctl user.max_user_namespaces=10000; on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0); tier 1 will do for most",
    1: "use Linux 6.2 or newer with Landlock switched on (lsm=...,landlock on the kernel's command "
    "line), on x86-64 or AArch64",
}


class DoctorOptions(VerbOptions):
    """What this machine supports, found by trying, and what is missing."""

    tier: int = 1
    """Exit with status 1 unless the sandbox reaches this tier (1 to 3)."""


def sandbox_tiers() -> dict[int, str]:
    """Tier → "" where the attack self-test found nothing, else the reason it is not offered."""
    from bestofk.sandbox import Sandbox, SandboxError

    result = {}
    for tier in (3, 2, 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                Sandbox(tier=tier, at_most=tier, workers=1).close()
            result[tier] = ""
        except SandboxError as error:
            reason = str(error).partition(f"tier {tier}: ")[2]
            result[tier] = reason.rpartition("; `bestofk doctor`")[0] or str(error)
    return result


def memory_for_programs() -> str:
    """Whether a program on every core fits, each at its usual limit."""
    from bestofk.sandbox import Limits, available_memory, shortage

    cores, limit, available = len(os.sched_getaffinity(0)), Limits().memory, available_memory()
    enough = f"{cores} x {limit >> 20} MiB for programs fit"
    return shortage(cores, limit, available) or enough


def version_of(distribution: str) -> str | None:
    """The version installed, under its name or as a build for CPU (vLLM has one)."""
    for name in (distribution, f"{distribution}-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def host_state(host: str) -> str:
    """Whether the present environment can use the adapter of a host."""
    _, ours, oldest = HOSTS[host]
    if importlib.util.find_spec(host) is None:
        return "not installed"
    version = version_of(host)
    if version is None:
        return f"{ours}, with a version that is not known"
    result = tuple(int(part) for part in re.findall(r"\d+", version)[: len(oldest)])
    if result < oldest:
        return f"too old: {version}, {ours} needs {'.'.join(map(str, oldest))} or newer"
    return f"{version}: {ours}"


def examine() -> dict[str, Any]:
    """Everything doctor knows, as plain data."""
    tiers = sandbox_tiers()
    extras = {
        name: {package: version_of(package) for package in packages}
        for name, (packages, _) in EXTRAS.items()
    }
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "user": os.geteuid(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": os.path.exists("/dev/nvidia0") or os.path.exists("/dev/kfd"),
        "tier": max((tier for tier, reason in tiers.items() if not reason), default=0),
        "tiers": {str(tier): reason or "offered" for tier, reason in tiers.items()},
        "memory": memory_for_programs(),
        "extras": extras,
        "program_packages": {name: version_of(name) for name in PROGRAM_PACKAGES},
        "hosts": {name: host_state(name) for name in HOSTS},
    }


def page(facts: dict[str, Any]) -> str:
    """The facts for a person."""
    from bestofk.sandbox import TIERS

    who = "root" if facts["user"] == 0 else f"user {facts['user']}"
    gpu = "a GPU" if facts["gpu"] else "no GPU"
    lines = [
        f"Python {facts['python']}, {facts['platform']}, {facts['cores']} cores, {gpu}, as {who}",
        "",
        f"Sandbox for programs: tier {facts['tier']}, by attacking it",
    ]
    for tier in (3, 2, 1):
        state = facts["tiers"][str(tier)]
        lines.append(f"  {tier}  {TIERS[tier]}: {state}")
        if state != "offered":
            lines.append(f"     to get it: {ADVICE[tier]}")
    lines.append(f"  memory: {facts['memory']}")
    lines += ["", "Extras (pip install 'bestofk[NAME]')"]
    for name, (_, purpose) in EXTRAS.items():
        result = facts["extras"][name]
        missing = [package for package, version in result.items() if version is None]
        have = ", ".join(f"{p} {v}" for p, v in result.items() if v is not None)
        state = f"have {have}" if not missing else f"missing {', '.join(missing)}"
        lines.append(f"  {name:<12} {state}  ({purpose})")
    lines += [
        "",
        "Packages for programs (the code verifier shows them what packages = [...] names)",
    ]
    for name, version in facts["program_packages"].items():
        state = f"have {version}" if version else f"missing: pip install {name}"
        lines.append(f"  {name:<16} {state}  ({PROGRAM_PACKAGES[name]})")
    lines += [
        "",
        "Other stacks that bestofk plugs into, and which adapter this environment can use",
    ]
    lines += [f"  {HOSTS[name][0]:<12} {state}" for name, state in facts["hosts"].items()]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    options = parsed(DoctorOptions, argv, "bestofk doctor")
    if sys.platform != "linux":
        print("the sandbox needs Linux; everything else works here", file=sys.stderr)
        return 1
    facts = examine()
    print(json.dumps(facts, indent=2) if options.as_json else wrapped(page(facts)))
    return 0 if facts["tier"] >= options.tier else 1
