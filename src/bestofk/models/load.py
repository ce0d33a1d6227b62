"""From a name to a model and its tokenizer, and back to a folder."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from bestofk.common import can_connect, did_you_mean
from bestofk.models.causal import check_causal, check_complete, check_kind

SHIPPED = ("tiny-countdown", "tiny-maze")
"""Starting checkpoints in the package, in the folder `checkpoints` beside this file."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Policy:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """As it was asked for; used in model cards."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters through peft. They have no dropout: π_θ must be a function."""

    rank: int = 0
    """0 trains the whole model."""
    alpha: float = 0.0
    """Scale of the adapters; 0 takes 2 × rank."""
    targets: tuple[str, ...] = ()
    """Modules by name; none takes all linear layers but the head."""


def cache_folder() -> Path:
    """Where converted models are kept: $BESTOFK_CACHE, or bestofk in the user's cache folder."""
    given = os.environ.get("BESTOFK_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else home / "bestofk"


def load(
    name: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    device: str = "cpu",
    lora: Lora | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Policy:
    """The policy of that name.

    Args:
        name: a shipped one ("tiny-countdown"), "smollm2" (after `bestofk model smollm2`), a folder,
            a .gguf file, or a Hugging Face id.
        dtype: of the weights; "float32" for training (bf16 is the learner's autocast).
        trust_remote_code: run Python code that comes with the model. Off unless asked.
    """
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; have {', '.join(DTYPES)}")
    config, tokenizer = describe_policy(
        name, trust_remote_code=trust_remote_code, revision=revision
    )
    place, options = _options(name, trust_remote_code, revision)
    check_kind(config, os.fspath(name), own_code=trust_remote_code)
    # Weights that can run code when they are read (pickles) are not read.
    if "gguf_file" not in options:
        options["use_safetensors"] = True
    with _no_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=DTYPES[dtype], output_loading_info=True, **options
        )
    model, result = loaded
    check_complete(result["missing_keys"], os.fspath(name))
    if "gguf_file" in options:
        model = plain(model)
    model = model.to(device).eval()
    check_causal(model, os.fspath(name))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if lora is not None and lora.rank:
        model = with_adapters(model, lora)
    return Policy(model.to(device).eval(), tokenizer, os.fspath(name))


def describe_policy(
    name: str | os.PathLike[str], *, trust_remote_code: bool = False, revision: str | None = None
) -> tuple[PretrainedConfig, Any]:
    """The config and the tokenizer of a policy; no weights are read."""
    place, options = _options(name, trust_remote_code, revision)
    return (
        AutoConfig.from_pretrained(place, **options),
        AutoTokenizer.from_pretrained(place, **options),
    )


def _options(
    name: str | os.PathLike[str], trust_remote_code: bool, revision: str | None
) -> tuple[str, dict[str, Any]]:
    place, options = find(name)
    options["trust_remote_code"] = trust_remote_code
    if revision is not None:
        options["revision"] = revision
    if not Path(place).exists():
        options |= hub_options(place, revision)
    return place, options


def hub_options(name: str, revision: str | None = None) -> dict[str, Any]:
    """Options for reading a Hub model: the copy on this machine where the Hub cannot be reached.

    Raises:
        OSError: No copy, no Hub. Said within seconds; the Hub's library would try for a minute.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if constants.HF_HUB_OFFLINE or can_connect(constants.ENDPOINT):
        return {}
    try:
        here = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError as error:
        raise ValueError(f"no model {name!r}: {error}") from None
    if isinstance(here, str):
        return {"local_files_only": True}
    raise OSError(
        f"model {name!r} is not a folder and not in the Hub's cache on this machine, and "
        f"{constants.ENDPOINT} cannot be reached: give a folder, or fetch it where there is a "
        f"connection (hf download {name}) and copy the cache; shipped are {', '.join(SHIPPED)}"
    )


def plain(model: Any) -> Any:
    """The same weights in a model that knows nothing of quantisation, and so can be saved."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    return fresh


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' progress bars, which would land in other people's output."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def find(name: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """What to hand to `from_pretrained` for a name: a place and options."""
    text = os.fspath(name)
    path = Path(text).expanduser()
    if text in SHIPPED:
        return str(Path(__file__).parent / "checkpoints" / text), {}
    if text == "smollm2":
        place = cache_folder() / "smollm2-135m-instruct"
        if not (place / "config.json").is_file():
            raise ValueError(
                "smollm2 is not here yet: `bestofk model smollm2` fetches and converts it"
            )
        return str(place), {}
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"no such file: {text}")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{text} is a folder without config.json: not a model")
        return str(path), {}
    if text.startswith("runs/"):
        raise ValueError(
            f"no folder {text!r} in {Path.cwd()}: make that run first "
            f"(recipes/supervised-start makes the starts that recipes name)"
        )
    looks_local = text.startswith((".", "/", "~")) or text.count("/") > 1
    if "/" not in text or looks_local:
        known = [*SHIPPED, "smollm2"]
        hint = did_you_mean(text, known)
        if looks_local or hint:
            raise ValueError(
                f"no model {text!r}: {hint}a model is a folder, a .gguf file, a Hugging Face id "
                f"such as org/name, or one of {', '.join(known)}"
            )
    return text, {}


def with_adapters(model: PreTrainedModel, lora: Lora) -> Any:
    """The model frozen, with trainable low-rank adapters."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=list(lora.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def save(policy: Policy, folder: str | os.PathLike[str]) -> Path:
    """Write model (safetensors; adapters merged) and tokenizer so that `from_pretrained`, vLLM and
    `load` read them. Atomic: the folder appears whole or not at all."""
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with _no_bars():
            _merged(policy.model).save_pretrained(draft)
        policy.tokenizer.save_pretrained(draft)
        draft.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _merged(model: Any) -> Any:
    """A peft model with its adapters folded in, on a copy; any other model as it is."""
    if not hasattr(model, "merge_and_unload"):
        return model
    return copy.deepcopy(model).merge_and_unload()
