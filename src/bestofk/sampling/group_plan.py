"""How much memory the group engine takes, decided from sizes alone so that a run repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHARE = 0.35
"""Of the card's memory, for keys and values; the learner keeps the rest."""
OWN = 0.75
"""Of that, at most, for completions; prompts have what is left."""


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of the engine's tensors. They depend on the call, the model and the card's total
    memory, never on what happens to be free."""

    slots: int
    """Rows decoded at once."""
    own_tokens: int
    """Places for keys of completions: slots × new tokens, at least."""
    prefix_tokens: int
    """Places for keys of prompts."""
    out_tokens: int
    """Tokens of all rows of one turn."""

    def holds(self, rows: int, new_tokens: int, longest: int) -> bool:
        """Whether a call runs well in it: most of its rows at once, and its longest prompt."""
        at_once = min(self.slots, self.own_tokens // new_tokens)
        wanted = min(rows, self.slots)
        return (
            at_once * 2 >= wanted
            and longest <= self.prefix_tokens
            and self.out_tokens >= new_tokens
        )


def make_plan(
    *,
    token_bytes: int,
    total_bytes: float,
    rows: int,
    new_tokens: int,
    lengths: Sequence[int],
    max_rows: int,
    share: float = SHARE,
) -> MemoryPlan:
    """Sizes for calls like this one.

    Args:
        token_bytes: of one token's keys and values in all layers.
        total_bytes: the card's memory, used or not.
        rows: completions of the call.
        lengths: of its prompts, in tokens.

    Raises:
        ValueError: not even one row fits.

    >>> make_plan(token_bytes=1000, total_bytes=1e6, rows=64, new_tokens=10, lengths=[5] * 4,
    ...           max_rows=2048)
    MemoryPlan(slots=16, own_tokens=260, prefix_tokens=90, out_tokens=2080)
    """
    room = int(share * total_bytes / token_bytes)
    longest = max(lengths)
    if room < longest + new_tokens:
        raise ValueError(
            f"a prompt of {longest} tokens with {new_tokens} new ones needs "
            f"{(longest + new_tokens) * token_bytes / 2**30:.1f} GiB for its keys and values, and "
            f"{share:.0%} of the GPU's memory is {share * total_bytes / 2**30:.1f} GiB: take "
            "fewer new tokens"
        )
    most = max(new_tokens, min(int(OWN * room), room - longest))
    slots = rounded(min(rows, max_rows))
    if slots * new_tokens > most:
        slots = max(1, most // new_tokens)
        slots -= slots % 16 if slots > 16 else 0
    own = min(most, slots * new_tokens + slots * new_tokens * 5 // 8)
    prefix = max(longest, min(room - own, max(2 * sum(lengths), 16_384)))
    return MemoryPlan(
        slots, own, prefix, max(rows, 8 * slots) * new_tokens + slots * new_tokens * 5
    )


def rounded(rows: int) -> int:
    """A number of rows for which a graph is kept: 16, 32, 64, then multiples of 64."""
    for few in (16, 32, 64):
        if rows <= few:
            return few
    return -(-rows // 64) * 64
