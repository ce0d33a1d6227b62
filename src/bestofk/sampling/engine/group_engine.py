"""The group engine on the device: memory, prompts and decoding steps, in and between calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from bestofk.devices import card_bytes, processes_per_card
from bestofk.precision import Precision
from bestofk.sampling.engine.cuda_graphs import GraphRecorder
from bestofk.sampling.engine.decode_steps import DecodeSteps
from bestofk.sampling.engine.engine_model import EngineModel
from bestofk.sampling.engine.memory import MemoryPlan, make_plan, room_for
from bestofk.sampling.engine.operands import TILED
from bestofk.sampling.engine.prefill import Prefill
from bestofk.sampling.engine.slots import SlotTable
from bestofk.sampling.engine.state import DecodeState
from bestofk.sampling.sampler import Sampling


class GroupEngine:
    """The model on one card, its memory, and what is computed in it."""

    def __init__(
        self, model: EngineModel, plan: MemoryPlan, *, compiled: bool, positions: int
    ) -> None:
        """
        Args:
            compiled: compile the layers, one by one, and record steps as CUDA graphs.
            positions: of the longest prompt with its completion.
        """
        self.positions = 1 << (max(4096, positions) - 1).bit_length()
        self.model, self.plan = model, plan
        device = next(model.model.parameters()).device
        self.state = DecodeState(model.attention_layers, plan, device)
        for layer in model.attention_layers:
            layer.memory = None  # what an engine before had is freed first
        for layer in model.attention_layers:
            layer.allocate(plan, self.state, model.dtype)
        angles = model.fused_model.angles(self.positions) if model.fused_model else None
        recorder = GraphRecorder(on=device.type == "cuda" and compiled)
        self.prefill = Prefill(model, plan, self.state, recorder, angles)
        self.steps = DecodeSteps(model, self.state, recorder, angles)

    def holds(self, needed: MemoryPlan, positions: int) -> bool:
        """Whether calls that this plan was made for run as well in it."""
        return self.plan.holds(needed) and positions <= self.positions

    def upload(self, table: SlotTable, width: int, sampling: Sampling) -> None:
        """The host's table to the device, and a recorded step for so many slots."""
        tiles = table.tiles() if self.state.long_prompts else None
        occupied = 0 if tiles is None else int(np.count_nonzero(tiles[:, 2] >= 0))
        self.state.split = tiles is not None and occupied <= max(1, width // TILED)
        self.steps.prepare(width, sampling)
        self.state.upload(table, tiles)


class ResidentEngine:
    """A policy's engine from call to call: it takes new weights, and is made again only where its
    memory no longer fits."""

    def __init__(
        self,
        model: PreTrainedModel,
        precision: Precision,
        *,
        max_rows: int,
        memory_gib: float | None,
        compiled: bool,
        copied: bool,
    ) -> None:
        """For the arguments see `GroupSampler`."""
        self.model, self.precision, self.max_rows = model, precision, max_rows
        self.memory_gib, self.compiled, self.copied = memory_gib, compiled, copied
        self.stored_plan: MemoryPlan | None = None
        self.engine_model: EngineModel | None = None
        self.engine: GroupEngine | None = None

    @property
    def about(self) -> dict[str, Any]:
        """What the plan was made for; for a run's folder."""
        assert self.engine is not None
        model, plan = self.engine.model, self.engine.plan
        token_bytes = model.token_bytes()
        return {
            "token_bytes": token_bytes,
            "weight_bytes": self.precision.dtype.itemsize,
            "bytes": token_bytes * (plan.own_tokens + plan.prefix_tokens) + 12 * plan.out_tokens,
            "processes_on_the_card": _processes(),
            "layers": "fused" if model.fused_model else "the model's own",
        }

    def begin_with(self, stored: Mapping[str, Any]) -> None:
        """Take at least the sizes of a plan that was written down, from the first call on."""
        names = [each.name for each in fields(MemoryPlan)]
        if all(isinstance(stored.get(name), int) for name in names):
            self.stored_plan = MemoryPlan(**{name: stored[name] for name in names})

    @torch.no_grad()
    def prepare(
        self, encoded: Sequence[tuple[int, ...]], sampling: Sampling, *, several_turns: bool
    ) -> GroupEngine:
        """The engine with the policy's present weights, and memory for this call."""
        if self.engine_model is None:
            self.engine_model = EngineModel(self.model, self.precision.dtype, copied=self.copied)
        else:
            self.engine_model.load_weights(self.model)
        token_bytes, total = self.engine_model.token_bytes(), self.room_bytes(self.engine_model)
        needed = make_plan(
            token_bytes=token_bytes,
            total_bytes=total,
            samples=sampling.n,
            new_tokens=sampling.max_new_tokens,
            lengths=[len(ids) for ids in encoded],
            max_rows=self.max_rows,
            several_turns=several_turns,
        )
        positions = needed.longest + sampling.max_new_tokens
        if self.engine is not None and not self.engine.holds(needed, positions):
            plan = self.engine.plan.joined(needed, room_for(token_bytes, total))
            if plan != self.engine.plan or positions > self.engine.positions:
                needed, self.engine = plan, None  # frees its memory first
        if self.engine is None:
            if self.stored_plan is not None:
                needed = self.stored_plan.joined(needed, room_for(token_bytes, total))
            self.engine = GroupEngine(
                self.engine_model, needed, compiled=self.compiled, positions=positions
            )
        return self.engine

    def room_bytes(self, model: EngineModel) -> float:
        """Memory that sizes are planned from: what the weights leave."""
        if self.memory_gib is not None:
            return self.memory_gib * 2**30
        device = next(self.model.parameters()).device
        cuda = device.type == "cuda"
        total = card_bytes(device) if cuda else 8.0 * 2**30 / _processes()
        return total - model.held_bytes(self.model)

    def drop(self) -> None:
        """Free what is held, for good."""
        self.engine = self.engine_model = None


def _processes() -> int:
    """Of this run on one card: they share its memory."""
    return processes_per_card(torch.cuda.device_count())
