"""A run's settings and numbers to TensorBoard, Weights & Biases and trackio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = "bestofk"


class TensorBoard:
    """TensorBoard's writer with the methods of the other two's runs."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder))
        self.writer.add_hparams(dict(config), {})
        self.finish = self.writer.close

    def log(self, numbers: Mapping[str, float], *, step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, global_step=step)
        self.writer.flush()


def start_trackers(names: Sequence[str], config: Mapping[str, Any]) -> list[Any]:
    """Each has `log(numbers, step=)` and `finish()`; the run is named by its folder."""
    plain = {
        name: value if isinstance(value, int | float | str) else str(value)
        for name, value in config.items()
    }
    folder, trackers = Path(config["run.dir"]), list[Any]()
    options: dict[str, Any] = {"project": PROJECT, "name": folder.name, "config": plain}
    if "tensorboard" in names:
        trackers.append(TensorBoard(folder / "logs" / PROJECT, plain))
    if "wandb" in names:
        import wandb

        trackers.append(wandb.init(group=folder.name, dir=str(folder), **options))
    if "trackio" in names:
        import trackio

        trackers.append(trackio.init(resume="allow", **options))
    return trackers
