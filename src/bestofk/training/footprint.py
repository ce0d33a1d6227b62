"""What a run holds in memory, by purpose: from the model's shape, the batches and the device.

On a GPU it follows the plans that a run makes there: tokens of a micro-batch by `learning.gpu`,
keys and values by `sampling.engine.memory`. Bytes of activations are those of the tensors that
PyTorch saves for the backward pass, counted for layers of the usual kind (RMSNorm, rotary
attention, gated feed-forward block); they agree with measured peaks (tests/training/test_cost.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bestofk.config import ModelSection, SamplingSection
from bestofk.precision import PRECISIONS

GIB = 2.0**30
PROMPT = 256
"""Tokens of a prompt, where they are not known."""
PYTHON, CUDA = 0.5 * GIB, 0.6 * GIB
"""What the libraries take of the machine's memory, and of a GPU's."""
CPU_CACHE = 4 * GIB
"""Keys and values that are held at once on CPU, at most; fewer rows are decoded together then."""
NF4, FP8 = 0.52, 1.0
"""Bytes of a weight in 4 bits and in 8, with its scales."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that its memory follows from."""

    parameters: float
    hidden: float
    inner: float
    layers: float
    vocabulary: float
    queries: float
    """Numbers that a token's queries have in a layer."""
    keys: float

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Shape:
        """From what `models.describe` says."""
        heads = described["heads"] or 1
        size = described["head_dim"] or described["hidden"] / heads
        own = ("parameters", "hidden", "inner", "layers", "vocabulary")
        numbers = {name: float(described[name]) for name in own}
        keys = (described["kv_heads"] or heads) * size
        return cls(queries=heads * size, keys=keys, **numbers)

    @property
    def head(self) -> float:
        return self.vocabulary * self.hidden

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.parameters < self.linear + 1.5 * self.head

    @property
    def linear(self) -> float:
        """Weights of the layers' matrices."""
        return self.layers * self.hidden * (2 * (self.queries + self.keys) + 3 * self.inner)

    def adapters(self, rank: int) -> float:
        """Weights of LoRA adapters on all of these matrices."""
        sides = 7 * self.hidden + 2 * (self.queries + self.keys) + 3 * self.inner
        return rank * self.layers * sides


