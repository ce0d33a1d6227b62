"""verl without a GPU: a platform "cpu" and a rollout "local", through verl's own registries.

    VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=verl_cpu python -m verl.trainer.main_ppo \
        trainer.device=cpu actor_rollout_ref.rollout.name=local ...

For trying a configuration on a machine at hand, with a model of some million parameters at most.
verl 0.9.1 brings CUDA, ROCm and Ascend, and rollouts by vLLM, SGLang and TensorRT-LLM, all of them
for accelerators. Its trainer, FSDP engine, agent loop, reward loop and TransferQueue run as they
are; only the hardware's name and the generating server are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ray
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.utils import distributed


class _Memory(SimpleNamespace):
    """The part of `torch.cuda` that verl calls, where there is nothing to allocate or wait for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


DEVICE = _Memory(
    **dict.fromkeys(
        ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"),
        lambda *_: 0,
    ),
    **dict.fromkeys(
        ("empty_cache", "synchronize", "set_device", "manual_seed", "ipc_collect"), lambda *_: None
    ),
    mem_get_info=lambda *_: (0, 0),
    get_device_name=lambda *_: "CPU",
    is_available=lambda: False,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)


@PlatformRegistry.register(platform="cpu")
class CPU(PlatformBase):
    """Plain memory and gloo."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...
    def manual_seed(self, seed: int) -> None: ...
    def manual_seed_all(self, seed: int) -> None: ...
    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...
    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...
    def cudart(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return (
            "GPU"  # verl counts no other: +ray_kwargs.ray_init.num_gpus says how many workers fit
        )

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield


# verl joins the CPU's backend and the accelerator's; torch does not accept the same one twice.
distributed.initialize_global_process_group_ray = functools.partial(
    distributed.initialize_global_process_group_ray, backend="cpu:gloo"
)

# The rest of verl may be imported now: it asks for the platform as it is imported.
from transformers import AutoModelForCausalLM  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp import FSDPEngineWithLMHead  # noqa: E402
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout  # noqa: E402
from verl.workers.rollout.replica import (  # noqa: E402
    RolloutReplica,
    RolloutReplicaRegistry,
    TokenOutput,
)

EngineRegistry.register("language_model", ["fsdp", "fsdp2"], device="cpu")(FSDPEngineWithLMHead)


def server_name(replica_rank: int) -> str:
    return f"local_server_{replica_rank}"


class LocalServer:
    """Generates with transformers; requests that wait together are answered together."""

    def __init__(self, path: str, response_length: int, max_batch: int) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.response_length, self.max_batch = response_length, max_batch
        self.waiting: list[tuple[list[int], dict[str, Any], asyncio.Future]] = []
        self.busy = asyncio.Lock()
        self.steps: int | None = None

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append((list(prompt_ids), dict(sampling_params), answer))
        await asyncio.sleep(0.02)  # let the rest of the batch arrive
        async with self.busy:
            if not answer.done():
                await self._serve()
        return await answer

    async def _serve(self) -> None:
        settings = self.waiting[0][1]
        batch = [one for one in self.waiting if one[1] == settings][: self.max_batch]
        self.waiting = [one for one in self.waiting if one not in batch]
        prompts = [prompt for prompt, _, _ in batch]
        try:
            outputs = await asyncio.to_thread(self._sample, prompts, settings)
        except Exception as error:
            for _, _, answer in batch:
                answer.set_exception(error)
            return
        for (_, _, answer), output in zip(batch, outputs, strict=True):
            answer.set_result(output)

    @torch.inference_mode()
    def _sample(self, prompts: list[list[int]], settings: dict[str, Any]) -> list[TokenOutput]:
        width = max(map(len, prompts))
        pad = self.model.config.pad_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        temperature = settings.get("temperature", 1.0)
        drawn = self.model.generate(
            input_ids=ids,
            attention_mask=seen,
            max_new_tokens=settings.get("max_tokens") or self.response_length,
            do_sample=temperature > 0,
            temperature=temperature or None,
            top_p=settings.get("top_p", 1.0),
            top_k=max(settings.get("top_k", 0), 0),
            return_dict_in_generate=True,
            output_logits=True,
        )
        log_probs = torch.stack(drawn.logits, 1).div(temperature or 1.0).log_softmax(-1)
        tokens = drawn.sequences[:, width:]
        chosen = log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        end = self.model.config.eos_token_id
        outputs = []
        for row, logs in zip(tokens.tolist(), chosen.tolist(), strict=True):
            length = row.index(end) + 1 if end in row else len(row)
            outputs.append(
                TokenOutput(
                    token_ids=row[:length],
                    log_probs=logs[:length],
                    stop_reason="completed",
                    extra_fields={"global_steps": self.steps},
                )
            )
        return outputs

    async def load(self, weights: dict[str, torch.Tensor], steps: int | None) -> None:
        async with self.busy:
            missing, unknown = self.model.load_state_dict(weights, strict=False)
            tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
            if unknown or set(missing) - tied:
                raise ValueError(f"weights do not fit: {unknown} unknown, {missing} missing")
            self.steps = steps

    async def sleep(self) -> None: ...
    async def wake_up(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def resume_generation(self) -> None: ...
    async def abort_all_requests(self, reject_request: bool = False) -> None: ...


class LocalReplica(RolloutReplica):
    """One server beside each worker."""

    async def launch_servers(self) -> None:
        path = self.model_config.path
        server = ray.remote(LocalServer).options(
            name=server_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency
        )
        handle = server.remote(path, self.config.response_length, self.config.max_num_seqs)
        self.servers = [handle]
        self._server_handle, self._server_address = handle, f"local:{self.replica_rank}"


class LocalRollout(BaseRollout):
    """The worker's side: hands new weights to its server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"])
        self.is_leader_rank = True

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: Any = None, **_: Any
    ) -> None:
        state = {name: tensor.detach().cpu() for name, tensor in weights}
        await ray.get_actor(server_name(self.replica_rank)).load.remote(state, global_steps)


RolloutReplicaRegistry.register("local", lambda: LocalReplica)
_ROLLOUT_REGISTRY["local", "async"] = f"{__name__}.LocalRollout"
