"""Write what verl reads: `python export.py FOLDER [compact|chat]`.

compact (the default): the prompts of recipes/maze-tiny, and a copy of the tiny model that plays
them. It has no chat template, and verl's rollouts use one: the copy gets one that is the user's
text and nothing else. chat: carved mazes of size 9 to 15 in words, for a model of your own.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas

import bestofk.models
from bestofk.tasks import task
from bestofk.types import Prompt

MODEL = Path(bestofk.models.__file__).parent / "checkpoints" / "tiny-maze"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
COMPACT = {"style": "compact", "layout": "open", "sizes": [5, 6], "test_sizes": [5, 6]}
STYLES: dict[str, dict[str, Any]] = {"compact": COMPACT, "chat": {"style": "chat"}}
SIZES = {"compact": {"train": 1024, "test": 64}, "chat": {"train": 10_000, "test": 200}}


def row(prompt: Prompt, index: int) -> dict[str, object]:
    """A prompt as verl's data sets have it; what the verifier needs is the "ground truth"."""
    alone = [{"role": "user", "content": prompt.text}]
    messages = alone if isinstance(prompt.text, str) else [dict(one) for one in prompt.text]
    truth = {"id": prompt.id, "spec": dict(prompt.spec), "verifier": "maze"}
    return {
        "data_source": "bestofk/maze",
        "prompt": messages,
        "ability": "maze",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
        "extra_info": {"index": index},
    }


def export(folder: Path, style: str = "compact") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    maze = task("maze", **STYLES[style])
    for split, size in SIZES[style].items():
        rows = [row(prompt, index) for index, prompt in enumerate(maze.split(split)[:size])]
        pandas.DataFrame(rows).to_parquet(folder / f"{split}.parquet")
    if style == "compact":
        shutil.copytree(MODEL, folder / "model", dirs_exist_ok=True)
        settings = folder / "model" / "tokenizer_config.json"
        known = json.loads(settings.read_text(encoding="utf-8"))
        settings.write_text(
            json.dumps(known | {"chat_template": TEMPLATE}, indent=2), encoding="utf-8"
        )


if __name__ == "__main__":
    export(Path(sys.argv[1]), *sys.argv[2:])