@dataclass(frozen=True)
class LargestBatch:
    """The largest micro-batch, when every completion has its full length."""

    tokens: float
    rows: float
    prompt: float
    new: float
    several: bool
    """Whether a step has more than one, so that gradients are there already."""

    @classmethod
    def cut(
        cls, sampling: SamplingSection, parts: int, prompt: float, budget: float, *, even: bool
    ) -> LargestBatch:
        """Of a batch in so many parts, with at most `budget` tokens at once."""
        rows, new = sampling.prompts_per_step * sampling.samples_per_prompt, sampling.max_new_tokens
        rows //= parts
        total = rows * new + sampling.prompts_per_step / parts * prompt
        count = -(-total // budget)
        tokens = min(budget, total / count + prompt + new) if even and count > 1 else budget
        tokens = max(min(tokens, total), prompt + new)
        return cls(tokens, rows * min(1.0, tokens / total), prompt, new, several=count > 1)


def footprint(
    model: ModelSection,
    sampling: SamplingSection,
    described: Mapping[str, Any],
    *,
    mini_batches: int = 1,
    with_reference: bool = False,
    several_turns: bool = False,
    card: float | None = None,
    prompt: float = PROMPT,
) -> dict[str, float]:
    """The largest need in bytes, by what it is for.

    Args:
        described: The model, by `models.describe`; with the number of parameters alone, activations
            and sampling are not counted.
        with_reference: Whether a frozen copy of the model is held.
        several_turns: Whether completions wait for an environment, with their keys.
        card: Bytes of the GPU; None is a run on CPU.
        prompt: Tokens of a prompt.
    """
    rank, options = model.lora_rank, model.advanced
    reduced, weights = PRECISIONS[model.precision].reduced, float(described["parameters"])
    shape = Shape.of(described) if "hidden" in described else None
    frozen = bool(rank) and reduced and not options.fsdp
    trained = (shape.adapters(rank) if shape else 0.0) if rank else weights
    base = (2.0 if frozen else 4.0) * weights
    if shape and frozen and (options.lora_nf4 or options.lora_fp8):
        base -= (2.0 - (NF4 if options.lora_nf4 else FP8)) * shape.linear
    held = {
        "Python and libraries" if card is None else "CUDA itself": PYTHON if card is None else CUDA,
        "weights": base + (4.0 * trained if rank else 0.0),
        "optimiser": 8.0 * trained,
        "reference": 4.0 * weights if with_reference and not rank else 0.0,
    }
    if shape is None:
        return held | {"gradients": 4.0 * trained}
    from bestofk.learning.gpu import GpuSettings, tokens_that_fit

    copy = 2.0 * weights if reduced and (not frozen or options.lora_nf4) else 0.0
    planned = held["weights"] + 12.0 * trained + (copy or (0.0 if frozen else 2.0 * weights))
    fitting = GpuSettings.tokens
    if card is not None:
        sizes = shape.hidden, shape.inner, shape.layers
        lean = options.gradient_checkpointing
        fitting = tokens_that_fit(*sizes, planned, card, checkpointing=lean)
    tokens = options.tokens_per_micro_batch or fitting
    batch = LargestBatch.cut(sampling, mini_batches, prompt, tokens, even=card is not None)
    phases = _learning(shape, batch, model, trained, card)
    ours = sampling.engine in ("auto", "group")
    if card is not None and ours:
        held |= {"copy to sample from": copy}
        token = int(2 * shape.layers * shape.keys * (2 if reduced else 4))
        beside = card - held["weights"] - copy
        keys = _engine(token, sampling, beside, prompt, several_turns=several_turns)
        held |= {"keys and values": keys}
    else:
        phases.append(_sampling(shape, sampling, copy, card, prompt))
    if card is None:
        phases.append({"copy to save": base})
    return held | max(phases, key=lambda part: sum(part.values()))


def _learning(
    shape: Shape, batch: LargestBatch, model: ModelSection, trained: float, card: float | None
) -> list[dict[str, float]]:
    """What is held at the end of a forward pass, in the first layer of the backward pass and, of a
    step's only micro-batch, at its end."""
    from bestofk.learning.gpu import LOGITS, WORTH
    from bestofk.learning.scorer import CHUNK

    reduced, rank = PRECISIONS[model.precision].reduced, model.lora_rank
    all_trained = trained == shape.parameters
    on_gpu = card is not None
    compiled = on_gpu and reduced and shape.parameters >= WORTH
    narrow = bool(rank) and not model.advanced.lora_fp8  # the sum that layers add to
    layer = _kept(shape, batch, reduced=reduced, narrow=narrow, compiled=compiled)
    if not (on_gpu and reduced):  # keys and values are gathered for each row
        context = batch.rows * (batch.prompt + batch.new)
        layer += context * (2 * shape.queries + batch.new) * (2 if reduced else 4)
    saved, recomputed = layer * (shape.layers + 1), 0.0  # one more: what backward makes of one
    if model.advanced.gradient_checkpointing:
        state = 2 if narrow and reduced else 4
        saved, recomputed = batch.tokens * state * shape.hidden * shape.layers, 2 * layer
    casts = 2.0 * shape.linear if reduced and all_trained else 0.0
    at_once = min(LOGITS if on_gpu else CHUNK, batch.rows * batch.new * shape.vocabulary)
    logits = at_once * (20.0 if not on_gpu else 6.0 if reduced else 8.0)
    head = 4.0 * shape.head if all_trained else 0.0
    if on_gpu and reduced and all_trained:
        head += 2.0 * shape.head  # its weights in bfloat16
    gradients = 4.0 * trained if batch.several else 0.0
    twice = 4.0 * shape.head if all_trained and shape.tied else 0.0  # the embedding's, to be added
    return [
        {"gradients": gradients, "activations": saved + casts, "logits and head": logits + head},
        {"gradients": gradients or head, "activations": saved + recomputed + casts},
        {"gradients": 4.0 * trained + twice, "activations": layer + casts},
    ]


def _kept(
    shape: Shape, batch: LargestBatch, *, reduced: bool, narrow: bool, compiled: bool
) -> float:
    """Bytes that a layer keeps for its backward pass, without each row's context."""
    if compiled:
        each = 8 * shape.hidden if narrow else 10 * shape.hidden
        return batch.tokens * (each + 4 * (shape.queries + shape.keys) + 6 * shape.inner)
    each = 20 * shape.hidden if narrow else 28 * shape.hidden
    return batch.tokens * (each + (4 if reduced else 8) * (shape.queries + 2 * shape.inner))


def _engine(
    token: int, sampling: SamplingSection, beside: float, prompt: float, *, several_turns: bool
) -> float:
    """Bytes of the group engine, which keeps them while the learner works.

    Args:
        token: bytes of one token's keys and values.
        beside: of the card, without the weights.
    """
    from bestofk.sampling.engine.memory import make_plan

    try:
        plan = make_plan(
            token_bytes=token,
            total_bytes=beside,
            samples=sampling.samples_per_prompt,
            new_tokens=sampling.max_new_tokens,
            lengths=[int(prompt)] * sampling.prompts_per_step,
            max_rows=sampling.advanced.max_rows,
            several_turns=several_turns,
        )
    except ValueError:  # not even one row fits
        return token * (prompt + sampling.max_new_tokens)
    return float(token * (plan.own_tokens + plan.prefix_tokens) + 12 * plan.out_tokens)


def _sampling(
    shape: Shape, sampling: SamplingSection, copy: float, card: float | None, prompt: float
) -> dict[str, float]:
    """While a sampler draws that holds nothing afterwards."""
    if sampling.server:
        return {"cache": 0.0}
    rows = min(sampling.advanced.max_rows, sampling.prompts_per_step * sampling.samples_per_prompt)
    row = 2 * shape.layers * shape.keys * 4 * (prompt + sampling.max_new_tokens)
    room = CPU_CACHE if card is None else card / 2
    rows = max(1, min(rows, int(room // row)))
    logits = rows * shape.vocabulary * 20.0
    return {"copy to sample from": copy, "cache": rows * row, "logits": logits}
