"""A run with the group engine, by its plain twins on CPU, is the run with the present sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from bestofk.config import read
from bestofk.runs import read_metrics, read_samples
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.training import setup
from bestofk.training.resolve import resolve
from bestofk.training.train import train


def test_a_run_is_the_same_with_either_sampler(
    recipe: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[GroupSampler] = []

    def group_sampler(sampling: Any, model: Any, policy: Any, device: str) -> GroupSampler:
        made.append(GroupSampler(policy.model, policy.tokenizer, max_rows=16))
        return made[-1]

    found = {}
    for name in ("present", "group"):
        if name == "group":
            monkeypatch.setattr(setup, "make_sampler", group_sampler)
        folder = tmp_path / name
        train(resolve(read(recipe(run={"dir": str(folder), "steps": 4}, sampling={"refill": 1}))))
        rows = [
            (r["step"], r["completion"], r["reward"], r["status"]) for r in read_samples(folder)
        ]
        lines = [line for line in read_metrics(folder) if line["kind"] == "train"]
        weights = load_file(folder / "final" / "model.safetensors")
        found[name] = (rows, [line["reward"] for line in lines], weights)
        assert max(line["sampler_gap_max"] for line in lines) < 1e-4
    assert made[0].reason is None
    assert made[0].check.calls >= 4
    (rows_a, rewards_a, weights_a), (rows_b, rewards_b, weights_b) = found.values()
    assert rows_a == rows_b
    assert rewards_a == rewards_b
    for name, tensor in weights_a.items():
        np.testing.assert_allclose(tensor.numpy(), weights_b[name].numpy(), atol=1e-5)


def test_the_group_engine_by_name_needs_a_gpu(recipe: Any) -> None:
    with pytest.raises(ValueError, match=r"needs a CUDA GPU and the device is cpu: use 'auto'"):
        train(resolve(read(recipe(sampling={"engine": "group"}))))
