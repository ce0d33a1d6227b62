"""What a run is asked to do: frozen dataclasses, read from a TOML recipe, changed by dotted flags.

Every field has a default and its reason under it. Core functions never see these classes: the loop
hands them plain values.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Options = Mapping[str, Any]
"""Named options of a task or verifier: `--task.options.numbers 3` on the command line."""


@dataclass(frozen=True, kw_only=True)
class Model:
    path: str = "tiny-countdown"
    """A shipped tiny policy by name, a Hub id, a folder, or a GGUF file."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 computes under autocast; the weights the optimiser changes stay float32."""
    revision: str | None = None
    """Of a Hub model: a branch, tag or commit."""
    lora_rank: int = 0
    """0 trains every weight; above, LoRA adapters of that rank (peft)."""
    lora_alpha: float = 0.0
    """Scale of the adapters; 0 takes twice the rank."""
    lora_targets: tuple[str, ...] = ()
    """Modules by name; none named takes all linear layers but the head."""
    trust_remote_code: bool = False
    """Runs Python code that comes with the model. Only for code you have read."""
    gradient_checkpointing: bool = False
    """Recomputes activations in the backward pass: less memory, about a third more time."""
    device: str = "auto"
    """auto takes the GPU where there is one."""


@dataclass(frozen=True, kw_only=True)
class Task:
    name: str = "countdown"
    """`bestofk tasks` lists them."""
    options: Options = field(default_factory=dict)
    split: str = "train"
    verifier: str | None = None
    """Instead of the task's own: a name, or "package.module:function"."""
    verifier_options: Options = field(default_factory=dict)
    unscored_share: float = 0.01
    """Stop when more of the last thousand completions than this could not be scored."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    prompts_per_step: int = 16
    """P, over all processes."""
    samples_per_prompt: int = 32
    """n. More lowers the variance of every estimator; most objectives need more than k."""
    max_new_tokens: int = 64
    temperature: float = 1.0
    """The learner's log-probabilities use the same one."""
    top_p: float = 1.0
    """Below 1 the samples come from a truncated distribution: refused by the exact loss."""
    top_k: int = 0
    """0 is off."""
    stop: tuple[str, ...] = ()
    """A completion ends where its text first holds one of these."""
    batch_size: int = 2048
    """Sequences sampled at once; bounds memory, changes nothing else."""
    engine: Literal["transformers", "group", "vllm"] = "transformers"
    """transformers works with any model, on CPU too; vllm has a copy of the weights of its own."""
    engine_options: Options = field(default_factory=dict)
    """Of vLLM's engine: gpu_memory_utilization, max_model_len, max_num_seqs, …"""
    server: str | None = None
    """A vLLM server of this machine (http://127.0.0.1:8000) instead of an engine per process."""
    agreement: float | None = None
    """The run stops when a copy's log-probs are farther from the learner's, per token, after an
    update; 0.001 in fp32 and 0.2 in bf16 unless said."""
    refill: int = 0
    """Dynamic sampling: up to so many extra rounds of prompts in the place of no-signal groups."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    name: Literal["exact", "clipped"] = "exact"
    """exact: weights made from all siblings' ratios. clipped: on-policy weights, PPO's ratio."""
    normaliser: Literal["none", "grpo", "dapo", "dr-grpo"] = "none"
    """Of length. grpo (per completion) and dapo (per token) are biased; dr-grpo is a constant."""
    ratio: Literal["token", "sequence"] = "token"
    """Of the clipped loss; sequence is GSPO."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    """0.28 is DAPO's clip-higher."""
    kl: float = 0.0
    """Weight of the KL divergence to the starting model; above 0 keeps a second copy of it."""
    kl_estimator: Literal["k2", "k3"] = "k2"
    """k2's gradient is that of KL(policy, reference) on policy; k3 is GRPO's."""
    entropy_bonus: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OffPolicy:
    passes: int = 1
    """How often each batch of rollouts is gone through."""
    mini_batches: int = 1
    """Optimiser steps per pass, each on whole groups."""
    form: Literal["exact", "first-order", "own-ratio", "none"] | None = None
    """How siblings' ratios enter the weights: exact with the exact loss, none with the clipped."""
    truncate: float | None = None
    """The largest log-ratio of a completion; the trust region of the exact loss."""
    self_normalise: bool = False
    """Divide by the subsets' total weight: always finite, biased."""
    clamp: float = 1.0
    """Bound on |ratio - 1| of the first-order form."""
    correct_sampler: bool = False
    """Weigh by the learner's over the sampler's probability; the difference is logged anyway."""


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    learning_rate: float = 1e-4
    """Larger k wants a larger one: the weights' total size falls with k."""
    warmup_steps: int = 10
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm; 0 leaves it alone."""
    stop_grad_norm: float = 1e4
    """A larger gradient norm (before clipping) stops the run with the batch saved."""
    tokens_per_micro_batch: int = 16384
    """Tokens per forward and backward pass; bounds memory, changes nothing else."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    every: int = 50
    """Steps between evaluations on the validation split; the first before training, 0 for never."""
    split: str = "validation"
    prompts: int = 64
    samples_per_prompt: int = 32
    """n_eval: pass@k and max@k are estimated for k up to this."""
    ks: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    metric: str = "max@1"
    """Names the best checkpoint: max@k or pass@k with one of `ks`."""
    threshold: float = 1.0
    """A reward of at least this passes."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    dir: str = "runs/default"
    steps: int = 200
    seed: int = 0
    checkpoint_every: int = 25
    keep_last: int = 2
    keep_best: bool = True
    samples_megabytes: float = 64.0
    """Sampled completions are kept up to this size; the oldest steps go first."""
    trackers: tuple[str, ...] = ()
    """Of tensorboard, wandb, trackio; through accelerate."""
    fsdp: bool = False
    """Shard the weights over the processes (FSDP2) instead of copying them (DDP)."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything about a run."""

    objective: str = "max@8"
    """`bestofk objectives` lists them: max@8, pass@8, passk-training@8, grpo, max@8/60%/mean, …"""
    objective_options: Options = field(default_factory=dict)
    """threshold (reward ≥ threshold passes), weights of a mixture, beta, accuracy_threshold, …"""
    model: Model = field(default_factory=Model)
    task: Task = field(default_factory=Task)
    sampling: Sampling = field(default_factory=Sampling)
    loss: Loss = field(default_factory=Loss)
    off_policy: OffPolicy = field(default_factory=OffPolicy)
    optimiser: Optimiser = field(default_factory=Optimiser)
    evaluation: Evaluation = field(default_factory=Evaluation)
    run: RunSettings = field(default_factory=RunSettings)

    @property
    def off_policy_form(self) -> str:
        return self.off_policy.form or ("exact" if self.loss.name == "exact" else "none")

    @property
    def inner_steps(self) -> int:
        """Optimiser steps per batch of rollouts."""
        return self.off_policy.passes * self.off_policy.mini_batches


