"""The engine between the calls of a sampler: it takes the policy's new weights, and is made again
only where its memory no longer fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from transformers import PreTrainedModel

from bestofk.devices import card_bytes, processes_per_card
from bestofk.precision import Precision
from bestofk.sampling.engine.engine_model import EngineModel
from bestofk.sampling.engine.group_engine import GroupEngine
from bestofk.sampling.engine.memory import MemoryPlan, make_plan, room_for
from bestofk.sampling.sampler import Sampling


class ResidentEngine:
    """A policy's `GroupEngine` and the plan of its memory."""

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
            "weight_bytes": self.precision.weight_bytes,
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
