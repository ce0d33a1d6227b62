"""A run is a folder, and never lost.

    config.toml          what was asked, resolved; written first
    environment.json     versions and hardware; no variables, no secrets
    engine.json          on a GPU: the sizes of the sampler's memory
    metrics.jsonl        one line per step and one per evaluation
    samples/000012.jsonl the completions of step 12: prompt, text, reward, status, weight
    evaluations/         000050.jsonl …: the completions of each evaluation, in the same form;
                         evaluations-NAME/ those of the set NAME
    checkpoints/         step-000025/ … : weights, optimiser, state, and a manifest of checksums
    best/  best.json     the model with the best validation metric
    final/               the trained model with its card, for `from_pretrained`
    failed/step-000013/  the batch a run stopped on

Whatever must not be torn is written beside its place, synced, and renamed: after a kill at any
moment the folder holds the last good state, and what was written after it is dropped on resume.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestofk.storage import json_safe, sync_to_disk, write_atomically

STEP = "step-{:06d}"
MANIFEST = "manifest.json"
KINDS = ("train", "evaluation", "evaluation_set")
"""Lines of metrics: a step, an evaluation, an evaluation on one of `evaluation.sets`."""


class DamagedCheckpoint(ValueError):
    """A checkpoint whose files are not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from."""

    path: Path
    step: int
    """Steps completed."""
    state: Mapping[str, Any]
    """Counters, positions and names: JSON values."""

    def tensors(self) -> dict[str, Any]:
        """The trained weights by name."""
        from safetensors.torch import load_file

        return load_file(self.path / "weights.safetensors")

    def trainer_state(self) -> Any:
        """Optimiser, scheduler and generators; loaded without unpickling code."""
        import torch

        file = self.path / "trainer.pt"
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)


class Checkpoints:
    """The checkpoints of a run: each is there whole, with checksums, or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """Oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if path.suffix == "")

    def prune(self, keep_last: int) -> None:
        """Remove all but the newest, and what a killed write left behind."""
        for unfinished in self.folder.glob(".writing-*"):
            shutil.rmtree(unfinished)
        for old in self.paths()[:-keep_last]:
            shutil.rmtree(old)

    def go_back_to(self, name: str) -> None:
        """Set aside those after the one named."""
        paths = self.paths()
        names = [path.name for path in paths]
        if name not in names:
            have = ", ".join(names) or "none"
            raise FileNotFoundError(f"no checkpoint {name} in {self.folder.parent}; have {have}")
        for newer in paths[names.index(name) + 1 :]:
            newer.rename(newer.with_suffix(".set-aside"))

    def newest(self, *, verified: bool = False) -> Checkpoint | None:
        """The newest, None where none was written yet.

        Args:
            verified: compare every file with its checksum.
        """
        paths = self.paths()
        if not paths:
            return None
        *earlier, path = paths
        if verified and (problem := damage(path)):
            good = next((other for other in reversed(earlier) if damage(other) is None), None)
            way = (
                f"the last good one is {good.name}: --resume {good}"
                if good
                else "no other is left: start again in a folder of its own"
            )
            raise DamagedCheckpoint(f"checkpoint {path} is damaged: {problem}; {way}")
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return Checkpoint(path, state["step"], state)


class Run:
    """The folder of one run, held by one process at a time."""

    def __init__(self, path: str | Path, *, samples_bytes: int = 1 << 26) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._limit = samples_bytes
        self._lock: int | None = None

    @classmethod
    def create(
        cls, path: str | Path, config: str, environment: Mapping[str, Any], **options: Any
    ) -> Run:
        """A new run's folder; an error where it holds a run that got as far as its first step."""
        run = cls(path, **options)
        refuse_begun(run.path)
        try:
            for folder in ("samples", "checkpoints"):
                (run.path / folder).mkdir(parents=True, exist_ok=True)
            run._hold()
            text = json.dumps(environment, indent=1) + "\n"
            write_atomically(run.path / "environment.json", text)
            write_atomically(run.path / "config.toml", config)
        except BlockingIOError:
            raise
        except OSError as error:
            run.close()
            raise type(error)(
                f"run.dir = {str(path)!r} cannot be written ({error.strerror or error}): make it "
                "writable, or name another folder with --run.dir"
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path, **options: Any) -> Run:
        """An existing run's folder, to go on with."""
        run = cls(path, **options)
        if not (run.path / "config.toml").is_file():
            raise FileNotFoundError(
                f"{path} is not a run: it has no config.toml; --resume takes the folder that "
                "--run.dir named"
            )
        run._hold()
        before = run.path / ".before-best"
        if before.exists() and not (run.path / "best").exists():
            os.replace(before, run.path / "best")  # killed while a better one took its place
        return run

    def _hold(self) -> None:
        import fcntl  # Linux and macOS; reading a run's folder works anywhere

        handle = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock = handle
        except BlockingIOError:
            os.close(handle)
            raise BlockingIOError(f"{self.path} is being trained by another process") from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def record(self, line: Mapping[str, Any]) -> None:
        """Append one line of metrics."""
        with self._saying("metrics"), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as f:
            f.write(json.dumps(json_safe(line)) + "\n")

    def record_samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep a step's completions; beyond the size limit the oldest steps go."""
        with self._saying("samples"):
            write_jsonl(self.path / "samples" / f"{step:06d}.jsonl", rows)
            files = sorted((self.path / "samples").glob("*.jsonl"), reverse=True)
            total = 0
            for file in files:
                total += file.stat().st_size
                if total > self._limit and file is not files[0]:
                    file.unlink()

    def record_evaluation(
        self, step: int, rows: Iterable[Mapping[str, Any]], name: str = ""
    ) -> None:
        """Keep the completions of an evaluation, for `bestofk eval` and `bestofk compare`."""
        with self._saying("an evaluation"):
            folder = self.path / (f"evaluations-{name}" if name else "evaluations")
            folder.mkdir(exist_ok=True)
            write_jsonl(folder / f"{step:06d}.jsonl", rows)

    def save(
        self, step: int, *, tensors: Mapping[str, Any], trainer: Any, state: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint: all of it or nothing.

        Raises:
            OSError: it could not be written (a full disk, say); the earlier ones are untouched.
        """
        import torch
        from safetensors.torch import save_file

        def fill(folder: Path) -> None:
            save_file(dict(tensors), folder / "weights.safetensors")
            torch.save(trainer, folder / "trainer.pt")
            text = json.dumps({**state, "step": step}, indent=1)
            (folder / "state.json").write_text(text, encoding="utf-8")

        with self._saying(f"the checkpoint of step {step}"):
            if (self.path / "metrics.jsonl").exists():
                # No checkpoint is of a step whose metrics a power cut could still lose.
                sync_to_disk(self.path / "metrics.jsonl")
            return write_folder(self.checkpoints.folder / STEP.format(step), fill)

    def restore(self, name: str | None = None) -> Checkpoint | None:
        """The newest checkpoint (or the one named), checked; metrics after it are dropped.

        None where none was written yet: the run starts over.

        Raises:
            DamagedCheckpoint: its files are not what was written; names the last good one.
        """
        if name is not None:
            self.checkpoints.go_back_to(name)
        checkpoint = self.checkpoints.newest(verified=True)
        step = checkpoint.step if checkpoint else -1
        for file in (self.path / "samples").glob("*.jsonl"):
            if file.stem.isdecimal() and int(file.stem) > step:
                file.unlink()
        state = checkpoint.state.get("state", {}) if checkpoint else {}
        self._rewind(step, state.get("validated", step))
        return checkpoint

    def _rewind(self, step: int, validated: int) -> None:
        """Drop metrics after `step`, evaluations after `validated`: they are written again."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            if step > 0:
                raise FileNotFoundError(
                    f"{file} is missing, and the checkpoint is of step {step}: put it back, or let "
                    f'it hold the one line {{"kind": "train", "step": {step}}} to go on without'
                )
            return
        ends = {"evaluation": validated, "evaluation_set": validated}
        lines = read_metrics(self.path)
        lines = [line for line in lines if line["step"] <= ends.get(line["kind"], step)]
        last = max((line["step"] for line in lines), default=0)
        if last < step:
            raise ValueError(
                f"{file} ends at step {last}, before the checkpoint of step {step}: lines were lost"
            )
        write_atomically(file, "".join(json.dumps(line) + "\n" for line in lines))

    def save_best(self, step: int, value: float, metric: str, fill: Callable[[Path], None]) -> None:
        """Put a better model in the place of the best one."""
        with self._saying(f"the best model, of step {step}"):
            write_folder(self.path / "best", fill)
            note = {"step": step, "metric": metric, "value": value}
            write_atomically(self.path / "best.json", json.dumps(note, indent=1) + "\n")

    def save_final(self, fill: Callable[[Path], None]) -> Path:
        with self._saying("the final model"):
            return write_folder(self.path / "final", fill)

    def save_failure(self, step: int, fill: Callable[[Path], None]) -> Path:
        """Keep the batch that broke a step."""
        with self._saying(f"the failed batch of step {step}"):
            return write_folder(self.path / "failed" / STEP.format(step), fill)

    @contextlib.contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        """A failure to write, with what is safe and how to go on."""
        try:
            yield
        except OSError as error:
            paths = self.checkpoints.paths()
            safe = f"the last good checkpoint, {paths[-1].name}, is intact" if paths else (
                "no checkpoint was written yet")  # fmt: skip
            raise OSError(
                f"cannot write {what} in {self.path}: {error.strerror or error}; {safe}; make room "
                f"and go on with --resume {self.path}"
            ) from error


def refuse_begun(path: str | Path) -> None:
    """Raise where a run has begun, or other files stand where a run removes old ones."""
    folder = Path(path)
    begun = ("metrics.jsonl", "checkpoints/step-*", "samples/*", "best/*", "final/*")
    if any(any(folder.glob(each)) for each in begun):
        raise FileExistsError(
            f"{path} holds a run already: go on with --resume {path}, or name another --run.dir"
        )


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Every line of a run's metrics; `kind` is one of `KINDS`."""
    file = Path(path) / "metrics.jsonl"
    if not file.is_file():
        raise FileNotFoundError(f"{path} has no metrics.jsonl: is it a run's folder?")
    lines = list(read_jsonl(file))
    for number, line in enumerate(lines, start=1):
        if line.get("kind") not in KINDS or type(line.get("step")) is not int:
            raise ValueError(
                f"{file}, entry {number}: a line of metrics has a kind ({', '.join(KINDS)}) and a "
                f"step, got {str(line)[:80]}"
            )
    return lines


def read_samples(path: str | Path) -> Iterator[dict[str, Any]]:
    """A run's kept completions, oldest step first."""
    for file in sorted((Path(path) / "samples").glob("*.jsonl")):
        yield from read_jsonl(file)


def read_jsonl(file: Path) -> Iterator[dict[str, Any]]:
    """Lines as dicts; a torn last one (a killed writer's) is passed over, others are errors."""
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            result = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) - 1:
                return
            raise ValueError(f"{file}, line {number + 1} is not JSON: {error}") from None
        if not isinstance(result, dict):
            raise ValueError(f"{file}, line {number + 1} is not an object but {str(line)[:60]}")
        yield result


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(json_safe(row), ensure_ascii=False) + "\n" for row in rows)
    write_atomically(path, text, sync=False)


