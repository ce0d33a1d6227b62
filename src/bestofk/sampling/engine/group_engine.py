"""The group engine's device side: its memory, prompts and decoding steps."""

from __future__ import annotations

import numpy as np

from bestofk.sampling.engine.cuda_graphs import GraphRecorder
from bestofk.sampling.engine.decode_steps import DecodeSteps
from bestofk.sampling.engine.engine_model import EngineModel
from bestofk.sampling.engine.memory import MemoryPlan
from bestofk.sampling.engine.operands import TILED
from bestofk.sampling.engine.prefill import Prefill
from bestofk.sampling.engine.slots import SlotTable
from bestofk.sampling.engine.state import DecodeState
from bestofk.sampling.sampler import Sampling


class GroupEngine:
    """The model on one card, its memory, and what is computed in it."""

    def __init__(
        self, model: EngineModel, plan: MemoryPlan, *, compiled: bool, positions: int = 4096
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
