"""What a process may take of a GPU, and how PyTorch's compiler behaves on it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from bestofk.storage import cache_folder


def processes_per_card(cards: int, environ: Mapping[str, str] = os.environ) -> int:
    """Processes of this run that share one GPU: the launcher says how many run on this machine.

    >>> processes_per_card(1, {"LOCAL_WORLD_SIZE": "2"}), processes_per_card(8, {})
    (2, 1)
    """
    here = environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, -(-int(here if here.isdigit() else 1) // max(1, cards)))


def card_bytes(device: Any) -> float:
    """Memory of a GPU that this process may take: that of the card, or the share of it that PyTorch
    was given, over the processes of this run that are on it."""
    import torch

    number = _number(device)
    total = float(torch.cuda.get_device_properties(number).total_memory)
    share = torch.cuda.get_per_process_memory_fraction(number)
    return total * share / processes_per_card(torch.cuda.device_count())


def _number(device: Any) -> int:
    """The number of a GPU; "cuda" is the present one."""
    import torch

    number = torch.device(device).index
    return torch.cuda.current_device() if number is None else number


def limit_memory(device: Any, share: float) -> None:
    """Let this process take at most this part of a GPU's memory; an earlier limit stays."""
    import torch

    number = _number(device)
    before = torch.cuda.get_per_process_memory_fraction(number)
    torch.cuda.set_per_process_memory_fraction(min(share, before), number)


OWN_CONTEXT = 2.0 * 2**30
"""What a GPU holds when nobody else computes on it, at most: CUDA itself, a screen."""


def share_left(free: float, total: float) -> float | None:
    """The part of a GPU's memory that other processes leave, less a twentieth; None where there
    are none, or nothing is left.

    >>> share_left(139e9, 140e9), share_left(70e9, 140e9), share_left(1e9, 140e9)
    (None, 0.47, None)
    """
    if total - free < OWN_CONTEXT:
        return None
    return int(95 * free / total) / 100 or None


def share_left_on(name: str) -> float | None:
    """`share_left` on the GPU that a device names; None without one, and for one of several
    processes, which share its memory by their number."""
    try:
        import torch
    except ImportError:
        return None
    on_gpu = name == "auto" or name.startswith("cuda")
    if not on_gpu or not torch.cuda.is_available() or "LOCAL_RANK" in os.environ:
        return None
    return share_left(*torch.cuda.mem_get_info("cuda" if name == "auto" else name))


def keep_compiled() -> None:
    """Have PyTorch's compiler keep its files in our cache folder; its own is emptied with /tmp.

    A folder that the user named in $TORCHINDUCTOR_CACHE_DIR wins; PyTorch sets the variable too, to
    its own folder, when it is imported. Where ours cannot be written nothing changes.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", "") not in ("", default_cache_dir()):
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.resolve())


def let_threads_sleep() -> None:
    """Have PyTorch's threads stop spinning soon while they wait: a busy machine would crawl.

    It is read when PyTorch loads. What the user said of waiting threads stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def silence_compiler() -> None:
    """Drop two notes of PyTorch's compiler that no user of a run can act on: that TF32 is off (the
    run chose its precision), and that a softmax is computed in two passes."""
    warnings.filterwarnings("ignore", r"TensorFloat32 tensor cores", UserWarning)
    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled", UserWarning)
