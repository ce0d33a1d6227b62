"""From a name to a model and its tokenizer, and back to a folder."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from bestofk.agreement.one_model import check_causal
from bestofk.fp8 import E4M3, UNIT, Fp8Linear
from bestofk.hub import SHIPPED, hub_options
from bestofk.messages import did_you_mean, one_of, unknown
from bestofk.model_facts import base_model, decoder_layers, merged
from bestofk.models.causal import (
    check_complete,
    check_finite,
    check_kind,
    check_safetensors,
    check_vocabulary,
)
from bestofk.storage import cache_folder

SAME_WEIGHTS = 0.2
"""Two copies of one matrix in 4 and 8 bits differ by less than this; two matrices by 1.4."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Policy:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    dtype: torch.dtype | None = None
    """Of the weights in its files, which a saved model has again; None is that of the model."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters through peft. They have no dropout: π_θ must be a function."""

    rank: int
    alpha: float = 0.0
    """Scale of the adapters; 0 takes 2 × rank."""
    targets: tuple[str, ...] = ()
    """Modules by name; none takes all linear layers but the head."""
    nf4: bool = False
    """The frozen linear layers below them in 4 bits (NF4 of bitsandbytes)."""
    fp8: bool = False
    """The frozen linear layers of the decoder in FP8, as `bestofk.fp8` has them."""
    seed: int = 0
    """Of the adapters' start."""


def load(
    name: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    device: str = "cpu",
    lora: Lora | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    chat_template: Mapping[str, Any] | None = None,
) -> Policy:
    """The policy of that name.

    Args:
        name: a shipped one ("tiny-countdown"), "smollm2" (after `bestofk model smollm2`), a folder,
            a .gguf file, or a Hugging Face id.
        dtype: of the weights; "float32" for those that are trained (bf16 is the learner's
            autocast). Adapters are float32 whatever the weights below them.
        trust_remote_code: run Python code that comes with the model. Off unless asked.
        chat_template: values for variables of the chat template ({"enable_thinking": False}).
    """
    one_of("dtype", dtype, DTYPES)
    how: Any = {"trust_remote_code": trust_remote_code, "revision": revision}
    place, options = loading_options(name, **how)
    config = AutoConfig.from_pretrained(place, **options)
    tokenizer = load_tokenizer(name, chat_template=chat_template, **how)
    check_kind(config, os.fspath(name), own_code=trust_remote_code)
    # Weights that can run code when they are read (pickles) are not read.
    if "gguf_file" not in options:
        check_safetensors(Path(place), os.fspath(name))
        options["use_safetensors"] = True
    packed = lora is not None and lora.nf4
    if packed:
        options |= _four_bits(os.fspath(name), options, DTYPES[dtype], device)
    with _no_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=DTYPES[dtype], output_loading_info=True, **options
        )
    model, result = loaded
    for module in model.modules() if packed else ():
        # Else bitsandbytes reorders them at the first pass on CPUs with AVX512-BF16.
        module.support_avx512bf16_for_cpu = False
    check_complete(result["missing_keys"], os.fspath(name))
    check_finite(model, os.fspath(name))
    check_vocabulary(tokenizer, model, os.fspath(name))
    if "gguf_file" in options:
        model = plain(model)
    model = (model if packed else model.to(device)).eval()
    check_causal(model, os.fspath(name))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if lora is not None:
        model = with_adapters(model, lora)
    own = getattr(config.get_text_config(), "dtype", None)
    stored = own if own in DTYPES.values() and "gguf_file" not in options else model.dtype
    return Policy(model.eval(), tokenizer, stored)


def _four_bits(
    name: str, options: Mapping[str, Any], dtype: torch.dtype, device: str
) -> dict[str, Any]:
    """Options of `from_pretrained` for weights in 4 bits, on the device from the beginning."""
    from transformers import BitsAndBytesConfig

    if "gguf_file" in options:
        raise ValueError(
            f"{name} is packed in its own way, which is written out when it is read: save it as a "
            "folder first (bestofk.models.save), then take that in 4 bits"
        )
    if find_spec("bitsandbytes") is None:
        raise ValueError("weights in 4 bits need bitsandbytes: pip install 'bestofk[nf4]'")
    kind = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=True,
    )
    return {"quantization_config": kind, "device_map": {"": device}}


