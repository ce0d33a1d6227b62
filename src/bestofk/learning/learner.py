"""The learner: log-probs of groups under a model, and optimiser steps on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from transformers import PreTrainedModel

from bestofk import metrics
from bestofk.agreement.log_prob_gaps import NO_GAP, gap_of_rows
from bestofk.agreement.one_model import check_causal
from bestofk.learning import distributed, gpu
from bestofk.learning.batching import LAYOUTS, Batching
from bestofk.learning.layout import Batch
from bestofk.learning.loss import (
    Rows,
    StepRows,
    loss_of,
    same_size,
    same_temperature,
    step_rows,
)
from bestofk.learning.passes import Passes, reference_scorer, switch_off_dropout
from bestofk.learning.scorer import Scorer
from bestofk.learning.settings import LogProbs, Loss, Optimizer
from bestofk.learning.update import Update, statistics
from bestofk.messages import one_of
from bestofk.precision import PRECISIONS, warn_where_bf16_is_slow
from bestofk.types import Group

Scored = list[tuple[Batch, Tensor, Tensor]]
"""Micro-batches, with log-probs and entropies of their tokens."""
Statistics = list[tuple[dict[str, Tensor], bool]]
"""Sums over each micro-batch, and whether it is real."""
NOTHING = np.zeros(0, dtype=np.float32)


class Learner:
    """Owns a model and its optimiser; turns groups and weights into optimiser steps.

    All groups of a call have the same number n of completions. Weights are plain numbers in the
    mean convention, made by an objective beforehand, so that splitting a group over micro-batches
    changes nothing but rounding. Where torch.distributed has a group of several processes, their
    learners are one: gradients are averaged (DDP), and P, tokens and statistics are of all ranks.
    """

    model: PreTrainedModel
    """The model as given (not the wrapper for many processes)."""
    policy: PreTrainedModel
    """What to sample from and to save, inside `gathered`; the model itself unless sharded."""
    batching: Batching
    """Its layout, and the budget of its micro-batches."""
    passes: Passes
    """Its forward passes, in its precision."""
    update: Update
    """Its optimizer, the learning rate of every step, and the limit of the gradient."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: Optimizer | None = None,
        total_steps: int | None = None,
        stop_grad_norm: float = math.inf,
        max_new_tokens: int | None = None,
        temperature: float = 1.0,
        tokens_per_micro_batch: int | None = gpu.GpuSettings.tokens,
        layout: str = "auto",
        precision: str = "fp32",
        gradient_checkpointing: bool = False,
        reference: PreTrainedModel | None = None,
        sharded: bool = False,
        logits_at_once: int | None = None,
        compiled: bool | None = None,
    ) -> None:
        """
        Args:
            model: any causal LM; parameters with `requires_grad` are trained. Those should be
                float32: with precision "bf16" they are the master weights under autocast. Dropout
                is switched off, since π_θ must be a function of its weights.
            total_steps: Optimiser steps of the run, where a schedule ends at the last one.
            stop_grad_norm: A larger gradient norm (before clipping) raises `NonFinite`.
            max_new_tokens: The sampler's limit, by which the normaliser "dr-grpo" divides.
            temperature: of the sampler; log-probs are of softmax(logits / temperature). Groups
                drawn at another one are an error.
            tokens_per_micro_batch: an upper bound on the tokens of one forward pass; a completion
                longer than it goes alone. None: on a GPU from its memory, else 16,384.
            layout: "packed" computes the prompt once per group and pads nothing outside attention;
                "padded" repeats the prompt and pads each row; "single" is one row at a time.
                "auto" is packed where the model's attention can be replaced and a first batch has
                the same log-probs packed and padded; else padded.
            reference: the frozen policy for `Loss.kl`. With a peft model it may be left out: the
                reference is then the model with its adapters off.
            sharded: FSDP2 instead of DDP: weights, gradients and optimiser are shared out over the
                processes, and so is the reference.
            logits_at_once: how many logits are held at a time; a bound on memory.
            compiled: compile the layers, one by one; by default on a GPU in bf16, for models of
                30 million weights and more.

        Raises:
            ValueError: an unknown setting, or a model that is not a decoder.
        """
        one_of("layout", layout, LAYOUTS)
        one_of("precision", precision, PRECISIONS)
        if temperature <= 0.0:
            raise ValueError(f"the learner's temperature is above 0, got {temperature}")
        numbers = PRECISIONS[precision]
        if numbers.reduced:
            warn_where_bf16_is_slow(model)
        self.model, self.temperature, self.max_new_tokens = model, temperature, max_new_tokens
        self.checkpointing = gradient_checkpointing
        switch_off_dropout(model)
        model.eval()
        check_causal(model)
        fast = gpu.settings(model, numbers, checkpointing=gradient_checkpointing)
        budget = tokens_per_micro_batch or fast.tokens
        self.batching = Batching(model, layout, budget, flat=fast.flat)
        if gradient_checkpointing:
            renamed = getattr(model, "activation_checkpointing_enable", None)  # transformers 5.23
            (renamed or model.gradient_checkpointing_enable)({"use_reentrant": False})
        scorer = Scorer(model, temperature, logits_at_once or fast.logits)
        scorer.fused = fast.fused and scorer.can_fuse and not sharded
        if fast.compiled if compiled is None else compiled:
            gpu.compile_layers(model)
        frozen = reference_scorer(reference, scorer, self.batching.layout) if reference else None
        self.passes = Passes(scorer, numbers, frozen, sharded=sharded)
        self.policy = self.passes.policy
        self.update = Update(model, optimizer or Optimizer(), total_steps, stop_grad_norm)

    @property
    def steps(self) -> int:
        """Optimiser steps taken."""
        return self.update.steps

    @property
    def device(self) -> torch.device:
        return self.batching.device

    @torch.no_grad()
    def log_probs(self, groups: Sequence[Group], *, reference: bool = False) -> LogProbs:
        """Token log-probs and entropies of every completion, without gradient.

        With `reference`, those of the reference policy (for `step(reference=)`).
        """
        same_size(groups)
        same_temperature(groups, self.temperature)
        self.batching.compare_layouts(groups, self.passes)
        self.model.eval()
        with self.passes.scoring(reference=reference) as scorer:
            scored = self.batching.in_parts_that_fit(
                lambda: score(self, groups, scorer), self.update.forget
            )
        return by_group(scored, groups)

    def sequence_log_probs(self, groups: Sequence[Group]) -> np.ndarray:
        """Σ_t log π_θ(y_t) of every completion, (P, n) in float64, without gradient."""
        return self.log_probs(groups).log_prob

    def step(
        self,
        groups: Sequence[Group],
        weights: ArrayLike,
        *,
        loss: Loss | None = None,
        old: LogProbs | None = None,
        reference: LogProbs | None = None,
        live: ArrayLike | None = None,
    ) -> dict[str, float]:
        """One optimiser step on these groups.

        Rows of weight 0 are left out of the computation unless KL or entropy wants them; they count
        in n and P all the same.

        Args:
            weights: (P, n), the objective's, in the mean convention.
            loss: exact unless said.
            old: log-probs under π_old (`log_probs(groups)` before the first inner step); the
                clipped loss needs them, the exact loss does not.
            reference: log-probs under the reference policy, for KL
                (`log_probs(groups, reference=True)`).
            live: (P, n), False for samples that could not be scored: n_p counts the live ones of
                group p, and a group without any is not counted in P. All live by default.

        Returns:
            loss, lr, grad_norm (before clipping), token_entropy (mean over the tokens that
            entered), tokens (completion tokens that entered), rows, micro_batches;
            sampler_gap_mean and _max, the difference to the log-probs the sampler reported of the
            tokens that entered; with the clipped loss also clip_fraction and ratio_max; with KL
            also kl (mean over tokens).

        Raises:
            NonFinite: before anything is changed, when loss or gradient is NaN or infinite, or the
                gradient's norm exceeds `stop_grad_norm`.
        """
        loss = loss or Loss()
        inputs = step_rows(groups, weights, live, loss, old, reference)
        same_temperature(groups, self.temperature)
        self.batching.compare_layouts(groups, self.passes)
        self.model.train(self.checkpointing)
        parts = self.batching.in_parts_that_fit(
            lambda: accumulate_gradient(self, groups, inputs, loss), self.update.forget
        )
        self.model.eval()
        sums = sums_over_ranks(parts, len(inputs.entering))
        update = self.update.step(sums)
        return statistics(sums) | update | {metrics.MICRO_BATCHES: float(len(parts))}

    def gathered(self) -> AbstractContextManager[None]:
        """See `Passes.gathered`."""
        return self.passes.gathered()

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: trained weights, optimiser, steps, and how rows are cut:
        their layout, and a budget of tokens that full memory reduced. Safe to load with
        `torch.load(weights_only=True)`, and the same for any number of processes. Every rank calls
        it; with several, the first alone gets the tensors."""
        distributed.reshard(self.passes.wrapped)
        first = distributed.is_first()
        model, optimiser = distributed.state_of(self.model, self.update.optimizer, keep=first)
        batching = {"reduced": self.batching.reduced_budget, "layout": self.batching.layout}
        return {"model": model, "optimiser": optimiser, "steps": self.steps, **batching}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The opposite of `state_dict`; a state of another model is an error."""
        distributed.reshard(self.passes.wrapped)
        moments = state_dict["optimiser"]
        distributed.load_state(self.model, self.update.optimizer, state_dict["model"], moments)
        self.update.steps = int(state_dict["steps"])
        self.batching.restrict(int(state_dict.get("reduced", 0)))
        if self.batching.requested == "auto" and state_dict.get("layout") == "padded":
            self.batching.pad()


