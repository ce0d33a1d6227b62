"""Small helpers that every room may use: name suggestions, atomic writes, JSON without NaN."""

from __future__ import annotations

import difflib
import functools
import math
import os
import socket
import threading
import urllib.request
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def closest(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most like the given one, if any is like it."""
    near = difflib.get_close_matches(str(given), list(known), n=1, cutoff=cutoff)
    return near[0] if near else None


OTHER_NAMES = {
    "lr": "learning_rate", "n": "samples_per_prompt", "num_generations": "samples_per_prompt",
    "group_size": "samples_per_prompt", "batch_size": "prompts_per_step", "max_tokens":
    "max_new_tokens", "max_completion_length": "max_new_tokens", "output_dir": "dir",
    "max_steps": "steps", "eval_steps": "every", "save_steps": "checkpoint_every",
    "epochs": "passes", "lora_r": "lora_rank", "beta": "kl", "optimiser": "optimizer",
}  # fmt: skip
"""What other trainers call a setting, and its name here."""


def similar(name: str, names: Iterable[str]) -> list[str]:
    """The dotted names that were probably meant: by their last part, then by the whole name.

    >>> similar("run.keep_last", ["run.steps", "run.advanced.keep_last"])
    ['run.advanced.keep_last']
    >>> similar("optimizer.lr", ["optimizer.adam", "optimizer.learning_rate"])
    ['optimizer.learning_rate']
    """
    ends = {each: each.rpartition(".")[2] for each in names}
    last = OTHER_NAMES.get(name.rpartition(".")[2], name.rpartition(".")[2])
    if exact := [each for each, end in ends.items() if end == last]:
        return exact
    if near := closest(name, ends, cutoff=0.7):
        return [near]
    near = closest(last, ends.values(), cutoff=0.7)
    return [each for each, end in ends.items() if near and end == near]


def did_you_mean(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The part of a message that suggests the closest match; empty where nothing is close.

    >>> did_you_mean("count-down", ["countdown", "maze"])
    "did you mean 'countdown'? "
    """
    near = closest(given, known, cutoff=cutoff)
    return f"did you mean {near!r}? " if near else ""


def choices(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The end of a message about a mistyped name: the closest match, and all there are.

    >>> choices("mase", ["countdown", "maze"])
    "did you mean 'maze'? have countdown, maze"
    """
    names = list(known)
    return f"{did_you_mean(given, names, cutoff=cutoff)}have {', '.join(names) or 'none'}"


def unknown(kind: str, given: object, known: Iterable[str], *, cutoff: float = 0.6) -> ValueError:
    """The error for a mistyped name: what it is, the closest match, and all there are.

    >>> raise unknown("task", "count-down", ["countdown", "maze"])
    Traceback (most recent call last):
    ValueError: unknown task 'count-down'; did you mean 'countdown'? have countdown, maze
    """
    return ValueError(f"unknown {kind} {given!r}; {choices(given, known, cutoff=cutoff)}")


def one_of(what: str, given: str, known: Iterable[str]) -> None:
    """Raise for a word that is none of the known ones."""
    if given not in known:
        raise unknown(what, given, known)


def counted(number: int, noun: str, one: str = "", many: str = "") -> str:
    """A number and its noun, with a verb that agrees.

    >>> counted(1, "problem", "is", "are"), counted(2000, "problem")
    ('1 problem is', '2,000 problems')
    """
    return f"{number:,} {noun}{'s' * (number != 1)} {one if number == 1 else many}".rstrip()


def printable(text: str) -> str:
    """Text for a terminal: ids and names come from files, and may hold escape sequences.

    >>> printable("a" + chr(27) + "[31mb")
    'a�[31mb'
    """
    return "".join(c if c.isprintable() else "�" for c in text)


def reaches(rewards: Any, threshold: float) -> Any:
    """Whether rewards (a number or an array) are at least the threshold, but for rounding.

    >>> sum([0.1] * 10), reaches(sum([0.1] * 10), 1.0), reaches(0.999, 1.0)
    (0.9999999999999999, True, False)
    """
    return rewards >= threshold - 1e-9 * max(1.0, abs(threshold))


def check_writable(path: Path) -> None:
    """Find out before the work, not after it, that a file cannot be written.

    Raises:
        OSError: says why, and what to do.
    """
    folder = path.parent
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: it is not a regular file; choose another")
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {folder}; create it")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write {path}: no permission in {folder}; choose another")


def write_atomically(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Write a file so that it holds the old content or the new, never a part of it.

    Args:
        sync: Wait until the content is on disk, not only in the system's cache.

    Raises:
        OSError: The file could not be written; what was there before is unchanged.
    """
    path = Path(path).resolve()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        os.replace(beside, path)
        if sync:
            sync_to_disk(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where converted models, verdicts on references and compiled layers are kept: $BESTOFK_CACHE,
    or bestofk in the user's cache folder."""
    given = os.environ.get("BESTOFK_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else home / "bestofk"


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_safe(value: Any, *, digits: int | None = None) -> Any:
    """The value for JSON: None for every NaN and infinity, dataclasses and arrays as plain data.

    Args:
        digits: Round floats to this many significant digits.

    >>> json_safe({"a": float("nan"), "b": [1.23456789]}, digits=3)
    {'a': None, 'b': [1.23]}
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.{digits}g}") if digits else value
    if isinstance(value, Mapping):
        return {key: json_safe(item, digits=digits) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: json_safe(getattr(value, f.name), digits=digits) for f in fields(value)}
    if hasattr(value, "tolist"):  # a NumPy array or scalar
        return json_safe(value.tolist(), digits=digits)
    if isinstance(value, list | tuple):
        return [json_safe(item, digits=digits) for item in value]
    return value


def base_model(model: Any) -> Any:
    """The model below its LoRA adapters (peft), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def unpacked(parameter: Any) -> Any:
    """A weight as numbers: one that bitsandbytes holds in 4 bits is written out."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)


NEEDED = (
    "training and sampling need a causal language model (a decoder with a head over the "
    "vocabulary), such as a Llama, Qwen or GPT-2 checkpoint"
)


def check_causal(model: Any, name: str = "the model") -> None:
    """Raise for a model in which a token changes the logits of tokens before it, as in an encoder.

    Two texts that differ in the last token alone are compared, without its own logits.
    """
    import torch

    kind = f"{name} ({type(model).__name__})"
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder with a decoder: {NEEDED}")
    if model.device.type == "meta":
        return
    ids = torch.arange(1, 9, device=model.device) % model.config.get_text_config().vocab_size
    other = ids.clone()
    other[-1] = 0
    with torch.no_grad():
        both = model(input_ids=torch.stack([ids, other]), use_cache=False).logits[:, :-1].float()
    moved = float((both[0] - both[1]).abs().max())
    rounding = 1e-4 if model.dtype == torch.float32 else 3e-2
    if not moved <= rounding * max(float(both.std()), 1e-6):
        raise ValueError(
            f"{kind} is not causal: changing the last token of a text moved the logits of earlier "
            f"tokens by {moved:.2g}, as in an encoder; {NEEDED}"
        )


def config_value(config: Any, name: str) -> Any:
    """A setting of a model's text config; None where it has none, or another for each layer."""
    try:
        return getattr(config.get_text_config(), name, None)
    except Exception:  # transformers' error for a setting that differs between layers
        return None


def can_connect(url: str, *, seconds: float = 5.0) -> bool:
    """Whether the host of a URL, or the proxy that leads to it, accepts a connection.

    Libraries repeat failed requests for a minute; this says within seconds that there is no way.
    """
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 80)
    result = threading.Event()

    def knock() -> None:  # in a thread, because the search for an address has no time limit
        try:
            socket.create_connection((parts.hostname or "", port), timeout=seconds).close()
            result.set()
        except OSError:
            pass

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return result.is_set()


SHIPPED = ("tiny-countdown", "tiny-maze")
"""Starting checkpoints in the package, in the folder `models/checkpoints`."""


def hub_options(name: str, revision: str | None = None) -> dict[str, Any]:
    """Options for reading a Hub model: the copy on this machine where the Hub cannot be reached.

    Raises:
        OSError: No copy, no Hub. Said within seconds; the Hub's library would try for a minute.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if constants.HF_HUB_OFFLINE or can_connect(constants.ENDPOINT, seconds=2.5):
        return {}
    try:
        here = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError as error:
        raise ValueError(f"no model {name!r}: {error}") from None
    if isinstance(here, str):
        return {"local_files_only": True}
    raise OSError(
        f"model {name!r} is neither a folder nor in the Hub's cache on this machine, and "
        f"{constants.ENDPOINT} cannot be reached: name a local folder or a .gguf file, or one of "
        f"those that `bestofk model` lists ({', '.join(SHIPPED)}, smollm2)"
    )


def check_hub_id(name: str) -> None:
    """Say before PyTorch is imported that a Hub id has no copy here and there is no Hub."""
    local = name.startswith((".", "/", "~", "runs/")) or name.endswith(".gguf")
    if name.count("/") == 1 and not local and not Path(name).exists():
        hub_options(name)


def processes_per_card(cards: int, environ: Mapping[str, str] = os.environ) -> int:
    """Processes of this run that share one GPU: the launcher says how many run on this machine.

    >>> processes_per_card(1, {"LOCAL_WORLD_SIZE": "2"}), processes_per_card(8, {})
    (2, 1)
    """
    here = environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, -(-int(here if here.isdigit() else 1) // max(1, cards)))


def card_bytes(device: Any) -> float:
    """Memory of a GPU that this process may take: that of the card, or the share of it that PyTorch
    was given, over the processes of this run that are on it."""
    import torch

    total = float(torch.cuda.get_device_properties(device).total_memory)
    share = torch.cuda.get_per_process_memory_fraction(device)
    return total * share / processes_per_card(torch.cuda.device_count())


def keep_compiled() -> None:
    """Have PyTorch's compiler keep its files in our cache folder; its own is emptied with /tmp.

    A folder that the user named in $TORCHINDUCTOR_CACHE_DIR wins; PyTorch sets the variable too, to
    its own folder, when it is imported. Where ours cannot be written nothing changes.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", "") not in ("", default_cache_dir()):
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.resolve())


def silence_compiler() -> None:
    """Drop two notes of PyTorch's compiler that no user of a run can act on: that TF32 is off (the
    run chose its precision), and that a softmax is computed in two passes."""
    warnings.filterwarnings("ignore", r"TensorFloat32 tensor cores", UserWarning)
    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled", UserWarning)


def warn_where_bf16_is_slow(model: Any) -> None:
    """One sentence, once, where a model computes in bf16 on a processor without fast products."""
    if next(model.parameters()).device.type == "cpu":
        _probe_bf16()


@functools.cache
def _probe_bf16() -> None:
    """PyTorch says it with two dozen lines of C++ frames at the first such product, and takes the
    slow way without a word from then on: let it say so here, where nobody hears."""
    import torch

    square = torch.ones(1, 32, 32, dtype=torch.bfloat16)
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        torch.bmm(square, square)
        torch.mm(square[0], square[0])
    if complaints:
        warnings.warn(
            "bf16 is slow on this CPU, which has no instructions for it; fp32 is faster here",
            RuntimeWarning,
            stacklevel=4,
        )


# fmt: off
TRUSTED_PUZZLES = (
    "aiw", "arc_1d", "base_conversion", "bf", "binary_alternation", "caesar_cipher",
    "calendar_arithmetic", "chain_sum", "color_cube_rotation", "count_bits", "count_primes",
    "cryptarithm", "decimal_chain_sum", "dice", "emoji_mystery", "family_relationships",
    "figlet_font", "futoshiki", "group_anagrams", "jugs", "largest_island", "lcm", "leg_counting",
    "manipulate_matrix", "mini_sudoku", "modulo_grid", "needle_haystack", "number_filtering",
    "number_sequence", "palindrome_generation", "palindrome_partitioning", "path_star",
    "power_function", "products", "rectangle_count", "rotate_matrix", "sentence_reordering",
    "simple_equations", "simple_geometry", "string_manipulation", "string_splitting",
    "string_synthesis", "sudoku", "tower_of_hanoi", "tsumego", "word_sequence_reversal",
    "zebra_puzzles",
)
# fmt: on
"""Generators of reasoning-gym 0.1.25 that pass `research/gym_audit.py`."""
