"""What decoding steps read and write on the device, at addresses that do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestofk.sampling.engine.memory import MemoryPlan
from bestofk.sampling.engine.operands import EMPTY, PART, TILE, TILED, SlotField
from bestofk.sampling.engine.slots import SlotTable

ENDS = 8
"""End tokens that are looked for, at most."""
READ_ONCE = 96
"""Mean length from which a prompt is read once per tile, by a kernel of its own."""


class DecodeState:
    """Slots, what they are fed, and the output of a batch; the same for all layers."""

    def __init__(
        self, layers: Sequence[AttentionLayer], plan: MemoryPlan, device: torch.device
    ) -> None:
        self.device = device
        self.split = False
        """Whether each prompt is read once per tile, not once per sequence."""
        self.parted = False
        """Whether sequences may be so long that several programs read the keys of one."""
        self.long_prompts = False
        self.prompt_places: Tensor | None = None
        """While prompts are computed, where the keys of each of their tokens go."""
        groups = [1 << (layer.heads // layer.kv_heads - 1).bit_length() for layer in layers]
        self.rows_per_tile = max(1, TILE // max(groups), 16 // min(groups))
        self.slots = self._integers(len(SlotField), plan.slots)
        self.feed = torch.zeros(2, plan.slots, dtype=torch.long, device=device)
        self.tiles = self._integers(max(1, plan.slots // TILED), 2 + self.rows_per_tile)
        self.span = self._integers(1)
        self.ends = self._integers(ENDS)
        self.uniform, self.log_probs = (
            torch.zeros(plan.out_tokens, device=device) for _ in range(2)
        )
        """The numbers to draw with; −1 − id forces the token id."""
        self.out = self._integers(plan.out_tokens)
        self.arrived = {
            kv_heads: torch.zeros(plan.slots, kv_heads, dtype=torch.int32, device=device)
            for kv_heads in {layer.kv_heads for layer in layers}
        }

    def _integers(self, *shape: int) -> Tensor:
        return torch.full(shape, EMPTY, dtype=torch.int32, device=self.device)

    def begin(
        self, ends: Sequence[int], span: int, uniform: np.ndarray, lengths: np.ndarray
    ) -> None:
        """A batch: tokens that end a sequence, its tokens at most, the numbers to draw with."""
        self.span.fill_(span)
        self.ends.copy_(torch.tensor([*ends, *[-1] * (ENDS - len(ends))]))
        self.uniform[: uniform.size].copy_(_below_one(uniform.ravel()))
        self.long_prompts = bool(np.mean(lengths) >= READ_ONCE)
        self.parted = span > PART

    def upload(self, table: SlotTable, tiles: np.ndarray | None) -> None:
        """The host's table to the device."""
        if tiles is not None:
            self.tiles.copy_(torch.from_numpy(tiles[: len(self.tiles)]))
        self.slots.copy_(torch.from_numpy(table.fields))
        self.feed.copy_(torch.from_numpy(table.feed))

    def download(self, table: SlotTable) -> None:
        """How far the device is, to the host; waits for the steps before."""
        table.fields[:] = self.slots.cpu().numpy()

    def download_feed(self, table: SlotTable) -> None:
        """What the device feeds next, to the host: before sequences move or others join them."""
        table.feed[:] = self.feed.cpu().numpy()

    def draw_with(self, places: np.ndarray, numbers: np.ndarray) -> None:
        """Other numbers to draw with at these places."""
        at = torch.from_numpy(places).to(self.device)
        self.uniform[at] = _below_one(numbers).to(self.device)

    def drawn(self, sequence: int, span: int) -> np.ndarray:
        """Which tokens of a sequence were drawn, not forced."""
        numbers = self.uniform[sequence * span : (sequence + 1) * span]
        return np.asarray((numbers >= 0).cpu().numpy())

    def clear(self) -> None:
        """Mark all slots as ended, so that a step changes nothing else."""
        self.slots[SlotField.ENDED] = 1
        self.tiles.fill_(EMPTY)  # those of a wider batch name slots this one does not have
        self.feed.zero_()

    def fetch(
        self, sequences: np.ndarray, span: int
    ) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """Begin to copy the output of these sequences to the host; call the result to wait."""
        rows = torch.from_numpy(sequences).to(self.device)
        size = self.out.numel() // span * span
        tokens = self.out[:size].view(-1, span)[rows]
        values = self.log_probs[:size].view(-1, span)[rows]
        if self.device.type != "cuda":
            return lambda: (tokens.numpy(), values.numpy())
        pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in (tokens, values)]
        for host, new in zip(pinned, (tokens, values)):
            host.copy_(new, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def wait() -> tuple[np.ndarray, np.ndarray]:
            copied.synchronize()
            return pinned[0].numpy(), pinned[1].numpy()

        return wait


def _below_one(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32)).clamp_(max=1.0 - 2.0**-24)


@dataclass(eq=False)
class LayerMemory:
    """Keys and values of one attention layer, and the state it shares with the others."""

    state: DecodeState
    arrived: Tensor
    prompt_keys: Tensor
    prompt_values: Tensor
    """(C + 1, kv_heads, d), the prompts one after another; what padding has goes to the last."""
    own_keys: Tensor
    own_values: Tensor
    """Of completions: flat, (S, kv_heads, T, d)."""

    def store_prompts(self, keys: Tensor, values: Tensor) -> None:
        """Keys and values (P · L, kv_heads, d) of prompts, to their places."""
        assert self.state.prompt_places is not None
        self.prompt_keys.index_copy_(0, self.state.prompt_places, keys)
        self.prompt_values.index_copy_(0, self.state.prompt_places, values)


@dataclass(eq=False)
class AttentionLayer:
    """How one layer of the model attends, and the memory that the engine gives it."""

    module: Any
    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int = 0
    cap: float = 0.0
    memory: LayerMemory | None = None

    def allocate(self, plan: MemoryPlan, state: DecodeState, dtype: torch.dtype) -> None:
        """Keys and values by the plan, all zeros."""
        prompts = (plan.prefix_tokens + 1, self.kv_heads, self.head_size)
        own = (plan.own_tokens * self.kv_heads * self.head_size,)
        stores = (
            torch.zeros(shape, dtype=dtype, device=state.device)
            for shape in (prompts, prompts, own, own)
        )
        self.memory = LayerMemory(state, state.arrived[self.kv_heads], *stores)
