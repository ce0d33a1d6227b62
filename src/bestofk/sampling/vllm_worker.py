"""Inside vLLM's worker: new weights into the running model. Runs in vLLM's process, not in ours.

A server is started with `--worker-extension-cls bestofk.sampling.vllm_worker.WeightReceiver`, which
adds the methods below to its workers.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MEMORY = Path("/dev/shm")
"""Files here are shared memory: nothing is written to a disk."""


def load(worker: Any, weights: Iterable[tuple[str, Any]]) -> int:
    """Load weights in place and return how many there were.

    vLLM's own reload puts every tensor through the layer's loader again (fused, sharded, repacked)
    and copies it into the memory that compiled graphs refer to. What it leaves behind is a tied
    head on CPU, which multiplies with a repacked copy of the embedding: that is repacked here.
    """
    names: list[str] = []

    def noted() -> Iterable[tuple[str, Any]]:
        for name, tensor in weights:
            names.append(name)
            yield name, tensor

    worker.reload_weights(weights_iterator=noted())
    for module in worker.model_runner.get_model().modules():
        if hasattr(module, "cpu_linear") and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)
    return len(names)


class WeightReceiver:
    """Methods that a vLLM server's workers get, for `bestofk.sampling.vllm_server`."""

    def weights_from_memory(self, folder: str) -> dict[str, Any]:
        """Load the safetensors files that the trainer put into a folder of shared memory."""
        from safetensors import safe_open

        paths = private(folder)  # before the reload begins: one that breaks ruins the model

        def tensors() -> Iterable[tuple[str, Any]]:
            for path in paths:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118
                        yield name, file.get_tensor(name)

        return {"tensors": load(self, tensors())}

    def about_sampling(self) -> dict[str, Any]:
        """What the trainer must know of this server before it trusts its log-probabilities."""
        config = self.vllm_config  # type: ignore[attr-defined]
        return {
            "logprobs_mode": config.model_config.logprobs_mode,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            **shape_of(config.model_config.hf_config),
        }


SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")  # fmt: skip


def shape_of(config: Any) -> dict[str, Any]:
    """What the names and shapes of a model's weights follow from. vLLM's reload does not survive
    weights of another model, so trainer and server compare it first."""
    text = config.get_text_config()
    numbers: dict[str, Any] = {name: getattr(text, name, None) for name in SHAPE}
    return {"model_type": config.model_type} | {
        name: value for name, value in numbers.items() if isinstance(value, int)
    }


def private(folder: str) -> list[Path]:
    """The files of a folder of shared memory, if they and it are this user's alone.

    Whoever reaches the server's port can call its workers by name: a path must not make them read
    anything else.
    """
    inside = sorted(Path(folder).glob("*.safetensors"))
    if Path(folder).parent != MEMORY or not inside:
        raise ValueError(f"weights lie in a folder of their own in {MEMORY}, got {folder}")
    for what, kind in [(Path(folder), stat.S_ISDIR), *((path, stat.S_ISREG) for path in inside)]:
        result = os.lstat(what)
        if not kind(result.st_mode) or result.st_uid != os.geteuid() or result.st_mode & 0o077:
            raise ValueError(f"{what} is not this user's alone")
    return inside
