"""The recipe of a run: frozen sections, read from a TOML file, changed by dotted flags.

Every field has a default, its bound and its reason. A section that a package uses is declared there
(`sampling.Sampling`, `learning.Loss`, `learning.Optimizer`); this module puts them together.
Settings that few runs change are in the table `advanced` of their section.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from bestofk.environments.limits import TurnLimits
from bestofk.learning.settings import Loss, Optimizer
from bestofk.sampling.sampler import Sampling
from bestofk.sections import (
    Count,
    Fraction,
    FromList,
    NaturalNumber,
    NonNegative,
    Positive,
    Section,
)

Tracker = Literal["tensorboard", "wandb", "trackio"]
Table = dict[str, Any]
"""Entries that somebody else declares: `[task.options]`, or `--task.options.numbers 3`."""


class ModelAdvanced(Section):
    revision: str | None = None
    """Branch, tag or commit of a Hub model."""
    trust_remote_code: bool = False
    """Runs Python code that comes with the model. Only for code you have read."""
    lora_alpha: NonNegative = 0.0
    """Scale of the adapters; 0 takes twice the rank."""
    lora_targets: Annotated[tuple[str, ...], FromList] = ()
    """Modules that get adapters, by name; none named takes all linear layers but the head."""
    lora_nf4: bool = False
    """The learner holds the frozen weights below the adapters in 4 bits (NF4, bitsandbytes); the
    engine samples from a copy in model.precision."""
    lora_fp8: bool = False
    """Computes the frozen linear layers in FP8, in sampler and learner. Needs model.precision =
    "bf16", and an Ada or Hopper GPU or later."""
    gradient_checkpointing: bool = False
    """Recomputes activations in the backward pass: less memory, about a third more time."""
    tokens_per_micro_batch: Count | None = None
    """Tokens per forward and backward pass; bounds memory, changes nothing else. By default as many
    as suit the model and the GPU's total memory; 16,384 on CPU. With one process it is halved where
    the memory is full."""
    chat_template: Table = {}
    """Values for variables of the chat template, for example {enable_thinking = false}. The saved
    model keeps them."""
    memory_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Part of the GPU's memory for the run, sampler and learner together; by default what other
    processes leave when the run starts. State it for runs that start beside each other."""
    fsdp: bool = False
    """Shards the weights over the processes (FSDP2) instead of copying them (DDP)."""


class ModelSection(Section):
    path: str = "tiny-countdown"
    """A shipped tiny policy by name, a Hub id, a folder, or a GGUF file."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 computes under autocast; the weights the optimizer changes stay float32."""
    device: str = "auto"
    """auto takes the GPU where there is one."""
    lora_rank: NaturalNumber = 0
    """0 trains every weight; above 0, LoRA adapters of that rank (peft)."""
    advanced: ModelAdvanced = ModelAdvanced()


class TaskAdvanced(Section):
    unscored_share: Fraction = 0.01
    """Stop when more of the last thousand completions than this could not be scored."""
    overlong_tokens: NaturalNumber = 0
    """Length of the zone below sampling.max_new_tokens where the reward falls linearly (DAPO's soft
    overlong punishment); 0 is no penalty. In training only."""
    overlong_penalty: Positive = 1.0
    """What a completion at the length limit loses."""
    pass_rates: str | None = None
    """A file of samples of the training split; only prompts whose pass rate there lies in
    pass_rate_range are trained on."""
    pass_rate_range: Annotated[tuple[Fraction, Fraction], FromList] = (0.01, 0.99)
    """Lowest and highest pass rate to keep."""


class TaskSection(Section):
    name: str = "countdown"
    """`bestofk tasks` lists them."""
    split: str = "train"
    """Split of the task to train on."""
    options: Table = {}
    """Options of the task: `bestofk tasks show NAME`."""
    verifier: str | None = None
    """Replaces the task's own verifier: a name, "package.module:function" or "file.py:function"."""
    verifier_options: Table = {}
    """Options of the verifier."""
    scorer: str | None = None
    """A verifier whose reward is the score that select@k chooses by; task.verifier pays. Not needed
    where the verifier gives scores itself."""
    scorer_options: Table = {}
    """Options of the scorer."""
    held_out: str | None = None
    """A verifier that neither pays nor chooses: its mean is logged among the parts of the reward,
    to see whether training pleases the one that pays alone."""
    held_out_options: Table = {}
    """Options of the held-out verifier."""
    environment: str | None = None
    """Answers the model's messages, with tools or text, for several turns: "file.py:Class",
    "package.module:Class", or python or repair."""
    limits: TurnLimits = TurnLimits()
    advanced: TaskAdvanced = TaskAdvanced()


