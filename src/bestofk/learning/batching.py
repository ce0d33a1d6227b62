"""How a learner cuts its rows into micro-batches: by a budget of tokens, in one layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from bestofk.agreement.layouts import in_float32, layout_gap, probed
from bestofk.learning import attention, distributed, gpu
from bestofk.learning.layout import BUILD, Batch, Row, micro_batches
from bestofk.learning.passes import Passes
from bestofk.learning.scorer import CHUNK
from bestofk.model_facts import base_model
from bestofk.types import Group

T = TypeVar("T")
LAYOUTS = ("auto", "packed", "padded", "single")


class Batching:
    """The micro-batches of a model."""

    layout: str
    """Packed, padded or single."""
    budget: int
    """Tokens of a micro-batch, at most."""
    reduced_budget: int = 0
    """The budget after the memory was full, 0 before."""

    def __init__(self, model: Any, layout: str, budget: int, *, flat: bool) -> None:
        """
        Args:
            layout: one of `LAYOUTS`.
            flat: packed rows are described for FlashAttention.
        """
        self.model, self.requested, self.budget, self.flat = model, layout, budget, flat
        self.layout = self._choose(layout)
        self._compared = self.layout != "packed"

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _choose(self, layout: str) -> str:
        """The layout to use; packed only where attention can be replaced."""
        if layout not in ("auto", "packed"):
            return layout
        causal = base_model(self.model)
        if attention.install(causal):
            return "packed"
        if layout == "packed":
            raise ValueError(
                f"layout 'packed' replaces attention, which {type(causal).__name__} with "
                f"{causal.config._attn_implementation!r} attention does not allow; take 'padded'"
            )
        return "padded"

    def cut(self, groups: Sequence[Group], rows: Sequence[Row]) -> list[tuple[list[Row], bool]]:
        """Micro-batches, and whether each is real: ranks that have fewer fill up with others."""
        budget = self.budget
        if self.device.type == "cuda":
            budget = gpu.even_budget(groups, rows, budget, packed=self.layout == "packed")
        cut = micro_batches(groups, rows, budget=budget, layout=self.layout)
        count = distributed.largest_count(len(cut))
        filler: list[tuple[list[Row], bool]] = [([(0, 0)], False)] * (count - len(cut))
        return filler + [(rows, True) for rows in cut]

    def build(self, groups: Sequence[Group], rows: Sequence[Row], layout: str = "") -> Batch:
        """The tensors of a micro-batch."""
        layout = layout or self.layout
        name = "flat" if self.flat and layout == "packed" else layout
        return BUILD[name](groups, rows, self.device)

    def compare_layouts(self, groups: Sequence[Group], passes: Passes) -> None:
        """At the first batch: are its log-probs the same packed and padded? Else pad from now on.

        Raises:
            ValueError: they are not, and layout "packed" was asked for.
        """
        if self._compared:
            return
        self._compared = True
        rows = probed(groups)

        def score(layout: str, exact: bool) -> Tensor:
            batch = self.build(groups, rows, layout)
            with in_float32(self.model) if exact else passes.autocast():
                return passes.wrapped(batch)[0]

        chunk = passes.scorer.chunk
        passes.scorer.chunk = min(chunk, CHUNK)  # float32 takes more room
        with torch.compiler.set_stance("force_eager"):  # nothing is compiled for it
            reduced = passes.precision.reduced
            gap, limit = layout_gap(score, reduced=reduced) if rows else (0.0, 0.0)
        passes.scorer.chunk = chunk
        if any(distributed.gather(not gap <= limit)):  # NaN is no agreement
            message = (
                f"packed rows of {type(self.model).__name__} have log-probs {gap:.2g} per token "
                f"away from padded rows, more than {limit:.2g}"
            )
            if self.requested == "packed":
                raise ValueError(f"{message}: take layout 'padded'")
            warnings.warn(f"{message}; rows are padded from now on, which is slower", stacklevel=4)
            self.pad()

    def in_parts_that_fit(self, work: Callable[[], T], undo: Callable[[], None]) -> T:
        """Do the work; where the GPU's memory is full, once more in micro-batches of half the size.

        Several processes wait for each other in the middle of it, so there the error stands.

        Args:
            undo: takes back what a failed attempt left.

        Raises:
            torch.OutOfMemoryError: micro-batches of 512 tokens do not fit either.
        """
        while True:
            try:
                return work()
            except torch.OutOfMemoryError:
                undo()
                if distributed.is_shared() or self.budget <= gpu.LEAST:
                    raise
            # Outside of `except`, where nothing holds the tensors of the failed attempt any more.
            torch.cuda.empty_cache()
            self.restrict(max(self.budget // 2, gpu.LEAST))
            warnings.warn(
                f"the GPU's memory was full: from here on micro-batches have {self.budget:,} "
                "tokens at most (model.advanced.tokens_per_micro_batch)",
                stacklevel=3,
            )

    def pad(self) -> None:
        """Rows are padded from here on."""
        self.layout, self._compared = "padded", True

    def restrict(self, budget: int) -> None:
        """A budget that full memory reduced, here or in the run that is resumed; 0 is none."""
        self.reduced_budget = budget
        self.budget = min(self.budget, budget or self.budget)
