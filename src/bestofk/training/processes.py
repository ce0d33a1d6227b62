"""The processes of a run: one, or several that torchrun started. Each has its own groups.

    torchrun --nproc_per_node 8 -m bestofk train recipe.toml

Nothing here knows what is trained. A process that dies takes the others with it, in seconds and
with a word: each holds a lock on a file in the run's folder, which the kernel releases at death.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from bestofk.devices import processes_per_card

WATCH_SECONDS = 2.0
LEFT: list[Any] = []
"""Groups of processes that were left. With the model DDP would free them under Python's lock.
That waits for gloo's threads, and one may wait for the lock, to free the last gathered tensor."""


class Processes:
    """Rank, size, device, and the few things ranks say to each other."""

    def __init__(self, *, device: str = "auto") -> None:
        import torch
        import torch.distributed as dist

        check_launcher(os.environ)
        self.device = device_of(device)
        if self.device.startswith("cuda:"):
            torch.cuda.set_device(self.device)
        self._joined = not dist.is_initialized()
        """Whether the group of processes ends with the run; a caller's own stays."""
        if self._joined and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group(backend(self.device))
        several = dist.is_initialized()
        self.rank: int = dist.get_rank() if several else 0
        self.size: int = dist.get_world_size() if several else 1

    def check_share(self, prompts: int, mini_batches: int) -> None:
        """Raise where the processes cannot share a batch equally, in whole groups."""
        if prompts % (self.size * mini_batches):
            raise ValueError(
                f"sampling.prompts_per_step = {prompts} must be a multiple of processes × "
                f"mini-batches = {self.size} × {mini_batches}, so that each has whole groups"
            )

    @property
    def main(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, on every process."""
        from bestofk.learning import distributed  # which imports torch

        return distributed.gather(value)

    def any(self, here: bool) -> bool:
        """Whether it holds on any process; every process gets the same answer."""
        return any(self.gather(here))

    def wait(self) -> None:
        self.gather(None)

    def close(self) -> None:
        import torch.distributed as dist

        if self._joined and dist.is_initialized():
            LEFT.append(dist.group.WORLD)
            dist.destroy_process_group()


def device_of(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The device of this process: with a launcher, the GPU of its number on this machine. Processes
    that are more than the GPUs share them in turn."""
    import torch

    if on_cpu(name):
        return "cpu"
    kind = str(torch.accelerator.current_accelerator()) if name == "auto" else name
    if kind != "cuda" or "LOCAL_RANK" not in environ:
        return kind
    return f"cuda:{int(environ['LOCAL_RANK']) % torch.cuda.device_count()}"


def backend(device: str) -> str:
    """NCCL takes one process per GPU, gloo several."""
    import torch

    alone = device.startswith("cuda") and processes_per_card(torch.cuda.device_count()) == 1
    return "nccl" if alone else "gloo"


def check_launcher(environ: Mapping[str, str]) -> None:
    """Raise where a launcher started several processes, or was asked for them, and this one would
    train the whole run alone: only torchrun's variables say who the others are."""
    mpi = any(environ.get(name, "1") != "1" for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"))
    accelerate = "MASTER_PORT" in environ and "ACCELERATE_MIXED_PRECISION" in environ
    if (mpi or accelerate) and "WORLD_SIZE" not in environ:
        raise ValueError(
            "the launcher was asked for several processes, and this one finds no way to the "
            "others: start them with torchrun --nproc_per_node N -m bestofk train ..."
        )


def check_shards(
    fsdp: bool, device: str, cards: int, environ: Mapping[str, str] = os.environ
) -> None:
    """Raise where weights should be shared out over processes that share a GPU.

    >>> check_shards(True, "cuda", 1, {"LOCAL_WORLD_SIZE": "2"})
    Traceback (most recent call last):
    ...
    ValueError: model.advanced.fsdp needs a GPU for each process, and 2 processes share one ...
    """
    sharing = processes_per_card(cards, environ)
    if fsdp and sharing > 1 and device.startswith("cuda"):
        raise ValueError(
            f"model.advanced.fsdp needs a GPU for each process, and {sharing} processes share one "
            f"here: start as many as there are GPUs ({cards}), or leave fsdp off"
        )


def on_cpu(device: str) -> bool:
    """Whether a run with this `model.device` computes on the CPU here."""
    import torch

    return device == "cpu" or (device == "auto" and not torch.accelerator.is_available())


def check_device(name: str) -> None:
    """Raise for a device that PyTorch does not know or does not see."""
    import torch

    if name == "auto":
        return
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"model.device is auto, cpu, cuda or cuda:1 and the like, got {name!r}"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"model.device = {name!r}, and PyTorch {torch.__version__} sees no GPU here: 'auto' "
            "takes what there is"
        )
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(
            f"model.device = {name!r}, and the last GPU that PyTorch sees here is cuda:{count - 1}"
        )


FP8_FROM = (8, 9)
"""Compute capability of the first GPUs with products in FP8 (Ada, Hopper)."""


def check_fp8(name: str) -> None:
    """Raise where the device has no products in FP8."""
    import torch

    on_gpu = name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())
    found = torch.cuda.get_device_capability(None if name == "auto" else name) if on_gpu else None
    if found is None or found < FP8_FROM:
        here = f"this one has {found[0]}.{found[1]}" if found else "this run is on CPU"
        raise ValueError(
            "model.advanced.lora_fp8 needs a GPU of compute capability 8.9 or higher (Ada, Hopper "
            f"or later), and {here}: leave it out"
        )


