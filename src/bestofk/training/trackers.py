"""A run's settings and numbers to TensorBoard, Weights & Biases and trackio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

PROJECT = "bestofk"


class Tracker(Protocol):
    """As the runs of Weights & Biases and of trackio are."""

    def log(self, numbers: dict[str, float], /, *, step: int) -> Any: ...

    def finish(self) -> Any: ...


class TensorBoard:
    """The same for TensorBoard, in `logs` of the run's folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "logs" / PROJECT))
        self.writer.add_hparams(dict(config), {})

    def log(self, numbers: dict[str, float], /, *, step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, global_step=step)
        self.writer.flush()

    def finish(self) -> None:
        self.writer.close()


def start_trackers(names: Sequence[str], config: Mapping[str, Any]) -> list[Tracker]:
    """Trackers of a run, which get its settings; a resumed run continues where one can."""
    plain = {
        name: value if isinstance(value, int | float | str) else str(value)
        for name, value in config.items()
    }
    folder, trackers = Path(config["run.dir"]), list[Tracker]()
    if "tensorboard" in names:
        trackers.append(TensorBoard(folder, plain))
    if "wandb" in names:
        import wandb

        trackers.append(
            wandb.init(
                project=PROJECT, name=folder.name, group=folder.name, dir=str(folder), config=plain
            )
        )
    if "trackio" in names:
        import trackio

        trackers.append(
            trackio.init(project=PROJECT, name=folder.name, resume="allow", config=plain)
        )
    return trackers