def score(learner: Learner, groups: Sequence[Group], scorer: nn.Module) -> Scored:
    """All rows of the groups, by the policy's scorer or its reference's."""
    rows = [(p, i) for p, group in enumerate(groups) for i in range(len(group.trajectories))]
    scored = []
    for part, real in learner.batching.cut(groups, rows):
        batch = learner.batching.build(groups, part)
        with learner.passes.autocast():
            log_prob, entropy = scorer(batch)
        if real:
            scored.append((batch, log_prob, entropy))
    return scored


def by_group(scored: Scored, groups: Sequence[Group]) -> LogProbs:
    """The same in the order of the groups."""
    tokens = [[NOTHING] * len(group.trajectories) for group in groups]
    entropies = [[NOTHING] * len(group.trajectories) for group in groups]
    for batch, log_prob, entropy in scored:
        pieces = log_prob.cpu().split(batch.lengths), entropy.cpu().split(batch.lengths)
        for (p, i), row, spread in zip(batch.rows, *pieces):
            tokens[p][i], entropies[p][i] = row.numpy(), spread.numpy()
    return LogProbs(tuple(map(tuple, tokens)), tuple(map(tuple, entropies)))


def accumulate_gradient(
    learner: Learner, groups: Sequence[Group], inputs: StepRows, loss: Loss
) -> Statistics:
    """Add the gradient of the loss to that of the weights; ranks meet at the last micro-batch."""
    parts = []
    cut = learner.batching.cut(groups, inputs.entering)
    for at, (part, real) in enumerate(cut):
        batch = learner.batching.build(groups, part)
        rows = inputs.of(batch, real)
        with distributed.accumulate(learner.passes.wrapped, at == len(cut) - 1):
            value, log_prob, stats = _loss(learner, loss, batch, rows, inputs)
            value = value * real  # a filler only keeps the ranks in step
            value.backward()
        stats |= {"loss": value.detach(), "tokens": torch.tensor(float(len(log_prob)))}
        trajectories = [groups[p].trajectories[i] for p, i in batch.rows]
        stats |= gap_of_rows(trajectories, log_prob.detach())
        parts.append((stats, real))
    return parts