class SamplingAdvanced(Section):
    max_rows: Count = 2048
    """Completions sampled at once; bounds memory, changes nothing else."""
    agreement: Positive | None = None
    """The run stops when the sampler's log-probs differ from the learner's by more than this per
    token on average, with any engine; by default 0.001 in fp32 and 0.1 in bf16."""


class SamplingSection(Sampling):
    prompts_per_step: Count = 16
    """P, the number of prompts a step over all processes."""
    refill: NaturalNumber = 0
    """Dynamic sampling: up to this many extra rounds replace groups without signal."""
    engine: Literal["auto", "group", "transformers", "vllm"] = "auto"
    """group computes each prompt once on a CUDA GPU; transformers runs any model, also on CPU; vllm
    draws from the server; auto takes group on CUDA, else transformers."""
    server: str | None = None
    """A vLLM server of this machine, as http://127.0.0.1:8000."""
    advanced: SamplingAdvanced = SamplingAdvanced()


class OffPolicySection(Section):
    passes: Count = 1
    """Passes over each batch of rollouts. A second pass over the same samples is biased."""
    mini_batches: Count = 1
    """Optimizer steps per pass, each on whole groups."""
    trust_region: Annotated[tuple[NonNegative, NonNegative], FromList] | None = None
    """(low, high): a sample's weight becomes 0 where its sequence log-ratio has left [-low, high]
    in the direction the weight pushes. Biased where something is masked."""
    ess_floor: Fraction = 0.5
    """Inner steps on a batch end when the effective share of its samples falls below this;
    0 never ends them."""
    ahead: NaturalNumber = 0
    """Batch t is drawn with the weights after step t - 1 - ahead, during the optimizer's warm-up
    with those after step t - 1. Above 0, weights are made from the ratios to the log-probs recorded
    when the batch was drawn."""
    correct_sampler: bool = False
    """Weight samples by the learner's probability over the sampler's. The gap is always logged."""

    @property
    def inner_steps(self) -> int:
        """Optimizer steps per batch of rollouts."""
        return self.passes * self.mini_batches

    def drawn_after(self, step: int, warmup_steps: int) -> int:
        """The step after which the batch of a step is drawn: fixed by its number alone.

        >>> [OffPolicySection(ahead=2).drawn_after(step, 2) for step in range(1, 8)]
        [0, 1, 2, 2, 2, 3, 4]
        """
        warmup = -(-warmup_steps // self.inner_steps)
        return max(min(step - 1, warmup), step - 1 - self.ahead)


class EvaluationSection(Section):
    every: NaturalNumber = 50
    """Steps between evaluations, the first one before training; 0 is never."""
    at_start: bool = True
    """Evaluate before the first step too; without, the start has no figures in the report."""
    split: str = "validation"
    """Split of the task to evaluate on."""
    prompts: Count = 64
    """Number of prompts evaluated."""
    samples_per_prompt: Count = 32
    """n_eval: pass@k and max@k are estimated for every power of two up to it."""
    threshold: float | None = None
    """A reward of at least this passes. By default 1; where rewards exceed 1, pass@k is left out
    unless this is set."""
    sets: Table = {}
    """Further sets to evaluate on, by name: {aime = "aime.jsonl"}, a file with the columns of the
    run's own data, or {maze = "maze"}, a task."""
    metrics: Annotated[tuple[str, ...], FromList] = ()
    """Further metrics: pass^k, maj@k, maj@k:weighted, ... (names of `bestofk eval --metric`). The
    objective's own is always there."""
    price: NonNegative | None = None
    """What one draw of retry@k costs in reward (with :tokens, one token). By default the
    objective's own price."""
    best_by: str | None = None
    """Metric that picks the best checkpoint, at an evaluated k. By default the objective's own (or
    max@k) at the largest that does not exceed the objective's."""

    @property
    def ks(self) -> tuple[int, ...]:
        """1, 2, 4, … up to n_eval, and n_eval itself."""
        powers = (2**i for i in range(self.samples_per_prompt.bit_length()))
        return tuple(dict.fromkeys([*powers, self.samples_per_prompt]))


class RunAdvanced(Section):
    keep_last: Count = 2
    """Number of checkpoints to keep."""
    keep_best: bool = True
    """Keep the model of the best evaluation in best/."""
    samples_megabytes: Positive = 64.0
    """Sampled completions are kept up to this size; the oldest steps go first."""
    stop_grad_norm: Positive = 1e4
    """A larger gradient norm (before clipping) stops the run with the batch saved."""


class RunSection(Section):
    dir: Annotated[str, Field(min_length=1)] = "runs/default"
    """Folder of the run: config, metrics, samples, checkpoints, final model."""
    steps: Count = 200
    """Batches of rollouts."""
    seed: NaturalNumber = 0
    """Fixes every random draw of the run."""
    checkpoint_every: Count = 25
    """Steps between checkpoints."""
    trackers: Annotated[tuple[Tracker, ...], FromList] = ()
    """Any of tensorboard, wandb, trackio."""
    advanced: RunAdvanced = RunAdvanced()


class Config(Section):
    """Everything about a run.

    >>> Config(sampling={"samples_per_promt": 8})
    Traceback (most recent call last):
    ValueError: unknown key 'sampling.samples_per_promt'; did you mean 'samples_per_prompt'? ...
    """

    objective: str = "max@1+4+16"
    """What to train for: max@8, pass@8, max@1+4+16, passk-training@8, grpo, max@8/60%/mean, …;
    `bestofk objectives` lists them."""
    objective_options: Table = {}
    """threshold (reward ≥ threshold passes), weights of a mixture, off_policy, truncate,
    self_normalise, clamp, beta, accuracy_threshold, …"""
    model: ModelSection = ModelSection()
    task: TaskSection = TaskSection()
    sampling: SamplingSection = SamplingSection()
    loss: Loss = Loss()
    off_policy: OffPolicySection = OffPolicySection()
    optimizer: Optimizer = Optimizer()
    evaluation: EvaluationSection = EvaluationSection()
    run: RunSection = RunSection()


RESUMABLE = {
    "run.dir", "run.steps", "run.checkpoint_every", "run.trackers", "run.advanced.keep_last",
    "run.advanced.keep_best", "run.advanced.samples_megabytes", "run.advanced.stop_grad_norm",
    "task.advanced.unscored_share",
    "model.device", "model.advanced.fsdp", "model.advanced.memory_share", "sampling.server",
    "sampling.advanced.max_rows", "sampling.advanced.agreement",
}  # fmt: skip
"""Settings that did not affect any completed step, so that a resumed run may change them; those of
evaluations are others."""


def read(path: str | Path) -> Config:
    """The Config a recipe states.

    Raises:
        OSError: no such file. ValueError: not TOML, an unknown key (with a suggestion), a value of
            the wrong kind or out of bounds.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder; a recipe is its run.toml") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"no recipe {path}; recipes/ holds some, each a run.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        rows = f"; rows are named by --task.name dataset --task.options.train {path}"
        rows = "" if Path(path).suffix == ".toml" else rows
        raise ValueError(f"{path} is not TOML: {error}{rows}") from None
    try:
        return in_folder(Config(**tables), Path(path).parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def in_folder(config: Config, folder: Path) -> Config:
    """The config of a run that was moved to a folder: rows given in Python are in its data/."""
    for split, rows in config.task.options.items():
        here = folder / "data" / f"{split}.jsonl"
        if Path(str(rows)).parts[-2:] == here.parts[-2:] and not Path(rows).exists():
            config = merged(config, {f"task.options.{split}": str(here)})
    return config


def to_toml(config: Config) -> str:
    """The whole config as a recipe: `read` gives it back. A field that is None is left out."""
    import tomli_w

    return tomli_w.dumps(_without_none(config.model_dump()))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def leaves(section: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted name; tables entry by entry."""
    for name, value in section.items() if isinstance(section, Mapping) else section:
        if isinstance(value, Section | Mapping):
            yield from leaves(value, f"{where}{name}.")
        else:
            yield where + name, value


def differences(old: Config, new: Config) -> list[str]:
    """'name: old → new' for every field that may not change when a run is resumed."""
    before, after = dict(leaves(old)), dict(leaves(new))
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    free = RESUMABLE | {name for name in names if name.startswith("evaluation.")}
    if old.task.advanced.pass_rates:
        free -= {"evaluation.threshold"}  # it decided which prompts are trained on
    return [f"{name}: {before.get(name)!r} → {after.get(name)!r}" for name in sorted(names - free)]


def merged(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with the values that nested tables or dotted names state.

    >>> merged(Config(), {"run": {"seed": 7}, "run.steps": 3}).run.seed
    7
    """

    def join(old: Any, new: Any) -> Any:
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            return new
        return {**old, **{key: join(old.get(key), value) for key, value in new.items()}}

    tables = config.model_dump(exclude_unset=True)  # the rest stays open: see training.resolve
    for name, value in changes.items():
        for key in reversed(name.split(".")):
            value = {key: value}
        tables = join(tables, value)
    return Config(**tables)
