"""Colours with one meaning on every page: before training grey, one sample red, k blue."""

from __future__ import annotations

import re
from collections.abc import Sequence

MEANINGS = {
    r"(start|base|before|step 0)\b": (0,),
    r".*[@+]([2-9]|\d\d)|.*(maxrl|tailrl)": (1, 6),
    r"(grpo|dr-grpo|mean|rloo|reinforce|rs-grpo|gspo|pass@1|max@1)\b": (2, 7),
}
"""Places in the palette of page.css (--run0, …) by what begins the words on a run."""
PALETTE = (3, 5, 4, 6, 7, 1, 2, 0)
"""The order for runs of which no meaning is known, and for more of one meaning than it has."""


def palette_places(about: Sequence[str]) -> list[int]:
    """For each run its place, from its objective, or from its name where it has none.

    >>> palette_places(["base", "grpo", "max@1+4+16", "mine", "max@8", "mean"])
    [0, 2, 1, 3, 6, 7]
    """
    places: list[int] = []
    for number, words in enumerate(about):
        own = next((own for text, own in MEANINGS.items() if re.match(text, words)), ())
        free = [place for place in (*own, *PALETTE) if place not in places]
        places.append(free[0] if free else PALETTE[number % len(PALETTE)])
    return places