RESUMABLE = {
    "run.dir", "run.steps", "run.checkpoint_every", "run.keep_last", "run.keep_best",
    "run.samples_megabytes", "run.trackers", "sampling.batch_size", "task.unscored_share",
    "optimiser.stop_grad_norm", "model.device", "sampling.server", "sampling.agreement", "run.fsdp",
}  # fmt: skip
"""What may differ when a run is resumed: nothing that a step already taken depended on."""


def read(path: str | Path) -> Config:
    """The Config a recipe states.

    Raises:
        OSError: no such file. ValueError: not TOML, an unknown key (with a suggestion), a value of
            the wrong kind.
    """
    try:
        stated = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder; a recipe is its run.toml") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"no recipe {path}; recipes/ holds some, each a run.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    try:
        return from_dict(Config, stated)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


T = TypeVar("T")


def from_dict(kind: type[T], stated: Mapping[str, Any], where: str = "") -> T:
    """A dataclass from nested dicts, every key and kind checked.

    >>> from_dict(Config, {"sampling": {"samples_per_promt": 8}})
    Traceback (most recent call last):
    ValueError: unknown key 'sampling.samples_per_promt'; did you mean 'samples_per_prompt'? ...
    """
    hints = get_type_hints(kind)
    for key in stated:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"unknown key {where + key!r}; {hint}have {', '.join(hints)}")
    return kind(**{key: _value(hints[key], value, where + key) for key, value in stated.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} is a section, [{where}] with keys, got {value!r}")
        return from_dict(kind, value, f"{where}.")  # type: ignore[arg-type]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _value(next(part for part in arguments if part is not type(None)), value, where)
    if origin is Literal:
        if value not in arguments:
            near = difflib.get_close_matches(str(value), arguments, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{where} is one of {', '.join(arguments)}, got {value!r}; {hint}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} is a list, got {value!r}")
        return tuple(_value(arguments[0], item, where) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = Mapping if origin is not None else kind
    if not isinstance(value, plain) or (kind is int and isinstance(value, bool)):
        name = getattr(plain, "__name__", str(plain)).lower()
        raise ValueError(f"{where} is of kind {name}, got {value!r}")
    return dict(value) if isinstance(value, Mapping) else value


def leaves(config: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every field as (dotted name, value); option mappings entry by entry."""
    pairs = (
        config.items()
        if isinstance(config, Mapping)
        else ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config))
    )
    for name, value in pairs:
        if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
            yield from leaves(value, f"{where}{name}.")
        else:
            yield where + name, value


def differences(old: Config, new: Config) -> list[str]:
    """'name: old → new' for every field that may not change when a run is resumed."""
    before, after = dict(leaves(old)), dict(leaves(new))
    return [
        f"{name}: {before.get(name)!r} → {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if name not in RESUMABLE and before.get(name) != after.get(name)
    ]


def to_toml(config: Config) -> str:
    """The whole config as a recipe: `read` gives it back."""
    lines: dict[str, list[str]] = {"": []}
    for name, value in leaves(config):
        section, _, key = name.rpartition(".")
        if value is not None:
            lines.setdefault(section, []).append(f"{_key(key)} = {_toml(value)}")
    blocks = [
        "\n".join([f"[{'.'.join(map(_key, name.split('.')))}]", *rows] if name else rows)
        for name, rows in lines.items()
    ]
    return "\n\n".join(blocks) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML's basic strings; what JSON leaves bare (DEL, surrogates) is escaped as well.
        escaped = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
        return '"' + "".join(
            escaped.get(c, c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in value
        ) + '"'  # fmt: skip
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"a recipe holds numbers, strings, booleans and lists, got {value!r}")


def value_at(config: Any, name: str) -> Any:
    """The field of a dotted name."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


def replaced(config: T, name: str, value: Any) -> T:
    """The config with the field of a dotted name replaced.

    >>> replaced(Config(), "run.seed", 7).run.seed
    7
    """
    head, _, rest = name.partition(".")
    inside = replaced(getattr(config, head), rest, value) if rest else value
    return dataclasses.replace(config, **{head: inside})  # type: ignore[type-var]


OPTION_FIELDS = (
    "objective_options", "task.options", "task.verifier_options", "sampling.engine_options",
)  # fmt: skip
"""Open mappings: what may be in them is up to the task, the verifier and the objective."""


def literal(text: str) -> Any:
    """A flag's value as TOML reads it; what TOML cannot read is a string.

    >>> literal("3"), literal("true"), literal("compact"), literal("[1, 2]")
    (3, True, 'compact', [1, 2])
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
