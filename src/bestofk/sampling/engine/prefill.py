"""Prompts of the group engine: their keys and values, computed once each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestofk.sampling.engine.cuda_graphs import GraphRecorder
from bestofk.sampling.engine.engine_model import EngineModel
from bestofk.sampling.engine.memory import MemoryPlan
from bestofk.sampling.engine.state import DecodeState

AT_ONCE = 16_384
"""Tokens, padding included, of prompts computed at once."""
SHAPES = 8
"""Shapes of prompts that are recorded, at most."""
PADDED_TO = 32
"""Lengths of prompts are multiples of it where passes are recorded."""


class Prefill:
    """Computes prompts, and records passes over shapes that come again.

    Short work is bound by launches.
    """

    def __init__(
        self, model: EngineModel, plan: MemoryPlan, state: DecodeState, recorder: GraphRecorder,
        angles: tuple[Tensor, Tensor] | None,
    ) -> None:  # fmt: skip
        self.model, self.plan, self.state = model, plan, state
        self.recorder, self.angles = recorder, angles
        self.shapes: set[torch.Size] = set()
        self.graphs: dict[torch.Size, Any] = {}

    @torch.no_grad()
    def run(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Store the keys and values of prompts; where each begins in the store."""
        lengths = [len(prompt) for prompt in prompts]
        starts = [0, *np.cumsum(lengths[:-1]).tolist()] if lengths else []
        order = sorted((p for p in range(len(lengths)) if lengths[p]), key=lambda p: lengths[p])
        while order:
            width = lengths[order[-1]]
            count = max(1, AT_ONCE // width)
            batch, order = order[-count:], order[:-count]
            padded = -(-width // PADDED_TO) * PADDED_TO if self.recorder.on else width
            ids = np.zeros((len(batch), padded), dtype=np.int64)
            places = np.full(ids.shape, self.plan.prefix_tokens)  # padding: a place nobody reads
            for i, p in enumerate(batch):
                ids[i, : lengths[p]] = prompts[p]
                places[i, : lengths[p]] = np.arange(starts[p], starts[p] + lengths[p])
            self._compute(torch.from_numpy(ids), torch.from_numpy(places.ravel()))
        return starts

    def _compute(self, ids: Tensor, places: Tensor) -> None:
        """Keys and values of padded prompts (P, L) to their places in the store."""
        shape = ids.shape
        if shape in self.graphs:
            graph, inputs = self.graphs[shape]
            for buffer, new in zip(inputs, (ids, places)):
                buffer.copy_(new)
            graph.replay()
            return
        ids, places = ids.to(self.state.device), places.to(self.state.device)
        self._store(ids, places)
        if self.recorder.on and shape in self.shapes and len(self.shapes) <= SHAPES:
            graph = self.recorder.record(lambda: self._store(ids, places))
            # A graph reads from where its tensors were: all of them must stay.
            self.graphs[shape] = (graph, (ids, places))
        self.shapes.add(shape)

    def _store(self, ids: Tensor, places: Tensor) -> None:
        self.state.prompt_places = places
        try:
            if self.model.fused_model is not None and self.angles is not None:
                self.model.fused_model.prompts(ids, self.angles)
            else:
                positions = torch.arange(ids.shape[1], device=self.state.device)
                self.model.forward(ids, positions.expand_as(ids))
        finally:
            self.state.prompt_places = None
