"""Data and rewards given in Python, as the entries of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from bestofk.rewards import from_function
from bestofk.rewards import verifier as verifier_by_name
from bestofk.tasks import TASKS
from bestofk.tasks.data_rows import read
from bestofk.types import Verifier

PROMPT_FIELDS = ("prompt", "question", "problem", "instruction")
"""Fields that are taken for the prompt where no template is given, in this order."""


def named_reward(reward: Any) -> tuple[Verifier | None, str | None]:
    """A reward as a verifier and the name the recipe records; the name alone for a string."""
    if reward is None:
        return None, None
    if isinstance(reward, str):
        verifier_by_name(reward)
        return None, reward
    built = from_function(reward)
    module = getattr(reward, "__module__", None) or type(reward).__module__
    return built, f"{module}:{getattr(reward, '__qualname__', built.name)}"


def data_options(
    sources: Mapping[str, Any],
    reward: str | None,
    *,
    prompt: str | None,
    style: str,
    folder: Path,
    few: int,
) -> tuple[dict[str, Any], int | None]:
    """The recipe's [task] for these data, and the number of training rows (None for a task).

    Rows given in Python are written to data/ in the run's folder, so that the run can be resumed
    and repeated from its folder.

    Raises:
        ValueError: no data, no reward, or no field to take the prompt from.
    """
    train = sources["train"]
    if isinstance(train, str) and train in TASKS:
        return {"name": train, **({"verifier": reward} if reward else {})}, None
    if train is None:
        raise ValueError("data is needed: rows, a file, or the name of a task such as 'countdown'")
    if reward is None:
        raise ValueError(
            "own data need a reward: a function, or the name of a verifier such as 'maths'"
        )
    rows = read(train)
    if not rows:
        raise ValueError("data has no rows")
    options: dict[str, Any] = {
        "prompt": prompt or prompt_template(rows[0]),
        "style": style,
    }
    if ":" not in reward:
        if "answer" not in rows[0]:
            raise ValueError(
                f"verifier {reward!r} judges by the field 'answer', and the rows have "
                f"{', '.join(rows[0])}"
            )
        options["answer"] = "answer"
    for split, source in sources.items():
        if source is not None:
            options[split] = source_path(source, split, folder)
    if len(rows) < few:
        options |= {"validation_share": 0.0, "test_share": 0.0}
    return {"name": "dataset", "options": options, "verifier": reward}, len(rows)


def prompt_template(row: Mapping[str, Any]) -> str:
    """The template for rows that have a usual prompt field.

    >>> prompt_template({"question": "2 + 2?", "answer": 4})
    '{question}'
    """
    for field in PROMPT_FIELDS:
        if field in row:
            return f"{{{field}}}"
    raise ValueError(
        f"the rows have {', '.join(row)} and none of {', '.join(PROMPT_FIELDS)}: pass "
        'prompt="{field}" with the field to ask about'
    )


def source_path(source: Any, split: str, folder: Path) -> str:
    """A source as a path that the run's config can hold."""
    if isinstance(source, str | PathLike):
        text = str(source)
        return text if text.startswith("hub:") else str(Path(text).expanduser().absolute())
    target = folder / "data" / f"{split}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        lines = [json.dumps(dict(row), ensure_ascii=False) for row in read(source, split)]
    except TypeError as error:
        raise ValueError(
            f"rows of data hold JSON values (text, numbers, lists, dicts): {error}"
        ) from error
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(target)


def style_of(model: str) -> str:
    """chat where the model's tokenizer has a chat template, else text."""
    try:
        from transformers import AutoTokenizer

        from bestofk.models.load import find
    except ModuleNotFoundError as error:
        raise ImportError(
            f"training needs {error.name}: pip install 'bestofk[train]'", name=error.name
        ) from error
    place, options = find(model)
    tokenizer = AutoTokenizer.from_pretrained(place, **options)
    return "chat" if getattr(tokenizer, "chat_template", None) else "text"


def free_folder(stated: str | PathLike[str] | None, model: str, objective: str) -> Path:
    """The run's folder: as stated, else the first that is free in runs/."""
    if stated is not None:
        return Path(stated)
    words = f"{Path(model).name}-{objective}"
    plain = "".join(c if c.isalnum() or c in "-.@" else "-" for c in words)
    number, folder = 1, Path("runs") / plain
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{plain}-{number}"
    return folder
