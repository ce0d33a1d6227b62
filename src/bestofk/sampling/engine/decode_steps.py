"""Decoding steps of the group engine: one token for every slot, as CUDA graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bestofk.sampling.draw import distribution
from bestofk.sampling.engine.cuda_graphs import GraphRecorder
from bestofk.sampling.engine.engine_model import EngineModel
from bestofk.sampling.engine.layers import attend_fused, kernels_for
from bestofk.sampling.engine.memory import rounded
from bestofk.sampling.engine.state import DecodeState
from bestofk.sampling.sampler import Sampling


class DecodeSteps:
    """Steps for the sequences in the first `width` slots, recorded by width and sampling."""

    def __init__(
        self, model: EngineModel, state: DecodeState, recorder: GraphRecorder,
        angles: tuple[Tensor, Tensor] | None,
    ) -> None:  # fmt: skip
        self.model, self.state = model, state
        self.recorder, self.angles = recorder, angles
        self.graphs: dict[Any, Any] = {}
        self.compile_s = 0.0
        self._compiled: dict[int, Any] = {}

    def run(self, width: int, steps: int, sampling: Sampling) -> None:
        """So many tokens; does not wait for them."""
        if not self.recorder.on:
            for _ in range(steps):
                self.step(width, sampling)
            return
        graph = self.graphs[self._key(width, sampling)]
        for _ in range(steps):
            graph.replay()

    def _key(self, width: int, sampling: Sampling) -> Any:
        state = self.state
        truncation = sampling.temperature, sampling.top_k, sampling.top_p
        return width, state.split, state.parted, *truncation

    @torch.no_grad()
    def step(self, width: int, sampling: Sampling) -> None:
        """One token."""
        logits, state = self._logits(width), self.state
        temperature = sampling.temperature
        if sampling.truncated and temperature:
            logits, temperature = distribution(logits, sampling), 1.0
        kernels_for(logits).sample(
            logits, state.slots, state.span, state.uniform, state.ends, state.feed[0],
            state.feed[1], state.out, state.log_probs, temperature,
        )  # fmt: skip

    def _logits(self, width: int) -> Tensor:
        tokens, positions = self.state.feed[:, :width]
        if self.model.fused_model is None or self.angles is None:
            return self.model.forward(tokens[:, None], positions[:, None])
        cos, sin = self.angles
        return self.model.fused_model.forward(
            tokens, lambda layer, qkv: attend_fused(layer, qkv, cos, sin)
        )

    def prepare(self, width: int, sampling: Sampling) -> None:
        """Record the step for this many slots, unless there is a recording already."""
        key = self._key(width, sampling)
        if not self.recorder.on or key in self.graphs:
            return
        began = time.perf_counter()
        self.state.clear()
        with self._compiled_layers():
            self.recorder.warmed_up(lambda: self.step(width, sampling))
            self.graphs[key] = self.recorder.record(lambda: self.step(width, sampling))
        torch.cuda.synchronize()
        self.compile_s += time.perf_counter() - began

    @contextmanager
    def _compiled_layers(self) -> Iterator[None]:
        """Layers by their compiled code, which is one for all of them."""
        if self.model.fused_model is not None:
            yield
            return
        layers = self.model.decoder_layers
        with torch._dynamo.config.patch(recompile_limit=64):
            for layer in layers:
                if id(layer) not in self._compiled:
                    # Rotations of queries and keys, for one, are then a single kernel.
                    self._compiled[id(layer)] = torch.compile(
                        layer._call_impl, options={"combo_kernels": True}
                    )
                layer._compiled_call_impl = self._compiled[id(layer)]
            try:
                yield
            finally:
                for layer in layers:
                    layer._compiled_call_impl = None

    def widths(self, slots: int) -> list[int]:
        """Numbers of slots that steps are recorded for: all of them, halves, quarters, ...

        And three quarters, where a recording takes no compilation.
        """
        result = [slots]
        while result[-1] > 16:
            half = min(rounded(result[-1] // 2), result[-1] - 1)
            between = rounded(result[-1] * 3 // 4)
            if self.model.fused_model is not None and half < between < result[-1]:
                result.append(between)
            result.append(half)
        return result