def write_folder(path: Path, fill: Callable[[Path], None]) -> Path:
    """A folder that is there whole or not at all: filled beside, listed, synced, renamed."""
    beside = path.with_name(f".writing-{path.name}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        fill(beside)
        files = [file for file in sorted(beside.rglob("*")) if file.is_file()]
        listing = {str(f.relative_to(beside)): [f.stat().st_size, digest(f)] for f in files}
        (beside / MANIFEST).write_text(json.dumps(listing, indent=1), encoding="utf-8")
        for written in [*files, beside / MANIFEST, beside]:
            sync_to_disk(written)
        before = path.with_name(f".before-{path.name}")
        shutil.rmtree(before, ignore_errors=True)
        if path.exists():
            os.replace(path, before)
        os.replace(beside, path)
        sync_to_disk(path.parent)
        shutil.rmtree(before, ignore_errors=True)
    except Exception as error:
        full = "No space left" in str(error) or shutil.disk_usage(beside).free < 1 << 20
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, OSError):
            raise
        # torch and safetensors report a full disk in exceptions of their own.
        reported = "no space left on the disk" if full else f"{type(error).__name__}: {error}"
        raise OSError(errno.ENOSPC if full else errno.EIO, reported) from error
    return path


def digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def damage(path: Path) -> str | None:
    """What is wrong with a folder that `write_folder` wrote, or None."""
    try:
        listing = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        entries = [(name, size, checksum) for name, (size, checksum) in listing.items()]
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return f"its {MANIFEST} cannot be read ({error})"
    for name, size, checksum in entries:
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, {size} were written"
        if digest(file) != checksum:
            return f"{name} is not what was written (sha256 differs)"
    return None
