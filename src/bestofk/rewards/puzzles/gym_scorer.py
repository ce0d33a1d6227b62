"""What runs inside the sandbox: reasoning-gym's scorers, nine of which execute the answer."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any


@contextlib.contextmanager
def _cache_folder_named() -> Iterator[None]:
    """matplotlib, which some puzzles import, wants a folder for its cache and does without its
    files; nothing can be written here, so that only a name is given."""
    plain = tempfile.mkdtemp
    tempfile.mkdtemp = lambda *args, **kwargs: "/none"  # type: ignore[assignment]
    try:
        yield
    finally:
        tempfile.mkdtemp = plain


with _cache_folder_named():
    import reasoning_gym


@lru_cache(maxsize=256)
def _dataset(name: str, config: tuple[tuple[str, Any], ...]) -> Any:
    return reasoning_gym.create_dataset(name, **dict(config))


def score(name: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> float:
    """reasoning-gym's own score of an answer, as a float."""
    frozen = tuple(sorted(config.items()))
    try:
        dataset = _dataset(name, frozen)
    except TypeError:  # a config with lists in it cannot be remembered
        dataset = reasoning_gym.create_dataset(name, **config)
    return float(dataset.score_answer(answer, dict(entry)))


def is_right(
    name: str, config: Mapping[str, Any], entry: Mapping[str, Any], answers: Sequence[str]
) -> bool:
    """Whether one of these gets the full score; later ones are asked only where earlier do not."""
    return any(score(name, config, entry, answer) == 1.0 for answer in answers)
