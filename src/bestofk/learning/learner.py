"""The learner: a model and its optimiser. Log-probs of groups, and steps on them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from bestofk import metrics
from bestofk.agreement.layouts import in_float32, layout_gap, probed
from bestofk.agreement.log_prob_gaps import NO_GAP, gap_of_rows
from bestofk.agreement.one_model import check_causal
from bestofk.learning import distributed, gpu, prepare
from bestofk.learning.layout import BUILD, Batch, Row, micro_batches
from bestofk.learning.loss import (
    Rows,
    checked,
    loss_of,
    rows_of,
    same_size,
    same_temperature,
)
from bestofk.learning.scorer import CHUNK, Scorer
from bestofk.learning.settings import LogProbs, Loss, NonFinite, Optimizer, usual_rate
from bestofk.messages import unknown
from bestofk.precision import warn_where_bf16_is_slow
from bestofk.types import Group

T = TypeVar("T")
LAYOUTS = ("auto", "packed", "padded", "single")
PRECISIONS = ("fp32", "bf16")


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
    """What to sample from and to save, inside `gathered`; the model itself unless it is sharded."""
    steps: int
    """Optimiser steps taken."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: Optimizer | None = None,
        total_steps: int | None = None,
        stop_grad_norm: float = math.inf,
        max_new_tokens: int | None = None,
        temperature: float = 1.0,
        tokens_per_micro_batch: int | None = 16_384,
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
        for what, value, known in (
            ("layout", layout, LAYOUTS),
            ("precision", precision, PRECISIONS),
        ):
            if value not in known:
                raise unknown(what, value, known)
        if temperature <= 0.0:
            raise ValueError(f"the learner's temperature is above 0, got {temperature}")
        if precision == "bf16":
            warn_where_bf16_is_slow(model)
        self.model, self.steps = model, 0
        self.settings = optimizer = optimizer or Optimizer()
        if optimizer.learning_rate is None:
            weights = sum(each.numel() for each in model.parameters())
            rate = usual_rate(weights, adapters=hasattr(model, "disable_adapter"))
            self.settings = optimizer.changed(learning_rate=rate)
        self.total_steps, self.stop_grad_norm = total_steps, stop_grad_norm
        self.max_new_tokens = max_new_tokens
        self.settings.learning_rate_at(self.settings.warmup_steps, total_steps)
        self.temperature, self.precision = temperature, precision
        self.checkpointing = gradient_checkpointing
        prepare.switch_off_dropout(model)
        model.eval()
        check_causal(model)
        self.requested_layout, self.layout = layout, prepare.choose_layout(model, layout)
        self._probed = self.layout != "packed"
        fast = gpu.settings(model, precision, checkpointing=gradient_checkpointing)
        self.budget = tokens_per_micro_batch or fast.tokens
        self.reduced = 0  # the budget, once the memory was full
        if gradient_checkpointing:
            renamed = getattr(model, "activation_checkpointing_enable", None)  # transformers 5.23
            (renamed or model.gradient_checkpointing_enable)({"use_reentrant": False})
        scorer = Scorer(model, temperature, logits_at_once or fast.logits)
        scorer.fused = fast.fused and scorer.can_fuse and not sharded
        self._flat = fast.flat
        if fast.compiled if compiled is None else compiled:
            gpu.compile_layers(model)
        self.reference = prepare.reference_scorer(model, reference, scorer, self.layout)
        self.scorer: nn.Module = scorer
        self._scorer = scorer  # without the wrapper for many processes
        self.policy = distributed.hollow(model) if sharded else model
        if sharded:
            for each in filter(None, (scorer, self.reference)):
                distributed.share_out(each)
        self.optimizer: torch.optim.Optimizer = prepare.adamw(model, self.settings)
        if distributed.is_shared() and not sharded:
            self.scorer = DistributedDataParallel(scorer)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.no_grad()
    def log_probs(self, groups: Sequence[Group], *, reference: bool = False) -> LogProbs:
        """Token log-probs and entropies of every completion, without gradient.

        With `reference`, those of the reference policy (for `step(reference=)`).
        """
        same_size(groups)
        same_temperature(groups, self.temperature)
        self._probe(groups)
        rows = [(p, i) for p, group in enumerate(groups) for i in range(len(group.trajectories))]
        tokens = [[_EMPTY] * len(group.trajectories) for group in groups]
        entropies = [[_EMPTY] * len(group.trajectories) for group in groups]
        self.model.eval()

        def scored() -> list[tuple[Batch, Tensor, Tensor]]:
            result = []
            for chosen, real in self._cut(groups, rows):
                batch = self._built(groups, chosen)
                with self._autocast():
                    log_prob, entropy = scorer(batch)
                if real:
                    result.append((batch, log_prob, entropy))
            return result

        with self._as_reference() if reference else nullcontext(self.scorer) as scorer:
            result = self._in_parts_that_fit(scored)
        for batch, log_prob, entropy in result:
            pieces = zip(
                batch.rows,
                log_prob.cpu().split(batch.lengths),
                entropy.cpu().split(batch.lengths),
            )
            for (p, i), row, spread in pieces:
                tokens[p][i], entropies[p][i] = row.numpy(), spread.numpy()
        return LogProbs(tuple(map(tuple, tokens)), tuple(map(tuple, entropies)))

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
        weight, alive = checked(groups, weights, live, loss, old, reference)
        same_temperature(groups, self.temperature)
        self._probe(groups)
        share, whole = self._shares(groups, alive)
        wanted = alive if loss.kl or loss.entropy_bonus else alive & (weight != 0)
        rows = [(int(p), int(i)) for p, i in np.argwhere(wanted)]
        self.model.train(self.checkpointing)

        def accumulated() -> list[tuple[dict[str, Tensor], bool]]:
            seen = []
            cut = self._cut(groups, rows)
            for at, (chosen, real) in enumerate(cut):
                batch = self._built(groups, chosen)
                known = rows_of(batch, weight * real, share * real, old, reference, self.device)
                with distributed.accumulate(self.scorer, at == len(cut) - 1):
                    part, log_prob, stats = self._loss(loss, batch, known, whole)
                    part = part * real  # a filler only keeps the ranks in step
                    part.backward()
                stats |= {"loss": part.detach(), "tokens": torch.tensor(float(len(log_prob)))}
                drawn = [groups[p].trajectories[i] for p, i in batch.rows]
                stats |= gap_of_rows(drawn, log_prob.detach())
                seen.append((stats, real))
            return seen

        seen = self._in_parts_that_fit(accumulated)
        sums = {"loss": 0.0, "tokens": 0.0, "rows": float(len(rows)), **NO_GAP}
        for stats, real in seen:  # read back at the end only: the GPU is never waited for before
            for name, value in stats.items():
                join = max if name.endswith("_max") else float.__add__
                sums[name] = join(sums.get(name, 0.0), float(value) * real)
        self.model.eval()
        return self._update(sums, len(seen))

    def _in_parts_that_fit(self, work: Callable[[], T]) -> T:
        """Do the work; where the GPU's memory is full, once more in micro-batches of half the size.

        Several processes wait for each other in the middle of it, so there the error stands.

        Raises:
            torch.OutOfMemoryError: micro-batches of 512 tokens do not fit either.
        """
        while True:
            try:
                return work()
            except torch.OutOfMemoryError:
                self.optimizer.zero_grad(set_to_none=True)
                if distributed.is_shared() or self.budget <= gpu.LEAST:
                    raise
            # Outside of `except`, where nothing holds the tensors of the failed attempt any more.
            torch.cuda.empty_cache()
            self.budget = self.reduced = max(self.budget // 2, gpu.LEAST)
            warnings.warn(
                f"the GPU's memory was full: from here on micro-batches have {self.budget:,} "
                "tokens at most (model.advanced.tokens_per_micro_batch)",
                stacklevel=3,
            )

    def _loss(
        self, loss: Loss, batch: Batch, known: Rows, whole: dict[str, float]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """A micro-batch's part of the loss, its log-probs, and sums for the statistics."""
        plain = loss.name == "exact" and not loss.kl and not loss.entropy_bonus
        with self._autocast():
            if plain and self._scorer.fused:
                # Every token's weight is known: the head's gradient comes with its forward pass.
                coefficient = (known.weight * known.share)[known.row_of]
                total, log_prob, entropy = self.scorer(batch, coefficient)
                return -total, log_prob, {"token_entropy": entropy.sum()}
            log_prob, entropy = self.scorer(batch)
        part, stats = loss_of(
            loss, log_prob, entropy, known, max_new_tokens=self.max_new_tokens, **whole
        )
        return part, log_prob, stats

    def _probe(self, groups: Sequence[Group]) -> None:
        """At the first batch: are its log-probs the same packed and padded? Else pad from now on.

        Raises:
            ValueError: they are not, and layout "packed" was asked for.
        """
        if self._probed or not groups:
            return
        self._probed = True

        rows = probed(groups)

        def score(layout: str, exact: bool) -> Tensor:
            batch = BUILD[layout](groups, rows, self.device)
            with in_float32(self.model) if exact else self._autocast():
                return self.scorer(batch)[0]

        flat = "flat" if self._flat else "packed"
        reduced = self.precision == "bf16"
        usual = self._scorer.chunk
        self._scorer.chunk = min(usual, CHUNK)  # float32 takes more room
        with torch.compiler.set_stance("force_eager"):  # nothing is compiled for it
            gap, limit = layout_gap(score, flat, reduced=reduced) if rows else (0.0, 0.0)
        self._scorer.chunk = usual
        if any(distributed.gather(not gap <= limit)):  # NaN is no agreement
            prepare.report(self.model, gap, limit, layout=self.requested_layout)
            self.layout = "padded"

    def _update(self, sums: dict[str, float], batches: int) -> dict[str, float]:
        """Clip, check, move the weights; statistics over all ranks."""
        sums = distributed.total(distributed.gather(sums))
        lr = self.settings.learning_rate_at(self.steps, self.total_steps)
        norm = self._clip()
        limit = self.stop_grad_norm
        if not math.isfinite(sums["loss"]) or not math.isfinite(norm) or norm > limit:
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFinite(
                f"step {self.steps}: loss {sums['loss']}, gradient norm {norm} (limit {limit:g}); "
                "the weights are as before. A lower learning rate or a truncated log-ratio is the "
                "usual cure"
            )
        if not sums["tokens"]:
            # Nothing entered on any rank. One process has no gradient then, several have zeros,
            # on which momentum would go on: none it is.
            self.optimizer.zero_grad(set_to_none=True)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        tokens = max(sums["tokens"], 1.0)
        stats = {
            metrics.LOSS: sums["loss"],
            metrics.LEARNING_RATE: lr,
            metrics.GRAD_NORM: norm,
            metrics.TOKEN_ENTROPY: sums.get("token_entropy", 0.0) / tokens,
            metrics.TOKENS: sums["tokens"],
            metrics.ROWS: sums["rows"],
            metrics.MICRO_BATCHES: float(batches),
        }
        if sums["gap_tokens"]:
            stats[metrics.GAP_MEAN] = sums["gap"] / sums["gap_tokens"]
            stats[metrics.GAP_MAX] = sums["gap_max"]
        if "ratios" in sums:
            stats[metrics.CLIP_FRACTION] = sums["clipped"] / max(sums["ratios"], 1.0)
            stats[metrics.RATIO_MAX] = sums["ratio_max"]
        if "kl" in sums:
            stats[metrics.KL] = sums["kl"] / tokens
        return stats

    def gathered(self) -> AbstractContextManager[None]:
        """While inside, `policy` has all its weights. Every rank enters, since they are gathered;
        a sharded learner has them twice for that time."""
        if self.policy is self.model:
            return nullcontext()
        return distributed.filled(self.policy, self.scorer, self.model)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: trained weights, optimiser, steps, and a budget of tokens
        that full memory reduced. Safe to load with `torch.load(weights_only=True)`, and the same
        for any number of processes. Every rank calls it; with several, the first alone gets the
        tensors."""
        distributed.settle(self.scorer)
        keep = distributed.is_first()
        model, optimiser = distributed.taken(self.model, self.optimizer, keep=keep)
        state = {"model": model, "optimiser": optimiser}
        return state | {"steps": self.steps, "reduced": self.reduced}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The opposite of `state_dict`; a state of another model is an error."""
        distributed.settle(self.scorer)
        distributed.put(self.model, self.optimizer, state_dict["model"], state_dict["optimiser"])
        self.steps, self.reduced = int(state_dict["steps"]), int(state_dict.get("reduced", 0))
        self.budget = min(self.budget, self.reduced or self.budget)

    def _cut(self, groups: Sequence[Group], rows: Sequence[Row]) -> list[tuple[list[Row], bool]]:
        """Micro-batches, and whether each is real: ranks that have fewer fill up with others."""
        budget = self.budget
        if self.device.type == "cuda":
            budget = gpu.even_budget(groups, rows, budget, packed=self.layout == "packed")
        cut = micro_batches(groups, rows, budget=budget, layout=self.layout)
        count = distributed.most(len(cut))
        filler: list[tuple[list[Row], bool]] = [([(0, 0)], False)] * (count - len(cut))
        return filler + [(chosen, True) for chosen in cut]

    def _built(self, groups: Sequence[Group], chosen: Sequence[Row]) -> Batch:
        flat = self._flat and self.layout == "packed"
        return BUILD["flat" if flat else self.layout](groups, chosen, self.device)

    def _shares(
        self, groups: Sequence[Group], alive: np.ndarray
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Each row's share of the mean, and what the loss needs to know of the whole batch.

        Ranks average their gradients, so what one rank divides by is the mean over ranks.
        """
        lengths = np.array([[each.drawn for each in group.trajectories] for group in groups])
        counts = {
            "prompts": float(alive.any(axis=-1).sum()),
            "rows": float(alive.sum()),
            "tokens": float(lengths[alive].sum()),
        }
        mean = distributed.mean(distributed.gather(counts))
        live = np.maximum(alive.sum(axis=-1, keepdims=True), 1)
        share = np.where(alive, 1.0 / (max(mean["prompts"], 1e-9) * live), 0.0)
        tokens = max(mean["tokens"], 1e-9)
        return share, {"tokens": tokens, "mean_length": tokens / max(mean["rows"], 1e-9)}

    def _clip(self) -> float:
        """Scale the gradient down; its norm before, over all ranks."""
        limit = self.settings.max_grad_norm or math.inf
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if not parameters:
            return 0.0
        return float(distributed.full(nn.utils.clip_grad_norm_(parameters, limit)))

    def _autocast(self) -> torch.autocast:
        # Shards are gathered anew for each pass: casts that outlive it would undo the saving.
        return torch.autocast(
            self.device.type,
            dtype=torch.bfloat16,
            enabled=self.precision == "bf16",
            cache_enabled=self.policy is self.model,
        )

    def _as_reference(self) -> Any:
        if self.reference is not None:
            return nullcontext(self.reference)
        if hasattr(self.model, "disable_adapter"):
            return prepare.adapters_off(self.model, self.scorer)
        raise ValueError(
            "no reference policy: give Learner(reference=) a frozen copy, or train LoRA adapters"
        )


_EMPTY = np.zeros(0, dtype=np.float32)