def _loss(
    learner: Learner, loss: Loss, batch: Batch, rows: Rows, inputs: StepRows
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A micro-batch's part of the loss, its log-probs, and sums for the statistics."""
    plain = loss.name == "exact" and not loss.kl and not loss.entropy_bonus
    passes = learner.passes
    with passes.autocast():
        if plain and passes.scorer.fused:
            # Every token's weight is known: the head's gradient comes with its forward pass.
            coefficient = (rows.weight * rows.share)[rows.row_of]
            total, log_prob, entropy = passes.wrapped(batch, coefficient)
            return -total, log_prob, {"token_entropy": entropy.sum()}
        log_prob, entropy = passes.wrapped(batch)
    part, stats = loss_of(
        loss, log_prob, entropy, rows, tokens=inputs.tokens, mean_length=inputs.mean_length,
        max_new_tokens=learner.max_new_tokens,
    )  # fmt: skip
    return part, log_prob, stats


def sums_over_ranks(parts: Statistics, rows: int) -> dict[str, float]:
    """The sums of a step. Read back here only: the GPU is never waited for before."""
    sums = {"loss": 0.0, "tokens": 0.0, "rows": float(rows), **NO_GAP}
    for stats, real in parts:
        for name, value in stats.items():
            join = max if name.endswith("_max") else float.__add__
            sums[name] = join(sums.get(name, 0.0), float(value) * real)
    return distributed.total(distributed.gather(sums))
