"""The processes of a run: one, or several that accelerate started. Each has its own groups.

    accelerate launch --num_processes 8 -m bestofk train recipe.toml

Nothing here knows what is trained. A process that dies takes the others with it, in seconds and
with a word: each holds a lock on a file in the run's folder, which the kernel releases at death.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bestofk.devices import processes_per_card

WATCH_SECONDS = 2.0


class Processes:
    """Rank, size, and the few things ranks say to each other."""

    def __init__(
        self,
        *,
        device: str = "auto",
        trackers: Sequence[str] = (),
        folder: str = "",
    ) -> None:
        from accelerate import Accelerator
        from accelerate.utils import ProjectConfiguration

        check_launcher(os.environ)
        check_device(device)
        share_cards(device)
        forget_other_device(device)
        self.accelerator = Accelerator(
            kwargs_handlers=backends(device),
            cpu=on_cpu(device),  # which it must be told to start a group of processes there
            log_with=list(trackers) or None,
            project_config=ProjectConfiguration(project_dir=folder, logging_dir=f"{folder}/logs"),
        )
        self.rank: int = self.accelerator.process_index
        self.size: int = self.accelerator.num_processes
        self.device: str = str(self.accelerator.device) if device == "auto" else device
        check_alone(self.size, os.environ)

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
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, here: bool) -> bool:
        """Whether it holds on any process; every process gets the same answer."""
        return any(self.gather(here))

    def wait(self) -> None:
        if self.size > 1:
            self.accelerator.wait_for_everyone()

    def close(self) -> None:
        import torch.distributed as dist

        self.accelerator.end_training()
        if self.size == 1 and dist.is_initialized():
            dist.destroy_process_group()  # the group of one that sharding made


def backends(device: str) -> list[Any]:
    """Settings for processes that share a GPU: NCCL takes one process per GPU, gloo several."""
    import torch
    from accelerate.utils import InitProcessGroupKwargs

    if on_cpu(device) or processes_per_card(torch.cuda.device_count()) == 1:
        return []
    return [InitProcessGroupKwargs(backend="gloo")]


def share_cards(device: str) -> None:
    """Where there are more processes than GPUs, number them by GPU: accelerate takes a process's
    number on the machine for that of its GPU."""
    import torch

    cards = torch.cuda.device_count()
    if cards and not on_cpu(device) and processes_per_card(cards) > 1:
        os.environ["LOCAL_RANK"] = str(int(os.environ.get("LOCAL_RANK", "0")) % cards)


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


def forget_other_device(device: str) -> None:
    """Let a process that trained on one kind of device train on another: accelerate keeps the
    first, and says nothing or stops."""
    import torch.distributed as dist
    from accelerate.state import AcceleratorState, PartialState

    if not PartialState._shared_state or (dist.is_available() and dist.is_initialized()):
        return
    if (PartialState().device.type == "cpu") != on_cpu(device):
        AcceleratorState._reset_state(reset_partial_state=True)


def on_cpu(device: str) -> bool:
    """Whether a run with this `model.device` computes on the CPU here."""
    import torch

    return device == "cpu" or (device == "auto" and not torch.accelerator.is_available())


def check_alone(size: int, environ: Mapping[str, str]) -> None:
    """Raise where a process was started as one of several and would train as if alone."""
    started = environ.get("WORLD_SIZE", "1")
    if size == 1 and started.isdigit() and int(started) > 1:
        raise ValueError(
            f"the launcher started {started} processes, and this one found no way to the others: "
            "each would train the whole run. Set model.device = 'cpu', or start one process"
        )


def check_device(name: str) -> None:
    """Raise for a device that PyTorch does not know or does not see."""
    import torch

    if name == "auto":
        return
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ValueError(
            f"model.device is auto, cpu, cuda or cuda:1 and the like, got {name!r}"
        ) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"model.device = {name!r}, and PyTorch {torch.__version__} sees no GPU here: 'auto' "
            "takes what there is"
        )


SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
WRAPPERS = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


def check_launcher(environ: Mapping[str, str]) -> None:
    """Raise for what a launcher asked for and would not get.

    `accelerate launch --cpu --num_processes 2` starts one process: on CPU it leaves several to
    mpirun. And it can be told to wrap the model in its own way, which is not the learner's.
    """
    for name in WRAPPERS:
        if environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("1", "true", "yes"):
            raise ValueError(
                f"the launcher asks for {name}, and the learner shares the weights out itself: "
                f"launch without --use_{name.lower()} (and without it in the launcher's config "
                "file), and set model.advanced.fsdp = true for FSDP2"
            )
    several = "MASTER_PORT" in environ and "ACCELERATE_MIXED_PRECISION" in environ
    if several and not any(name in environ for name in SIZES):
        raise ValueError(
            "accelerate was asked for several processes and started one: on CPU it needs mpirun "
            "for that (--mpirun_hostfile); torchrun --nproc_per_node N -m bestofk train ... does "
            "without"
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
    if processes.size == 1:
        yield
        return
    locks = folder / ".ranks"
    locks.mkdir(parents=True, exist_ok=True)
    own = os.open(locks / str(processes.rank), os.O_CREAT | os.O_RDWR)
    fcntl.flock(own, fcntl.LOCK_EX)
    processes.wait()
    others = {
        rank: os.open(locks / str(rank), os.O_RDONLY)
        for rank in range(processes.size)
        if rank != processes.rank
    }
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            gone = dead(others)
            if gone is not None and not over.wait(0.2):
                message = farewell(gone, processes, folder)
                print(f"bestofk train: {message}", file=sys.stderr, flush=True)
                os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch").start()
    try:
        yield
        processes.wait()  # nobody lets go of its lock before all have arrived here
    except Exception as error:
        # A broken connection is noticed before the death that broke it: look who is left.
        over.wait(0.5)
        gone = dead(others)
        if gone is None or isinstance(error, ValueError):
            raise
        raise ProcessDied(farewell(gone, processes, folder)) from error
    finally:
        over.set()
        os.close(own)


def dead(others: Mapping[int, int]) -> int | None:
    """A process whose lock is free, by rank: the kernel releases it at death."""
    for rank, handle in others.items():
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(handle, fcntl.LOCK_UN)
            return rank
    return None


def farewell(gone: int, processes: Processes, folder: Path) -> str:
    return (
        f"process {gone} of {processes.size} died; process {processes.rank} stops too. Its last "
        f"messages are above or in its log; the last checkpoint is intact: --resume {folder}"
    )
