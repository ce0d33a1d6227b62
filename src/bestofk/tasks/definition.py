"""What every task is: named splits of prompts, fixed by a seed, and the verifier that judges them.

A task names its verifier by string (`task.verifier`, `task.verifier_options`); prompts and judges
know nothing of each other but the prompt's spec.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

from bestofk.messages import counted, unknown
from bestofk.types import Prompt


class Split(Sequence[Prompt]):
    """Prompts in a fixed order, made when first asked for.

    As a sequence it has a length and random access. As a stream it has no end: `at(position)` walks
    the split epoch after epoch, each in an order of its own fixed by the seed, so the one integer
    that a run must remember is its position.
    """

    def __init__(
        self, prompts: Iterable[Prompt], size: int, *, seed: int = 0, shuffle: bool = True
    ) -> None:
        if size < 1:
            raise ValueError(f"a split holds at least one prompt, got {size}")
        self._source, self._made, self._size = iter(prompts), list[Prompt](), size
        self._seed, self._shuffle = seed, shuffle
        self._orders: dict[int, list[int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            self._has(max(index.indices(self._size)[:2], default=0))
            return [self[i] for i in range(*index.indices(self._size))]
        position = index + self._size if index < 0 else index
        if not 0 <= position < self._size or not self._has(position):
            raise IndexError(f"the split holds {self._size} prompts, asked for number {index}")
        return self._made[position]

    def _has(self, position: int) -> bool:
        """Make the prompts up to a position. A source that has fewer than it promised is what the
        split is."""
        with self._lock:
            while len(self._made) <= position and len(self._made) < self._size:
                try:
                    self._made.append(next(self._source))
                except StopIteration:
                    if not self._made:
                        raise ValueError("a split holds at least one prompt, got none") from None
                    self._size = len(self._made)
        return position < self._size

    def at(self, position: int) -> Prompt:
        """The prompt at a position of the endless stream (position >= 0)."""
        self._has(min(position, self._size - 1))
        epoch, place = divmod(position, self._size)
        if epoch == 0 and not self._shuffle:
            return self[place]
        order = self._orders.get(epoch)
        if order is None:
            order = list(range(self._size))
            shuffle(order, rng_of("order", self._seed, epoch))
            self._orders = {epoch: order}
        return self[order[place]]

    def where(self, keep: Callable[[Prompt], bool]) -> Split:
        """The split with these prompts alone, in an order of its own; a generated one as it is
        asked for."""
        prompts: Iterable[Prompt] = filter(keep, self)
        if self._shuffle:  # an order needs their number
            prompts = list(prompts)
        size = len(prompts) if isinstance(prompts, list) else len(self)
        return Split(prompts, size, seed=self._seed, shuffle=self._shuffle)

    @property
    def is_lazy(self) -> bool:
        """Whether its prompts are made as they are asked for."""
        return not self._shuffle


@dataclass(frozen=True)
class Task:
    """Prompts by split, and how they are judged."""

    name: str
    verifier: str
    """Name of the verifier (`bestofk.rewards.verifier(task.verifier, **task.verifier_options)`)."""
    make: Callable[[str], Split] = field(repr=False)
    """Split by name; called once per split."""
    splits: tuple[str, ...] = ("train", "validation", "test")
    verifier_options: Mapping[str, Any] = field(default_factory=dict)
    licence: str = "generated"
    """Of the data; "generated" where the task makes its own."""
    summary: str = ""
    left_out: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Ids of problems that no split holds, each with the reason; filled when splits are made."""
    read_as: Counter[str] = field(default_factory=Counter, repr=False, compare=False)
    """What the rows of data were recognised as, counted; filled when splits are made."""
    _cache: dict[str, Split] = field(default_factory=dict, repr=False, compare=False)

    def split(self, name: str = "train") -> Split:
        """A split by name."""
        if name not in self.splits:
            raise unknown(f"split of {self.name}", name, self.splits)
        if name not in self._cache:
            self._cache[name] = self.make(name)
        return self._cache[name]

    def findings(self) -> list[str]:
        """What was recognised in the data and what is left out so far, a line each."""
        lines = [f"{count:,} rows read as {what}" for what, count in self.read_as.most_common(3)]
        if self.left_out:
            reasons = Counter(self.left_out.values())
            counts = "; ".join(f"{count:,} × {why}" for why, count in reasons.most_common(5))
            more = f"; and {len(reasons) - 5} other reasons" if len(reasons) > 5 else ""
            lines.append(f"{len(self.left_out):,} left out: {counts}{more}")
        return lines

    def look(self, split: str) -> list[str]:
        """What a person should see before the first sample: how the data were read, what is left
        out, the first prompt as it is asked, and what counts as right for it."""
        first = self.split(split).at(0)
        text = (
            first.text
            if isinstance(first.text, str)
            else "\n".join(f"[{message['role']}] {message['content']}" for message in first.text)
        )
        size = f"{self.name}: {counted(len(self.split(split)), 'prompt')} in split {split!r}"
        shown = [size, *(f"{self.name}: {line}" for line in self.findings())]
        shown.append(f"first prompt, {first.id}:\n{_shortened(text, 600)}")
        if first.reference is not None:
            shown.append(f"a right answer to it:\n{_shortened(first.reference, 300)}")
        else:
            fields = ", ".join(first.spec) or "nothing"
            shown.append(f"right is what the verifier {self.verifier} says, which gets {fields}")
        return shown


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]} … {text[-length // 2 :]}"


STYLES = ("chat", "text", "compact")
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.1, "ood": 0.1}
"""Of the space of problems that each split may draw from."""


def share_of(key: str, shares: Mapping[str, float] = SHARES, rest: str = "ood") -> str:
    """The split that a problem belongs to, by the hash of what it is.

    A problem belongs to one split whatever the seed, so train and test cannot meet: not within a
    run, nor between runs with different seeds. Adding problems moves no other.
    """
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    point = int.from_bytes(digest[:8]) / 2**64
    for name, share in shares.items():
        point -= share
        if point < 0:
            return name
    return rest


Draw: TypeAlias = Callable[[random.Random], tuple[str, Callable[[], Prompt | None]] | None]
"""Draws a problem: a key (what it is) and a way to build its prompt, or None for a bad draw."""


PATIENCE = 20_000
"""Draws in a row without a new problem, after which there may be no other."""


def distinct(task: str, draw: Draw, split: str, rng: random.Random) -> Iterator[Prompt]:
    """Distinct problems of one split, endlessly.

    Bad draws, problems whose key belongs to another split, and those made before are passed over.
    """
    ids, missed = set[str](), 0
    while True:
        problem = draw(rng)
        if problem is not None and share_of(problem[0]) == split:
            prompt = problem[1]()
            if prompt is not None and prompt.id not in ids:
                ids.add(prompt.id)
                missed = 0
                yield prompt
                continue
        missed += 1
        if missed > PATIENCE:
            raise ValueError(
                f"{task}: {PATIENCE} draws in a row gave no new problem after {len(ids)}; "
                "ask for fewer prompts or widen the settings"
            )


def generated(
    name: str,
    drawing: Callable[[str], tuple[Draw, tuple[Any, ...]]],
    prompts: Sequence[int],
    *,
    seed: int,
    reward: str,
    summary: str,
) -> Task:
    """A task that makes its own problems.

    Args:
        drawing: how the problems of a split are drawn, and what that depends on.
        prompts: how many of them train, validation, test and ood have.
    """
    sizes = dict(zip(SHARES, prompts, strict=True))

    def make(split: str) -> Split:
        draw, settings = drawing(split)
        problems = distinct(name, draw, split, rng_of(name, seed, split, *settings))
        return Split(problems, sizes[split], seed=seed, shuffle=False)

    return Task(
        name=name,
        verifier=name,
        verifier_options={"reward": reward},
        make=make,
        splits=tuple(sizes),
        summary=summary,
    )


def rng_of(*parts: Any) -> random.Random:
    """A generator fixed by its parts. Only `.random()` of it is used: Python keeps it stable."""
    digest = hashlib.sha256(json.dumps(parts, default=str).encode()).digest()
    return random.Random(int.from_bytes(digest))


def below(rng: random.Random, bound: int) -> int:
    """An integer in [0, bound)."""
    return int(rng.random() * bound)


def shuffle(items: list[Any], rng: random.Random) -> None:
    for i in range(len(items) - 1, 0, -1):
        j = below(rng, i + 1)
        items[i], items[j] = items[j], items[i]


def identity(task: str, content: str) -> str:
    """A short id fixed by what the problem is."""
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{task}/{digest[:16]}"


def wording(style: str, text: str, compact: str) -> str | tuple[dict[str, str], ...]:
    """A prompt as chat messages, plain text, or in the compact form."""
    if style == "chat":
        return ({"role": "user", "content": text},)
    return text if style == "text" else compact


def answer_kind(style: str) -> str:
    """How the verifier finds the answer: a compact completion is nothing but the answer."""
    return "whole" if style == "compact" else "tag"


def answer(style: str, text: str) -> str:
    return text if style == "compact" else f"<answer>{text}</answer>"
