"""Settings that few runs change: entries of the recipe's mappings, with their kinds and bounds.

[run.options]
keep_last = 5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bestofk.bounds import Count, Fraction, NaturalNumber, NonNegative, Positive
from bestofk.config import Config, Section, from_dict


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Section):
    """`[model.options]`."""

    revision: str | None = None
    """Branch, tag or commit of a Hub model."""
    trust_remote_code: bool = False
    """Runs Python code that comes with the model. Only for code you have read."""
    lora_alpha: NonNegative = 0.0
    """Scale of the adapters; 0 takes twice the rank."""
    lora_targets: tuple[str, ...] = ()
    """Modules that get adapters, by name; none named takes all linear layers but the head."""
    gradient_checkpointing: bool = False
    """Recomputes activations in the backward pass: less memory, about a third more time."""
    tokens_per_micro_batch: Count | None = None
    """Tokens per forward and backward pass; bounds memory, changes nothing else. By default as many
    as suit the model and the GPU's total memory; 16,384 on CPU."""
    fsdp: bool = False
    """Shards the weights over the processes (FSDP2) instead of copying them (DDP)."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Section):
    """`[sampling.engine_options]`."""

    max_rows: Count = 2048
    """Completions sampled at once; bounds memory, changes nothing else."""
    server: str | None = None
    """A vLLM server of this machine (http://127.0.0.1:8000) instead of an engine per process."""
    agreement: Positive | None = None
    """The run stops when the sampler's log-probs differ from the learner's by more than this per
    token on average, with any engine; by default 0.001 in fp32 and 0.1 in bf16."""
    vllm: Mapping[str, Any] = field(default_factory=dict)
    """Everything else, passed to vLLM: gpu_memory_utilization, max_model_len, max_num_seqs, …"""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Section):
    """`[run.options]`."""

    split: str = "train"
    """Split of the task to train on."""
    evaluate_start: bool = True
    """Evaluate before the first step too; without, the start has no figures in the report."""
    best_by: str | None = None
    """Metric that picks the best checkpoint: max@k or pass@k at an evaluated k. By default max@k at
    the largest evaluated k that does not exceed the objective's."""
    keep_last: Count = 2
    """Number of checkpoints to keep."""
    keep_best: bool = True
    """Keep the model of the best evaluation in best/."""
    samples_megabytes: Positive = 64.0
    """Sampled completions are kept up to this size; the oldest steps go first."""
    unscored_share: Fraction = 0.01
    """Stop when more of the last thousand completions than this could not be scored."""
    stop_grad_norm: Positive = 1e4
    """A larger gradient norm (before clipping) stops the run with the batch saved."""
    overlong_tokens: NaturalNumber = 0
    """Length of the zone below sampling.max_new_tokens where the reward falls linearly (DAPO's soft
    overlong punishment); 0 is no penalty. In training only."""
    overlong_penalty: Positive = 1.0
    """What a completion at the length limit loses."""
    pass_rates: str | None = None
    """A file of samples of the training split; only prompts whose pass rate there lies in
    pass_rate_range are trained on."""
    pass_rate_range: tuple[Fraction, Fraction] = (0.01, 0.99)
    """Lowest and highest pass rate to keep."""
    push_to_hub: str | None = None
    """owner/name: the final model is uploaded there."""
    hub_private: bool = True
    """Whether a repository made on the Hub is private."""


def model_options(config: Config) -> ModelOptions:
    """The entries of `[model.options]`, checked."""
    return from_dict(ModelOptions, config.model.options, "model.options.")


def engine_options(config: Config) -> EngineOptions:
    """The entries of `[sampling.engine_options]`, checked; with vLLM its own are open."""
    stated = dict(config.sampling.engine_options)
    known = {each.name for each in fields(EngineOptions)} - {"vllm"}
    if config.sampling.engine == "vllm":
        stated["vllm"] = {name: stated.pop(name) for name in list(stated) if name not in known}
    return from_dict(EngineOptions, stated, "sampling.engine_options.")


def run_options(config: Config) -> RunOptions:
    """The entries of `[run.options]`, checked."""
    return from_dict(RunOptions, config.run.options, "run.options.")
