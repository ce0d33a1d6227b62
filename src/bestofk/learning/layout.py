"""How groups become tensors: micro-batches of rows, each row one trajectory.

Packed: one sequence [prompt | y_1 … | y_2 … | …] per group, laid end to end, so that linear layers
see every prompt once and no padding at all; only attention is padded, inside `attention.py`.
Padded: every row is its prompt and completion, padded on the right to the longest.
Targets are the tokens that the policy drew; what its environment wrote is condition alone. The last
target and what follows it predict nothing, and are left out of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestofk.types import Group

Row = tuple[int, int]
"""Group and trajectory."""


@dataclass(frozen=True)
class Segments:
    """Where the parts of a packed sequence lie, as indices that attention gathers and scatters by.

    Padding points at place 0 of what it indexes; the mask, or causality, hides it.
    """

    prompts: Tensor
    """(G, Lp): place of each prompt token in the packed sequence."""
    rows: Tensor
    """(R, Lc): place of each completion token."""
    context: Tensor
    """(R, Lp + Lc): places that a row may attend to: its prompt, then itself."""
    visible: Tensor
    """(R, 1, Lc, Lp + Lc): which of them each of its tokens sees."""
    back: Tensor
    """(T,): where each packed token lies in [prompts.flatten() | rows.flatten()]."""


RUN, RUNS = 1024, 16
"""Completions attend to their prompt in runs of at least RUN tokens, about RUNS of them in a batch.
The gradient of a prompt's keys is one program's work per run and head."""


@dataclass(frozen=True)
class FlatSegments:
    """Where the parts of a packed sequence begin."""

    parts: Tensor
    """(parts + 1,) int32: prompts and completions in order."""
    queries: Tensor
    """(runs + 1,) int32: per group its prompt, then its completions, cut anywhere into runs of like
    length."""
    keys: Tensor
    """(runs + 1,) int32: the prompts' tokens those attend to: none, then all of the prompt."""
    prompt_at: Tensor
    """Places of the prompts' tokens, once for each run of completions."""
    first: Tensor
    """For each of those, where in `prompt_at` the same token comes first. Of the same size, so that
    one compiled code serves batches with and without cuts."""
    longest: tuple[int, int, int]
    """Tokens of the longest part, of the longest run of queries, of the longest prompt. What lies
    beyond them is not computed, and not even set."""


