"""The group engine's device side: its memory, prompts, decoding steps and their CUDA graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestofk.sampling.draw import distribution
from bestofk.sampling.engine.layers import FusedLayer, attend_fused, sample
from bestofk.sampling.engine.memory import MemoryPlan, rounded
from bestofk.sampling.engine.mirror import Mirror
from bestofk.sampling.engine.operands import PART, TILE, TILED, SlotField
from bestofk.sampling.engine.slots import SlotTable
from bestofk.sampling.sampler import Sampling

PREFILL = 16_384
"""Tokens, padding included, of prompts computed at once."""
SHAPES = 8
"""Shapes of prompts that are recorded, at most."""
ENDS = 8
"""End tokens that are looked for, at most."""
READ_ONCE = 96
"""Mean length from which a prompt is read once per tile, by a kernel of its own."""


class GroupEngine:
    """Everything a decoding step reads and writes, at addresses that do not change."""

    def __init__(
        self, mirror: Mirror, plan: MemoryPlan, *, compiled: bool, positions: int = 4096
    ) -> None:
        """
        Args:
            compiled: compile the layers, one by one, and record steps as CUDA graphs.
            positions: of the longest prompt with its completion.
        """
        self.positions = 1 << (max(4096, positions) - 1).bit_length()
        self.mirror, self.plan, self.compiled = mirror, plan, compiled
        self.device = next(mirror.model.parameters()).device
        self.cuda = self.device.type == "cuda"
        self.graphed = self.cuda and compiled
        self.long = self.split = self.parted = False
        shares = [1 << (s.heads // s.shared - 1).bit_length() for s in mirror.sites]
        self.rows_per_tile = max(1, TILE // max(shares), 16 // min(shares))
        self.slots = self._table(len(SlotField), plan.slots)
        self.feed = torch.zeros(2, plan.slots, dtype=torch.long, device=self.device)
        self.tiles = self._table(max(1, plan.slots // TILED), 2 + self.rows_per_tile)
        self.span = self._table(1)
        self.ends = self._table(ENDS)
        self.uniform, self.log_probs = (
            torch.zeros(plan.out_tokens, device=self.device) for _ in range(2)
        )
        self.out = self._table(plan.out_tokens)
        self.arrived = {
            shared: torch.zeros(plan.slots, shared, dtype=torch.int32, device=self.device)
            for shared in {site.shared for site in mirror.sites}
        }
        self.graphs: dict[Any, Any] = {}
        self.seconds = {"compile": 0.0}
        for site in mirror.sites:
            store = {"dtype": mirror.dtype, "device": self.device}
            module: Any = site.module
            for name in ("engine_pk", "engine_pv"):
                shape = (plan.prefix_tokens + 1, site.shared, site.size)
                setattr(module, name, torch.zeros(shape, **store))
            for name in ("engine_ok", "engine_ov"):
                size = plan.own_tokens * site.shared * site.size
                setattr(module, name, torch.zeros(size, **store))
            module.engine_slots, module.engine_tiles = self.slots, self.tiles
            module.engine_span = self.span
            module.engine_arrived = self.arrived[site.shared]
            module.engine_prefill = module.engine_split = module.engine_parted = False
        self._pool: Any = None
        self._angles = mirror.fused_model.angles(self.positions) if mirror.fused_model else None
        self._seen: set[Any] = set()
        self._impl: dict[int, Any] = {}

    def holds(self, needed: MemoryPlan, positions: int) -> bool:
        """Whether calls that this plan was made for run as well in it."""
        return self.plan.holds(needed) and positions <= self.positions

    def _table(self, *shape: int) -> Tensor:
        return torch.full(shape, -1, dtype=torch.int32, device=self.device)

    def begin(
        self, ends: Sequence[int], span: int, uniform: np.ndarray, lengths: np.ndarray
    ) -> None:
        """A batch: tokens that end a sequence, its tokens at most, the numbers to draw with."""
        if len(ends) > ENDS:
            raise ValueError(
                f"the group engine looks for at most {ENDS} end tokens, got {len(ends)}"
            )
        self.span.fill_(span)
        self.ends.copy_(torch.tensor([*ends, *[-1] * (ENDS - len(ends))]))
        flat = torch.from_numpy(np.ascontiguousarray(uniform, dtype=np.float32).ravel())
        self.uniform[: flat.numel()].copy_(flat.clamp_(max=1.0 - 2.0**-24))
        self.long = bool(np.mean(lengths) >= READ_ONCE)
        self.parted = span > PART

    @torch.no_grad()
    def prefill(self, prefixes: Sequence[Sequence[int]]) -> list[int]:
        """Compute the keys and values of prompts, once each; where each begins in the store."""
        lengths = [len(prefix) for prefix in prefixes]
        starts = [0, *np.cumsum(lengths[:-1]).tolist()] if lengths else []
        order = sorted((p for p in range(len(lengths)) if lengths[p]), key=lambda p: lengths[p])
        while order:
            width = lengths[order[-1]]
            count = max(1, PREFILL // width)
            chosen, order = order[-count:], order[:-count]
            across = -(-width // 32) * 32 if self.graphed else width
            ids = np.zeros((len(chosen), across), dtype=np.int64)
            into = np.full(ids.shape, self.plan.prefix_tokens)  # padding: a place nobody reads
            for at, p in enumerate(chosen):
                ids[at, : lengths[p]] = prefixes[p]
                into[at, : lengths[p]] = np.arange(starts[p], starts[p] + lengths[p])
            self._compute_prompts(torch.from_numpy(ids), torch.from_numpy(into.ravel()))
        return starts

    def _compute_prompts(self, ids: Tensor, into: Tensor) -> None:
        """Keys and values of padded prompts (P, L) to their places in the store.

        Short work is bound by launches: a shape that comes again is recorded.
        """
        key = ("prompts", *ids.shape)
        if key in self.graphs:
            graph, read = self.graphs[key]
            for buffer, new in zip(read, (ids, into)):
                buffer.copy_(new)
            graph.replay()
            return
        ids, into = ids.to(self.device), into.to(self.device)
        self._store_prompts(ids, into)
        if self.graphed and key in self._seen and len(self._seen) <= SHAPES:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._store_prompts(ids, into)
            # A graph reads from where its tensors were: all of them must stay.
            self.graphs[key] = (graph, (ids, into))
        self._seen.add(key)

    def _store_prompts(self, ids: Tensor, into: Tensor) -> None:
        if self.mirror.fused_model is not None and self._angles is not None:

            def store(layer: FusedLayer, keys: Tensor, values: Tensor) -> None:
                layer.site.module.engine_pk.index_copy_(0, into, keys)
                layer.site.module.engine_pv.index_copy_(0, into, values)

            self.mirror.fused_model.prompts(ids, store, self._angles)
            return
        for site in self.mirror.sites:
            module: Any = site.module
            module.engine_prefill, module.engine_into = True, into
        try:
            self.mirror.forward(ids, torch.arange(ids.shape[1], device=self.device).expand_as(ids))
        finally:
            for site in self.mirror.sites:
                site.module.engine_prefill = False  # type: ignore[assignment]

    def upload(self, table: SlotTable, width: int, sampling: Sampling) -> None:
        """The host's table to the device, and a recorded step for so many slots."""
        tiles = table.tiles() if self.long else None
        self.split = tiles is not None and int((tiles[:, 2] >= 0).sum()) <= max(1, width // TILED)
        self._ready(width, sampling)
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

    def decode(self, width: int, steps: int, sampling: Sampling) -> None:
        """So many tokens for the sequences in the first `width` slots; does not wait for them."""
        if not self.graphed:
            for _ in range(steps):
                self._step(width, sampling)
            return
        graph = self.graphs[self._key(width, sampling)]
        for _ in range(steps):
            graph.replay()

    def _key(self, width: int, sampling: Sampling) -> Any:
        return width, self.split, self.parted, sampling.temperature, sampling.top_k, sampling.top_p

    @torch.no_grad()
    def _step(self, width: int, sampling: Sampling) -> None:
        """One token for the sequences in the first `width` slots."""
        logits = self._logits(width)
        temperature = sampling.temperature
        if sampling.truncated and temperature:
            logits, temperature = distribution(logits, sampling), 1.0
        sample(
            logits, self.slots, self.span, self.uniform, self.ends, self.feed[0], self.feed[1],
            self.out, self.log_probs, temperature,
        )  # fmt: skip

    def _logits(self, width: int) -> Tensor:
        tokens, places = self.feed[:, :width]
        if self.mirror.fused_model is None or self._angles is None:
            return self.mirror.forward(tokens[:, None], places[:, None])
        cos, sin = self._angles
        return self.mirror.fused_model.forward(
            tokens,
            lambda layer, qkv: attend_fused(
                layer, qkv, cos, sin, self.slots, self.tiles, self.span, self.split, self.parted
            ),
        )

    def _ready(self, width: int, sampling: Sampling) -> None:
        """Record the step for this many slots, unless there is a recording already.

        Slots are marked as ended while it runs, so that it changes nothing else.
        """
        key = self._key(width, sampling)
        for site in self.mirror.sites:
            module: Any = site.module
            module.engine_split, module.engine_parted = self.split, self.parted
        if not self.graphed or key in self.graphs:
            return
        began = time.perf_counter()
        self.slots[SlotField.ENDED] = 1
        self.tiles.fill_(-1)  # those of a wider batch name slots this one does not have
        self.feed.zero_()
        with self._compiled_layers():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._step(width, sampling)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._step(width, sampling)
            self._pool = self._pool or graph.pool()
        torch.cuda.synchronize()
        self.graphs[key] = graph
        self.seconds["compile"] += time.perf_counter() - began

    @contextmanager
    def _compiled_layers(self) -> Iterator[None]:
        """Layers by their compiled code, which is one for all of them."""
        if self.mirror.fused_model is not None:
            yield
            return
        with torch._dynamo.config.patch(recompile_limit=64):
            for layer in self.mirror.layers:
                if id(layer) not in self._impl:
                    # Rotations of queries and keys, for one, are then a single kernel.
                    self._impl[id(layer)] = torch.compile(
                        layer._call_impl, options={"combo_kernels": True}
                    )
                layer._compiled_call_impl = self._impl[id(layer)]
            try:
                yield
            finally:
                for layer in self.mirror.layers:
                    layer._compiled_call_impl = None

    def widths(self, slots: int) -> list[int]:
        """Numbers of slots that steps are recorded for: all of them, halves, quarters, ...

        And three quarters, where a recording takes no compilation.
        """
        result = [slots]
        while result[-1] > 16:
            half = min(rounded(result[-1] // 2), result[-1] - 1)
            between = rounded(result[-1] * 3 // 4)
            if self.mirror.fused_model is not None and half < between < result[-1]:
                result.append(between)
            result.append(half)
        return result

    def fetch(self, sequences: np.ndarray, span: int) -> Any:
        """Begin to copy the output of these sequences to the host; call the result to wait."""
        at = torch.from_numpy(sequences).to(self.device)
        size = self.out.numel() // span * span
        tokens = self.out[:size].view(-1, span)[at]
        values = self.log_probs[:size].view(-1, span)[at]
        if not self.cuda:
            return lambda: (tokens.numpy(), values.numpy())
        pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in (tokens, values)]
        for into, new in zip(pinned, (tokens, values)):
            into.copy_(new, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

        def wait() -> tuple[np.ndarray, np.ndarray]:
            done.synchronize()
            return pinned[0].numpy(), pinned[1].numpy()

        return wait
