"""The recipe of a run: frozen sections, read from a TOML file, changed by dotted flags.

Every field has a default, its bound and its reason. A section that a package uses is declared there
(`sampling.Sampling`, `learning.Loss`, `learning.Optimisation`); this module puts them together.
Rare settings are entries of the mappings `model.options`, `sampling.engine_options` and
`run.options`, declared and checked in `rare_settings.py`.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bestofk.bounds import Count, Fraction, NaturalNumber, NonNegative, check_bounds
from bestofk.common import did_you_mean, unknown
from bestofk.learning.settings import Loss, Optimisation
from bestofk.moved_keys import with_moved_keys
from bestofk.sampling.sampler import Sampling

Options = Mapping[str, Any]
"""Named options: `[task.options]` in a recipe, `--task.options.numbers 3` on the command line."""


class Section:
    """A part of the recipe whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class ModelSection(Section):
    path: str = "tiny-countdown"
    """A shipped tiny policy by name, a Hub id, a folder, or a GGUF file."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 computes under autocast; the weights the optimiser changes stay float32."""
    device: str = "auto"
    """auto takes the GPU where there is one."""
    lora_rank: NaturalNumber = 0
    """0 trains every weight; above 0, LoRA adapters of that rank (peft)."""
    options: Options = field(default_factory=dict)
    """Rare settings: revision, trust_remote_code, lora_alpha, lora_targets,
    gradient_checkpointing, tokens_per_micro_batch, fsdp."""


@dataclass(frozen=True, kw_only=True)
class TaskSection(Section):
    name: str = "countdown"
    """`bestofk tasks` lists them."""
    options: Options = field(default_factory=dict)
    """Options of the task: `bestofk tasks show NAME`."""
    verifier: str | None = None
    """Replaces the task's own verifier: a name, "package.module:function" or "file.py:function"."""
    verifier_options: Options = field(default_factory=dict)
    """Options of the verifier."""


@dataclass(frozen=True, kw_only=True)
class SamplingSection(Sampling):
    prompts_per_step: Count = 16
    """P, the number of prompts a step over all processes."""
    refill: NaturalNumber = 0
    """Dynamic sampling: up to this many extra rounds replace groups without signal."""
    engine: Literal["auto", "group", "transformers", "vllm"] = "auto"
    """group computes each prompt once on a CUDA GPU; transformers runs any model, also on CPU; vllm
    holds its own copy of the weights; auto takes group on CUDA, else transformers."""
    engine_options: Options = field(default_factory=dict)
    """Rare settings: max_rows, agreement; server and vLLM's own (max_model_len, …)."""


@dataclass(frozen=True, kw_only=True)
class OffPolicySection(Section):
    passes: Count = 1
    """Passes over each batch of rollouts. A second pass over the same samples is biased."""
    mini_batches: Count = 1
    """Optimiser steps per pass, each on whole groups."""
    trust_region: tuple[NonNegative, NonNegative] | None = None
    """(low, high): a sample's weight becomes 0 where its sequence log-ratio has left [-low, high]
    in the direction the weight pushes. Biased where something is masked."""
    ess_floor: Fraction = 0.5
    """Inner steps on a batch end when the effective share of its samples, exp(-2kD), falls below
    this; 0 never ends them."""
    correct_sampler: bool = False
    """Weight samples by the learner's probability over the sampler's. The gap is always logged."""

    @property
    def inner_steps(self) -> int:
        """Optimiser steps per batch of rollouts."""
        return self.passes * self.mini_batches


@dataclass(frozen=True, kw_only=True)
class EvaluationSection(Section):
    every: NaturalNumber = 50
    """Steps between evaluations, the first one before training; 0 is never."""
    split: str = "validation"
    """Split of the task to evaluate on."""
    prompts: Count = 64
    """Number of prompts evaluated."""
    samples_per_prompt: Count = 32
    """n_eval: pass@k and max@k are estimated for every power of two up to it."""
    threshold: float | None = None
    """A reward of at least this passes. By default 1; where rewards exceed 1, pass@k is left out
    unless this is set."""

    @property
    def ks(self) -> tuple[int, ...]:
        """1, 2, 4, … up to n_eval, and n_eval itself."""
        powers = (2**i for i in range(self.samples_per_prompt.bit_length()))
        return tuple(dict.fromkeys([*powers, self.samples_per_prompt]))


@dataclass(frozen=True, kw_only=True)
class RunSection(Section):
    dir: str = "runs/default"
    """Folder of the run: config, metrics, samples, checkpoints, final model."""
    steps: Count = 200
    """Batches of rollouts."""
    seed: NaturalNumber = 0
    """Fixes every random draw of the run."""
    checkpoint_every: Count = 25
    """Steps between checkpoints."""
    trackers: tuple[str, ...] = ()
    """Any of tensorboard, wandb, trackio."""
    options: Options = field(default_factory=dict)
    """Rare settings: split, evaluate_start, best_by, keep_last, keep_best, samples_megabytes,
    unscored_share, stop_grad_norm, overlong_tokens, overlong_penalty, pass_rates, pass_rate_range,
    push_to_hub, hub_private."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything about a run."""

    objective: str = "max@8"
    """What to train for: max@8, pass@8, passk-training@8, grpo, max@8/60%/mean, …; `bestofk
    objectives` lists them."""
    objective_options: Options = field(default_factory=dict)
    """threshold (reward ≥ threshold passes), weights of a mixture, off_policy, truncate,
    self_normalise, clamp, beta, accuracy_threshold, …"""
    model: ModelSection = field(default_factory=ModelSection)
    task: TaskSection = field(default_factory=TaskSection)
    sampling: SamplingSection = field(default_factory=SamplingSection)
    loss: Loss = field(default_factory=Loss)
    off_policy: OffPolicySection = field(default_factory=OffPolicySection)
    optimizer: Optimisation = field(default_factory=Optimisation)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    run: RunSection = field(default_factory=RunSection)


