"""How much memory the group engine takes.

Sizes are decided from the call, the model and the card alone, so that a run repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHARE = 0.35
"""Of the memory that the weights leave, for keys and values; the learner keeps the rest."""
OWN = 0.75
"""Of that, at most, for completions; prompts have what is left."""


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of the engine's tensors. They depend on the call, the model and the card's total
    memory, never on what happens to be free."""

    slots: int
    """Sequences decoded at once."""
    own_tokens: int
    """Places for keys of completions: slots × new tokens, at least."""
    prefix_tokens: int
    """Places for keys of prompts."""
    out_tokens: int
    """Tokens of all sequences of one batch."""
    longest: int
    """Tokens of the longest prompt it was made for."""
    group_tokens: int
    """New tokens of one group: a batch has at least one group."""

    def holds(self, needed: MemoryPlan) -> bool:
        """Whether calls that `needed` was made for run as well in this one."""
        return (
            self.slots >= needed.slots
            and self.own_tokens >= needed.own_tokens
            and self.prefix_tokens >= max(needed.longest, needed.prefix_tokens // 2)
            and self.out_tokens >= needed.group_tokens
        )

    def joined(self, other: MemoryPlan, room: int) -> MemoryPlan:
        """Sizes for the calls of both, within `room` tokens, so that calls of two kinds that
        alternate (training and evaluation) do not make the engine anew each time."""
        longest = max(self.longest, other.longest)
        own = min(room - longest, max(self.own_tokens, other.own_tokens))
        prefix = min(room - own, max(self.prefix_tokens, other.prefix_tokens))
        return MemoryPlan(
            slots=max(self.slots, other.slots),
            own_tokens=own,
            prefix_tokens=max(longest, prefix),
            out_tokens=max(self.out_tokens, other.out_tokens),
            longest=longest,
            group_tokens=max(self.group_tokens, other.group_tokens),
        )


def make_plan(
    *,
    token_bytes: int,
    total_bytes: float,
    samples: int,
    new_tokens: int,
    lengths: Sequence[int],
    max_rows: int,
    several_turns: bool = False,
) -> MemoryPlan:
    """Sizes for calls like this one.

    Args:
        token_bytes: of one token's keys and values in all layers.
        total_bytes: the card's memory without the weights, used or not.
        samples: completions of each prompt.
        lengths: of the call's prompts, in tokens.
        several_turns: completions wait for environments, without a slot, but with their keys.

    Raises:
        ValueError: not even one sequence fits.

    >>> make_plan(token_bytes=1000, total_bytes=1e6, samples=16, new_tokens=10, lengths=[5] * 4,
    ...           max_rows=2048)
    MemoryPlan(slots=16, own_tokens=260, prefix_tokens=90, out_tokens=2080, longest=5,
    group_tokens=160)
    """
    room = room_for(token_bytes, total_bytes)
    rows, longest = samples * len(lengths), max(lengths)
    if room < longest + new_tokens:
        raise ValueError(
            f"a prompt of {longest} tokens with {new_tokens} new ones needs "
            f"{(longest + new_tokens) * token_bytes / 2**30:.1f} GiB for its keys and values, and "
            f"{SHARE:.0%} of the GPU's memory beside the weights is "
            f"{SHARE * total_bytes / 2**30:.1f} GiB: take fewer new tokens"
        )
    own_room = max(new_tokens, min(int(OWN * room), room - longest))
    slots = rounded(min(rows, max_rows))
    room_of_slots = (
        own_room * 2 // 3 if several_turns and rows * new_tokens > own_room else own_room
    )
    if slots * new_tokens > room_of_slots:
        slots = max(1, room_of_slots // new_tokens)
        slots -= slots % 16 if slots > 16 else 0
    own = slots * new_tokens + slots * new_tokens * 5 // 8
    own = min(own_room, max(own, rows * new_tokens) if several_turns else own)
    prefix = max(longest, min(room - own, max(2 * sum(lengths), 16_384)))
    return MemoryPlan(
        slots=slots,
        own_tokens=own,
        prefix_tokens=prefix,
        out_tokens=max(rows, 8 * slots) * new_tokens + slots * new_tokens * 5,
        longest=longest,
        group_tokens=samples * new_tokens,
    )


def room_for(token_bytes: int, total_bytes: float) -> int:
    """Tokens whose keys and values the engine may hold."""
    return int(SHARE * total_bytes / token_bytes)


def rounded(rows: int) -> int:
    """A number of rows for which a graph is kept: 16, 32, 64, then multiples of 64."""
    for few in (16, 32, 64):
        if rows <= few:
            return few
    return -(-rows // 64) * 64