def flat_segments(
    prompts: Sequence[int], completions: Sequence[Sequence[int]], device: torch.device | str
) -> FlatSegments:
    """From the lengths of each group's prompt and completions, as they lie in the sequence."""
    sizes = [size for p, own in zip(prompts, completions) for size in (p, *own)]
    runs: list[int] = []
    prompts_seen: list[int] = []
    places: list[np.ndarray] = []
    firsts: list[np.ndarray] = []
    begin = copied = 0
    run = max(RUN, sum(map(sum, completions)) // RUNS)
    for p, own in zip(prompts, completions):
        total = sum(own)
        cut = [len(part) for part in np.array_split(np.arange(total), max(1, -(-total // run)))]
        runs += [p, *cut]
        prompts_seen += [0, *[p] * len(cut)]
        places += [np.arange(begin, begin + p)] * len(cut)
        firsts += [np.arange(copied, copied + p)] * len(cut)
        begin += p + total
        copied += p * len(cut)

    def ends(lengths: Sequence[int]) -> Tensor:
        return to_device(np.cumsum([0, *lengths]).astype(np.int32), device)

    longest = (max(sizes), max(runs), max(prompts))
    return FlatSegments(
        parts=ends(sizes),
        queries=ends(runs),
        keys=ends(prompts_seen),
        prompt_at=to_device(np.concatenate(places), device),
        first=to_device(np.concatenate(firsts), device),
        longest=(_rounded_up(longest[0]), _rounded_up(longest[1]), _rounded_up(longest[2])),
    )


def _rounded_up(length: int) -> int:
    """A few values for all lengths: the same kernels run in every step."""
    return max(128, 1 << (length - 1).bit_length())


@dataclass(frozen=True)
class Batch:
    """One forward pass: the tokens of some rows, and which of its outputs predict what."""

    rows: tuple[Row, ...]
    lengths: tuple[int, ...]
    """Tokens of each row that the policy drew; they sum to N."""
    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor | None
    """2-D for padded rows; None when packed."""
    segments: Segments | FlatSegments | None
    """For packed rows."""
    source: Tensor
    """(N,): place, in the flattened outputs, of the hidden state that predicts each token."""
    target: Tensor
    """(N,): the token."""
    row_of: Tensor
    """(N,): place in `rows` of the row each token belongs to."""


def micro_batches(
    groups: Sequence[Group], rows: Iterable[Row], *, budget: int, layout: str
) -> list[list[Row]]:
    """Rows cut into micro-batches of at most `budget` tokens each, siblings side by side.

    Short groups come first, so that rows of like length share a micro-batch. A row larger than the
    budget goes alone.
    """
    by_group: dict[int, list[int]] = {}
    for p, i in rows:
        by_group.setdefault(p, []).append(i)

    def tokens(p: int) -> int:
        answers = sum(len(groups[p].trajectories[i].tokens) for i in by_group[p])
        return len(groups[p].prompt_tokens) + answers

    batches: list[list[Row]] = []
    used, width = 0, 0
    for p in sorted(by_group, key=lambda p: (tokens(p), p)):
        prompt = len(groups[p].prompt_tokens)
        for i in by_group[p]:
            length = len(groups[p].trajectories[i].tokens)
            current = batches[-1] if batches else []
            shared = bool(current) and current[-1][0] == p
            used += length + (0 if shared else prompt)
            width = max(width, prompt + length)
            cost = used if layout in ("packed", "flat") else width * (len(current) + 1)
            if not current or cost > budget or layout == "single":
                batches.append([])
                used = width = prompt + length
            batches[-1].append((p, i))
    return batches


def packed(
    groups: Sequence[Group], rows: Sequence[Row], device: torch.device | str, *, flat: bool = False
) -> Batch:
    """Rows of the same group that follow each other share one copy of their prompt.

    With `flat` the sequence is described by where its parts begin, for FlashAttention.
    """
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    source: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    prompts: list[range] = []
    fed: list[list[range]] = []
    at = 0
    for place, (p, i) in enumerate(rows):
        prompt, answer, own = _row(groups, p, i)
        if place == 0 or rows[place - 1][0] != p:
            tokens.append(np.array(prompt))
            positions.append(np.arange(len(prompt)))
            prompts.append(range(at, at + len(prompt)))
            fed.append([])
            at += len(prompt)
        size = int(own[-1])
        tokens.append(answer[:size])
        positions.append(np.arange(len(prompt), len(prompt) + size))
        source.append(np.where(own > 0, at + own - 1, prompts[-1][-1]))
        targets.append(answer[own])
        fed[-1].append(range(at, at + size))
        at += size
    if flat:
        sizes = [list(map(len, siblings)) for siblings in fed]
        segments: Any = flat_segments([len(prompt) for prompt in prompts], sizes, device)
    else:
        owner = [number for number, siblings in enumerate(fed) for _ in siblings]
        places = _segments(prompts, [each for siblings in fed for each in siblings], owner, at)
        segments = Segments(*(to_device(part, device) for part in places))
    return Batch(
        rows=tuple(rows),
        input_ids=_joined(tokens, device)[None],
        position_ids=_joined(positions, device)[None],
        attention_mask=None,
        segments=segments,
        **_predictions(source, targets, device),
    )


def _segments(
    prompts: Sequence[range], own: Sequence[range], owner: Sequence[int], total: int
) -> tuple[np.ndarray, ...]:
    wide = max(map(len, prompts))
    long = max(1, max(map(len, own)))
    prompt_at, prompt_real = _grid(prompts, wide)
    row_at, row_real = _grid(own, long)
    context = np.concatenate([prompt_at[owner], row_at], axis=1)
    visible = np.zeros((len(own), 1, long, wide + long), dtype=bool)
    visible[..., :wide] = prompt_real[owner][:, None, None, :]
    visible[..., wide:] = np.tril(np.ones((long, long), dtype=bool))
    back = np.zeros(total, dtype=np.int64)
    places = np.arange(prompt_at.size + row_at.size)
    back[prompt_at[prompt_real]] = places[: prompt_at.size].reshape(prompt_at.shape)[prompt_real]
    back[row_at[row_real]] = places[prompt_at.size :].reshape(row_at.shape)[row_real]
    return prompt_at, row_at, context, visible, back


def _grid(ranges: Sequence[range], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranges as rows of a matrix, 0 where they end early, and where they are real."""
    starts = np.array([part.start for part in ranges], dtype=np.int64)[:, None]
    sizes = np.array([len(part) for part in ranges], dtype=np.int64)[:, None]
    steps = np.arange(width)[None, :]
    real = steps < sizes
    return np.where(real, starts + steps, 0), real


def padded(groups: Sequence[Group], rows: Sequence[Row], device: torch.device | str) -> Batch:
    """Every row with its own copy of the prompt, padded on the right."""
    parts = [_row(groups, p, i) for p, i in rows]
    width = max(len(prompt) + int(own[-1]) for prompt, _, own in parts)
    input_ids = np.zeros((len(rows), width), dtype=np.int64)
    real = np.zeros((len(rows), width), dtype=np.int64)
    for at, (prompt, answer, own) in enumerate(parts):
        length = len(prompt) + int(own[-1])
        input_ids[at, :length] = np.concatenate([prompt, answer[: own[-1]]])
        real[at, :length] = 1
    source = [at * width + len(part[0]) - 1 + part[2] for at, part in enumerate(parts)]
    positions = np.broadcast_to(np.arange(width), input_ids.shape)
    return Batch(
        rows=tuple(rows),
        input_ids=to_device(input_ids, device),
        position_ids=to_device(positions, device),
        attention_mask=to_device(real, device),
        segments=None,
        **_predictions(source, [answer[own] for _, answer, own in parts], device),
    )


BUILD: dict[str, Callable[[Sequence[Group], Sequence[Row], torch.device | str], Batch]] = {
    "packed": packed,
    "flat": partial(packed, flat=True),
    "padded": padded,
    "single": padded,
}


def _row(groups: Sequence[Group], p: int, i: int) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """Prompt, tokens after it, and the places of those that the policy drew. The model sees the
    tokens before the last of these."""
    prompt, trajectory = groups[p].prompt_tokens, groups[p].trajectories[i]
    own = np.flatnonzero(trajectory.own)
    if not prompt or not own.size:
        raise ValueError(
            f"group {p} ({groups[p].prompt.id!r}), completion {i}: learning needs at least one "
            f"prompt token and one completion token, got {len(prompt)} and {own.size}"
        )
    return prompt, trajectory.tokens, own


def _predictions(
    source: Sequence[np.ndarray], targets: Sequence[np.ndarray], device: torch.device | str
) -> dict[str, Any]:
    lengths = tuple(map(len, targets))
    return {
        "lengths": lengths,
        "source": _joined(source, device),
        "target": _joined(targets, device),
        "row_of": to_device(np.repeat(np.arange(len(targets)), lengths), device),
    }


def _joined(parts: Sequence[np.ndarray], device: torch.device | str) -> Tensor:
    return to_device(np.concatenate(parts, dtype=np.int64), device)


def to_device(array: np.ndarray, device: torch.device | str) -> Tensor:
    """A tensor of these values; on CUDA copied from pinned memory while the GPU works on."""
    tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
