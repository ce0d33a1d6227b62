"""Compare the advantages that verl logged with `bestofk.advantages`: `python check.py FOLDER`.

They are those of the freshly drawn samples; `loss_mode=bestofk` makes new ones for every optimiser
step from the same scores.

verl writes each rollout's score and uid (trainer.rollout_data_dir), and the mean, largest and
smallest advantage over all tokens of a step (trainer.logger=file): these follow from those. The
mean needs the number of tokens, and is left out where the text does not give it back.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from bestofk import advantages, objective


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(folder: Path, tolerance: float = 1e-5) -> list[str]:
    """A line for every step.

    Raises:
        ValueError: a step whose logged figures do not follow from its scores.
    """
    config = OmegaConf.load(folder / "hydra" / ".hydra" / "config.yaml")
    goal = objective(config.algorithm.bestofk.objective)
    longest = config.data.max_response_length
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    logged = {record["step"]: record["data"] for record in records(folder / "metrics.jsonl")}
    lines = []
    for step in sorted(int(path.stem) for path in (folder / "rollouts").glob("*.jsonl")):
        rows = records(folder / "rollouts" / f"{step}.jsonl")
        total = len(rows)
        rows = [row for row in rows if not row["uid"].startswith("pad")]
        groups = [row["uid"].rsplit("_", 2)[0] for row in rows]
        scores = np.array([row["score"] for row in rows])
        weights = advantages(scores, goal, groups=np.array(groups))
        live = Counter(group for group, score in zip(groups, scores) if not np.isnan(score))
        # verl's loss divides by all rows, and every prompt that has enough samples counts the same
        whole = sum(count >= goal.least_samples for count in live.values())
        weights *= [total / (max(whole, 1) * max(live[group], 1)) for group in groups]
        said = [len(tokenizer(row["output"], add_special_tokens=False).input_ids) for row in rows]
        lengths = np.minimum(np.array(said) + 1, longest)  # the end of the text is a token too
        expected = {
            "critic/advantages/max": weights.max(),
            "critic/advantages/min": weights.min(),
        }
        if np.isclose(lengths.mean(), logged[step]["response_length/mean"]):
            expected["critic/advantages/mean"] = np.average(weights, weights=lengths)
        for name, value in expected.items():
            found = logged[step][name]
            if not abs(found - value) <= tolerance * max(1.0, abs(value)):
                raise ValueError(f"step {step}: verl logged {name} = {found}, it should be {value}")
        lines.append(
            f"step {step}: {len(rows)} rollouts of {len(set(groups))} prompts, {goal}, "
            f"{weights.min():+.4f} to {weights.max():+.4f}: {len(expected)} figures as logged"
        )
    if not lines:
        raise ValueError(f"no rollouts in {folder / 'rollouts'}: was trainer.rollout_data_dir set?")
    return lines


if __name__ == "__main__":
    print("\n".join(check(Path(sys.argv[1]))))