class StopSignal:
    """Set by the first SIGINT or SIGTERM; the second one ends the process at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            if os.isatty(1):
                os.write(1, b"\x1b[?25h")  # the live view hid the cursor
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.signal = number
        name = signal.Signals(number).name
        # os.write, because a handler may run inside print.
        os.write(2, f"\n{name}: writing a checkpoint; once more to leave at once\n".encode())

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def is_set(self) -> bool:
        return self.signal is not None


class ProcessDied(OSError):
    """Another process of the run is gone."""


@contextlib.contextmanager
def watching(folder: Path, processes: Processes) -> Iterator[None]:
    """While inside, the death of any other process of this machine ends this one, with a word."""
    import fcntl  # only Unix has it, and settings are resolved elsewhere too

    if processes.size == 1:
        yield
        return
    locks = folder / ".ranks"
    locks.mkdir(parents=True, exist_ok=True)
    own = os.open(locks / str(processes.rank), os.O_CREAT | os.O_RDWR)
    fcntl.flock(own, fcntl.LOCK_EX)
    processes.wait()
    locks_of_others = {
        rank: os.open(locks / str(rank), os.O_RDONLY)
        for rank in range(processes.size)
        if rank != processes.rank
    }
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            gone = dead(locks_of_others)
            if gone is not None and not over.wait(0.2):
                message = death_message(gone, processes, folder)
                print(f"bestofk train: {message}", file=sys.stderr, flush=True)
                os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch").start()
    try:
        yield
        processes.wait()  # nobody lets go of its lock before all have arrived here
    except Exception as error:
        # A broken connection is noticed before the death that broke it: look who is left.
        over.wait(0.5)
        gone = dead(locks_of_others)
        if gone is None or isinstance(error, ValueError):
            raise
        raise ProcessDied(death_message(gone, processes, folder)) from error
    finally:
        over.set()
        os.close(own)


def dead(locks: Mapping[int, int]) -> int | None:
    """A process whose lock is free, by rank: the kernel releases it at death."""
    import fcntl

    for rank, handle in locks.items():
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(handle, fcntl.LOCK_UN)
            return rank
    return None


def death_message(gone: int, processes: Processes, folder: Path) -> str:
    return (
        f"process {gone} of {processes.size} died; process {processes.rank} stops too. Its last "
        f"messages are above or in its log; the last checkpoint is intact: --resume {folder}"
    )