RESUMABLE = {
    "run.dir", "run.steps", "run.checkpoint_every", "run.trackers", "run.options.keep_last",
    "run.options.keep_best", "run.options.samples_megabytes", "run.options.unscored_share",
    "run.options.stop_grad_norm", "run.options.push_to_hub", "run.options.hub_private",
    "model.device", "model.options.fsdp",
    "sampling.engine_options.max_rows", "sampling.engine_options.server",
    "sampling.engine_options.agreement",
}  # fmt: skip
"""Settings that did not affect any completed step, so that a resumed run may change them."""

OPTION_FIELDS = (
    "objective_options", "model.options", "task.options", "task.verifier_options",
    "sampling.engine_options", "run.options",
)  # fmt: skip
"""The mappings: entries are given as `--task.options.numbers 3`."""


def read(path: str | Path) -> Config:
    """The Config a recipe states.

    Raises:
        OSError: no such file. ValueError: not TOML, an unknown key (with a suggestion), a value of
            the wrong kind or out of bounds.
    """
    try:
        stated = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder; a recipe is its run.toml") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"no recipe {path}; recipes/ holds some, each a run.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    try:
        return from_dict(Config, stated)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_own_config(folder: Path) -> Config:
    """The config in a run's folder. Keys of earlier versions are expected there: no warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return read(folder / "config.toml")


T = TypeVar("T")


def from_dict(kind: type[T], stated: Mapping[str, Any], where: str = "") -> T:
    """A dataclass from nested dicts, every key, kind and bound checked.

    Keys of earlier versions are accepted with a `FutureWarning` that names the new place.

    >>> from_dict(Config, {"sampling": {"samples_per_promt": 8}})
    Traceback (most recent call last):
    ValueError: unknown key 'sampling.samples_per_promt'; did you mean 'samples_per_prompt'? ...
    """
    if kind is Config:
        stated = with_moved_keys(stated)
    hints = get_type_hints(kind, include_extras=True)
    for key in stated:
        if key not in hints:
            error = unknown("key", key, hints)
            raise ValueError(str(error).replace(repr(key), repr(where + key), 1))
    values = {key: _value(hints[key], value, where + key) for key, value in stated.items()}
    try:
        return kind(**values)
    except ValueError as error:
        rule = str(error)
        is_of_field = rule.partition(" ")[0] in hints
        raise ValueError(
            where + rule if is_of_field or not where else f"{where[:-1]}: {rule}"
        ) from None


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} is a section, [{where}] with keys, got {value!r}")
        return from_dict(kind, value, f"{where}.")  # type: ignore[arg-type]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _value(arguments[0], value, where)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _value(next(part for part in arguments if part is not type(None)), value, where)
    if origin is Literal:
        if value not in arguments:
            guess = did_you_mean(value, arguments).rstrip()
            message = f"{where} is one of {', '.join(arguments)}, got {value!r}"
            raise ValueError(f"{message}; {guess}" if guess else message)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} is a list, got {value!r}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise ValueError(f"{where} is a list of {len(arguments)} numbers, got {value!r}")
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
    import tomli_w

    return tomli_w.dumps(_without_none(dataclasses.asdict(config)))


def _without_none(value: Any) -> Any:
    """TOML has no null: a field that is None is left out, and reads as its default, None."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value


def replaced(config: T, name: str, value: Any) -> T:
    """The config with the field, or the entry of a mapping, of a dotted name replaced.

    >>> replaced(Config(), "run.seed", 7).run.seed
    7
    """
    head, _, rest = name.partition(".")
    if isinstance(config, Mapping):
        return {**config, name: value}  # type: ignore[return-value]
    inside = replaced(getattr(config, head), rest, value) if rest else value
    return dataclasses.replace(config, **{head: inside})  # type: ignore[type-var]


def merged(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with the values that a recipe's nested tables state.

    >>> merged(Config(), {"run": {"seed": 7}}).run.seed
    7
    """

    def join(old: Any, new: Any) -> Any:
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            return new
        return {**old, **{key: join(old.get(key), value) for key, value in new.items()}}

    return from_dict(Config, join(_without_none(dataclasses.asdict(config)), changes))


def literal(text: str) -> Any:
    """A flag's value as TOML reads it, or a JSON object; what neither can read is a string.

    >>> literal("3"), literal("true"), literal("compact"), literal("[1, 2]")
    (3, True, 'compact', [1, 2])
    >>> literal("{threads = 1}"), literal('{"threads": 1}')
    ({'threads': 1}, {'threads': 1})
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return json.loads(text) if text.startswith("{") else text
    except json.JSONDecodeError:
        return text
