"""Well-known mathematics data sets: GSM8K and MATH."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

from bestofk.tasks.data_rows import Row, each, locate, read
from bestofk.tasks.dataset import dataset
from bestofk.tasks.definition import Task
from bestofk.tasks.schemas import last_boxed

_BOX = (
    "{%s}\n\nThink step by step, then give the final answer alone in \\boxed{{}}, for example "
    "\\boxed{{42}}."
)


def _published(
    name: str, rows_of: Callable[[Row], list[Row]], *paths: str | None, **options: Any
) -> Task:
    """A set with one file for train and one for test, its rows as `rows_of` reads them."""

    def rows(source: str) -> Callable[[], list[Row]]:
        return lambda: list(chain(*each(read(source), source, rows_of)))

    train, test = (locate(path, f"{name}-{split}.jsonl.gz")
                   for path, split in zip(paths, ("train", "test"), strict=True))  # fmt: skip
    return dataset(train=rows(train), test=rows(test), name=name, answer="answer", **options)


def gsm8k(
    *,
    train: str | None = None,
    test: str | None = None,
    prompt: str = _BOX % "question",
    style: str = "chat",
    validation_share: float = 0.05,
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """GSM8K: 7,473 + 1,319 word problems whose answer is a number (Cobbe et al. 2021, MIT).

    Args:
        train, test: files with `question` and `answer`; else $BESTOFK_DATA, else the Hub.
        prompt: template over `question`; it should ask for a form that the verifier reads: a box,
            "#### 42" or "Answer: 42".
        validation_share: what of train is kept for validation.
    """
    return _published(
        "gsm8k", lambda row: [{**row, "solution": worked(row["answer"])}], train, test,
        prompt=prompt, answer_after="####", reference="{solution}", style=style,
        licence="MIT (openai/grade-school-math)", validation_share=validation_share, limit=limit,
        seed=seed,
    )  # fmt: skip


def worked(answer: str) -> str:
    """A solution of GSM8K as prose that ends in a box, without the calculator's notes.

    >>> worked("She sold 48/2 = <<48/2=24>>24.\\n#### 24")
    'She sold 48/2 = 24.\\n\\\\boxed{24}'
    """
    steps, _, number = answer.rpartition("####")
    return re.sub(r"<<[^>]*>>", "", steps).strip() + f"\n\\boxed{{{number.strip()}}}"


def math(
    *,
    train: str | None = None,
    test: str | None = None,
    levels: tuple[int, ...] = (1, 2, 3, 4, 5),
    prompt: str = _BOX % "problem",
    style: str = "chat",
    validation_share: float = 0.05,
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """MATH: 12,500 competition problems (Hendrycks et al. 2021, MIT).

    Args:
        train, test: files with `problem`, `solution` and `level`; else $BESTOFK_DATA, else the Hub.
        levels: which of the difficulties 1 to 5.
        prompt: template over `problem`; see `gsm8k`.
        validation_share: what of train is kept for validation.
    """
    accepted = {*map(str, levels), "", "?", "nan"}

    def answered(row: Row) -> list[Row]:
        level = str(row.get("level") or "").removeprefix("Level ").removesuffix(".0")
        if level not in accepted:
            return []
        return [{**row, "answer": row.get("answer") or last_boxed(row["solution"])}]

    return _published(
        "math", answered, train, test, prompt=prompt, style=style,
        licence="MIT (hendrycks/math)", validation_share=validation_share, limit=limit, seed=seed,
    )  # fmt: skip
