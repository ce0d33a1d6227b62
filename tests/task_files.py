"""What tests of tasks share: files of rows, flags of a short run, a policy for any prompt."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

SHORT = [
    "--run.steps", "2", "--sampling.prompts_per_step", "2", "--sampling.samples_per_prompt", "4",
    "--sampling.max_new_tokens", "8", "--evaluation.prompts", "2", "--model.device", "cpu",
    "--evaluation.samples_per_prompt", "4", "--objective", "max@2", "--evaluation.every", "1",
]  # fmt: skip


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    path = folder / name
    name = name.lower()
    if name.endswith(".parquet"):
        parquet = pytest.importorskip("pyarrow.parquet")
        pyarrow = pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return str(path)
    if ".csv" in name:
        plain = folder / "plain.csv"
        with plain.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        text = plain.read_text()
    elif ".jsonl" in name:
        text = "\n".join(map(json.dumps, rows)) + "\n\n"
    else:
        text = json.dumps(rows)
    raw = text.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def long_model(folder: Path) -> Path:
    """The shipped tiny policy with positions for every prompt of the data sets."""
    from bestofk import models

    policy = models.load("tiny-countdown")
    policy.model.config.max_position_embeddings = 16_384
    return models.save(policy, folder / "model")