def load_tokenizer(
    name: str | os.PathLike[str],
    *,
    trust_remote_code: bool = False,
    revision: str | None = None,
    chat_template: Mapping[str, Any] | None = None,
) -> Any:
    """The tokenizer of a policy; no weights are read."""
    place, options = loading_options(name, trust_remote_code, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
    except (OSError, ValueError, TypeError) as error:
        names = ("tokenizer*", "vocab*", "merges.txt", "spiece.model", "*.tiktoken", "tekken.json")
        has_one = any(file for name in names for file in Path(place).glob(name))
        if "gguf_file" in options or not Path(place).is_dir() or has_one:
            raise
        raise ValueError(
            f"{os.fspath(name)} has no tokenizer: copy tokenizer.json and tokenizer_config.json of "
            "the model it was made from into the folder"
        ) from error
    if chat_template:
        with_template_values(tokenizer, chat_template, os.fspath(name))
    return tokenizer


def with_template_values(tokenizer: Any, values: Mapping[str, Any], name: str) -> None:
    """Give variables of the tokenizer's chat template these values wherever it is used.

    They are set at the head of the template, so that the saved model has them too; whoever renders
    it with a value of their own gets that.
    """
    from jinja2 import Environment, meta

    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        raise ValueError(
            f"model.advanced.chat_template sets {', '.join(values)}, and the tokenizer of {name} "
            "has no chat template: leave it out"
        )
    tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    used = meta.find_undeclared_variables(tree)
    for key in values.keys() - used:
        raise unknown(f"variable of {name}'s chat template", key, sorted(used))
    head = "".join(
        f"{{%- if {key} is not defined %}}{{%- set {key} = {json.dumps(value)} %}}{{%- endif -%}}\n"
        for key, value in values.items()
    )
    tokenizer.chat_template = head + template


def loading_options(
    name: str | os.PathLike[str], trust_remote_code: bool, revision: str | None
) -> tuple[str, dict[str, Any]]:
    """Where a model is, and what transformers' `from_pretrained` needs to read it there."""
    place, options = find(name)
    options["trust_remote_code"] = trust_remote_code
    if revision is not None:
        options["revision"] = revision
    if not Path(place).exists():
        options |= hub_options(place, revision)
    return place, options


def plain(model: Any) -> Any:
    """The same weights in a model that knows nothing of quantisation, and so can be saved."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    weights = model.state_dict()
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if _stored_twice(head, embedding):
        # Quantised files write a tied embedding twice; the head's copy is the finer one.
        config.get_text_config().tie_word_embeddings = config.tie_word_embeddings = True
        names = {id(module): name for name, module in model.named_modules()}
        weights[f"{names[id(embedding)]}.weight"] = head.weight
    fresh = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    fresh.load_state_dict(weights)
    fresh.generation_config = model.generation_config
    return fresh


def _stored_twice(head: Any, embedding: Any) -> bool:
    """Whether a head of its own holds the embedding, up to what two quantisations differ by."""
    if head is None or head.weight is embedding.weight or head.bias is not None:
        return False
    a, b = head.weight.detach().float(), embedding.weight.detach().float()
    return a.shape == b.shape and float((a - b).norm() / b.norm()) < SAME_WEIGHTS


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
            way = f"it is a run: take {text}/final" if (path / "config.toml").is_file() else ""
            raise ValueError(f"{text} is a folder without config.json: {way or 'not a model'}")
        return str(path), {}
    if text.startswith("runs/"):
        raise ValueError(
            f"no folder {text!r} in {Path.cwd()}: make that run first "
            f"(recipes/supervised-start makes the starts that recipes name)"
        )
    looks_local = text.startswith((".", "/", "~")) or text.count("/") > 1
    if "/" not in text or looks_local:
        names = [*SHIPPED, "smollm2"]
        hint = did_you_mean(text, names)
        if looks_local or hint:
            raise ValueError(
                f"no model {text!r}: {hint}a model is a folder, a .gguf file, a Hugging Face id "
                f"such as org/name, or one of {', '.join(names)}"
            )
    return text, {}


def with_adapters(model: PreTrainedModel, lora: Lora) -> Any:
    """The model frozen, with trainable low-rank adapters."""
    from peft import LoraConfig, get_peft_model

    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=list(lora.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(lora.seed)
        adapted = get_peft_model(model, config)
    tied = head is not None and head.weight is embedding.weight
    if tied and (embedding, head) != (model.get_input_embeddings(), model.get_output_embeddings()):
        raise ValueError(
            "this model's embedding and head are one weight, which cannot be saved with adapters "
            f"for one of them: leave it out of the targets, got {', '.join(lora.targets)}"
        )
    if lora.fp8:
        _freeze_in_fp8(adapted)
    return adapted


def _in_float32_under_autocast(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out.float() if torch.is_autocast_enabled(out.device.type) else out


def _freeze_in_fp8(model: Any) -> None:
    """Replace the decoder's frozen linear layers; what adapters are made of is trained.

    The sum that layers add to is float32 then, as where all weights are trained: what bfloat16
    rounds differently in sampler and learner, e4m3 makes larger.
    """
    model.get_input_embeddings().register_forward_hook(_in_float32_under_autocast)
    for layer in decoder_layers(base_model(model)):
        for name, each in list(layer.named_modules()):
            if type(each) is nn.Linear and not each.weight.requires_grad:
                if each.in_features % UNIT or each.out_features % UNIT:
                    raise ValueError(
                        f"FP8 needs layers whose sizes are multiples of {UNIT}, and {name} has "
                        f"{each.in_features} and {each.out_features}: leave "
                        "model.advanced.lora_fp8 out"
                    )
                layer.set_submodule(name, Fp8Linear(each))
    if all(p.dtype != E4M3 for p in model.parameters()):
        raise ValueError(
            f"FP8 is for linear layers, and {type(base_model(model)).__name__} has none that is "
            "frozen: leave model.advanced.lora_fp8 out"
        )


def save(policy: Policy, folder: str | os.PathLike[str]) -> Path:
    """Write model (safetensors; adapters merged) and tokenizer so that `from_pretrained`, vLLM and
    `load` read them. Atomic: the folder appears whole or not at all.

    LoRA adapters are written once more by themselves, in the folder `adapter` inside it, as peft
    and vLLM read them on top of the model they were trained on.
    """
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with _no_bars():
            _as_saved(policy.model, policy.dtype).save_pretrained(draft)
            if hasattr(policy.model, "merge_and_unload"):
                adapter = draft / "adapter"
                policy.model.save_pretrained(adapter, save_embedding_layers=False)
                (adapter / "README.md").unlink(missing_ok=True)  # peft's empty form
        policy.tokenizer.save_pretrained(draft)
        draft.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _as_saved(model: Any, dtype: torch.dtype | None) -> Any:
    """The model with its adapters folded in and its weights in a dtype, tied ones still one; where
    that is another model, a copy in the machine's memory, not the GPU's."""
    if hasattr(model, "merge_and_unload"):
        is_packed = any(hasattr(p, "quant_state") or p.dtype == E4M3 for p in model.parameters())
        model = _written_out(model) if is_packed else _copied(model).cpu().merge_and_unload()
    return model if dtype in (None, model.dtype) else _copied(model, dtype)


def _copied(model: Any, dtype: torch.dtype | None = None) -> Any:
    memo: dict[int, Any] = {}
    for p in model.parameters():
        kind = dtype if p.is_floating_point() else None
        memo[id(p)] = nn.Parameter(p.detach().to("cpu", kind, copy=True), p.requires_grad)
    return copy.deepcopy(model, memo)


def _written_out(model: Any) -> Any:
    """A model with its adapters folded in whose weights are in 4 or 8 bits: as numbers again."""
    base = base_model(model)
    with torch.no_grad():
        weights = {name: weight.to("cpu", base.dtype) for name, weight in merged(base)}
    config = copy.deepcopy(base.config)
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        fresh = type(base)(config)
    fresh.load_state_dict(weights, strict=False, assign=True)
    fresh.tie_weights()
    fresh.generation_config = base.generation_config
    return fresh
