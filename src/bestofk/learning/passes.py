"""Forward passes of a learner's policy and of its reference, by one process or by several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from bestofk.fp8 import E4M3
from bestofk.learning import attention, distributed
from bestofk.learning.scorer import Scorer
from bestofk.model_facts import base_model
from bestofk.precision import Precision


class Passes:
    """The scorer, wrapped for many processes, and the precision that it computes in."""

    policy: Any
    """A copy without weights where the model is sharded, else the model itself."""
    wrapped: nn.Module
    """The scorer inside DDP or FSDP; alone in one process."""

    def __init__(
        self, scorer: Scorer, precision: Precision, reference: Scorer | None, *, sharded: bool
    ) -> None:
        self.model: Any = scorer.model
        self.scorer, self.precision, self.reference = scorer, precision, reference
        self.policy = distributed.meta_copy(self.model) if sharded else self.model
        if sharded:
            for each in filter(None, (scorer, reference)):
                distributed.shard(each)
        self.wrapped = scorer
        if distributed.is_shared() and not sharded:
            # Every process made the same weights in FP8, which not all backends can send.
            own = [name for name, p in scorer.named_parameters() if p.dtype == E4M3]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(scorer, own)
            self.wrapped = DistributedDataParallel(scorer)

    def autocast(self) -> torch.autocast:
        # Shards are gathered anew for each pass: casts that outlive it would undo the saving.
        device = next(self.model.parameters()).device
        return self.precision.autocast(device.type, cached=self.policy is self.model)

    @contextmanager
    def scoring(self, *, reference: bool) -> Iterator[nn.Module]:
        """While inside, the module that scores: the policy's, or its reference's."""
        if not reference:
            yield self.wrapped
        elif self.reference is not None:
            yield self.reference
        elif hasattr(self.model, "disable_adapter"):
            with self.model.disable_adapter():
                yield self.wrapped
        else:
            raise ValueError(
                "no reference policy: give Learner(reference=) a frozen copy, or train LoRA "
                "adapters"
            )

    def gathered(self) -> AbstractContextManager[None]:
        """While inside, `policy` has all its weights. Every rank enters, since they are gathered;
        a sharded learner has them twice for that time."""
        if self.policy is self.model:
            return nullcontext()
        return distributed.with_weights(self.policy, self.wrapped, self.model)


def switch_off_dropout(model: nn.Module) -> None:
    """π_θ must be a function of its weights: the ratio of two passes would be noise otherwise."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        # Some modules keep the rate themselves, some read the config's in every pass.
        for owner in (module, getattr(module, "config", None)):
            for name, value in vars(owner).items() if owner is not None else ():
                if "drop" in name and isinstance(value, float):
                    setattr(owner, name, 0.0)


def reference_scorer(reference: PreTrainedModel, scorer: Scorer, layout: str) -> Scorer:
    """The frozen policy, laid out as the trained one."""
    if reference is scorer.model:
        raise ValueError("the reference is the trained model itself: give a frozen copy")
    switch_off_dropout(reference)
    reference.eval().requires_grad_(False)
    if layout == "packed":
        attention.install(base_model(reference))
    return Scorer(reference, scorer.temperature, scorer.chunk)
