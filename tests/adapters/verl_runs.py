"""verl's own actor on this CPU, without Ray: FSDP2 ranks over gloo that take inner steps.

    python tests/adapters/verl_runs.py FOLDER RANKS

Reads FOLDER/batch.pt (rows of groups), writes FOLDER/rank-N.pt: what each mini-batch was given as
advantages, its log-ratios, and the trained weights. Needs recipes/verl-maze on PYTHONPATH,
VERL_PLATFORM=cpu and VERL_USE_EXTERNAL_MODULES=verl_cpu, as its cpu.sh sets them.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rendezvous import meeting_place

MODEL = Path(__file__).parents[2] / "src/bestofk/models/checkpoints/tiny-maze"
SETTINGS = [
    "algorithm.adv_estimator=bestofk",
    f"actor_rollout_ref.model.path={MODEL}",
    "actor_rollout_ref.model.use_remove_padding=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
    "actor_rollout_ref.actor.policy_loss.loss_mode=bestofk",
    "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
    "actor_rollout_ref.actor.optim.optimizer=SGD",
    "actor_rollout_ref.actor.optim.weight_decay=0",
    "actor_rollout_ref.actor.optim.clip_grad=1e9",
    "actor_rollout_ref.actor.optim.total_training_steps=10",
    "actor_rollout_ref.actor.grad_clip=1e9",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.name=local",
]


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def tensors(rows: list[dict[str, Any]], **known: Any) -> Any:
    """Rows as verl's V1 trainer hands them to its workers."""
    from verl.utils import tensordict_utils as tu

    prompts = [torch.tensor(row["prompt"]) for row in rows]
    responses = [torch.tensor(row["response"]) for row in rows]
    masks = [torch.full_like(each, row["live"]) for each, row in zip(responses, rows)]
    scores = [torch.zeros(len(each)) for each in responses]
    for score, row in zip(scores, rows):
        score[-1] = row["reward"]
    both = [torch.cat(pair) for pair in zip(prompts, responses)]
    return tu.get_tensordict(
        {
            "prompts": nested(prompts), "responses": nested(responses), "input_ids": nested(both),
            "position_ids": nested([torch.arange(len(each)) for each in both]),
            "response_mask": nested(masks), "loss_mask": nested(masks),
            "rm_scores": nested(scores), "uid": [row["uid"] for row in rows],
            "extra_fields": [{"reward_extra_info": {"shown": row["shown"]}} for row in rows],
        },
        {"temperature": 1.0, **known},
    )  # fmt: skip


def sampler_gap(places: np.ndarray) -> np.ndarray:
    """log π_old of the learner minus that of the sampler, of each row of the batch."""
    return 0.02 * np.sin(places)


def main(folder: Path, rank: int, ranks: int) -> None:
    from hydra import compose, initialize_config_module
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from verl.workers.utils.padding import response_from_nested

    from bestofk.adapters.verl import ppo_steps
    from bestofk.adapters.verl.ppo_trainer import whole_groups

    torch.set_num_threads(1)
    given = torch.load(folder / "batch.pt", weights_only=False)
    with initialize_config_module("verl.trainer.config", version_base=None):
        overrides = [*SETTINGS, f"actor_rollout_ref.actor.optim.lr={given['lr']}"]
        overrides += given.get("settings", [])
        config = compose("ppo_trainer", overrides=overrides)
    worker = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    rows = given["rows"]
    lengths = [len(row["prompt"]) + len(row["response"]) for row in rows]
    order = whole_groups([row["key"] for row in rows], lengths, rows=given["mini"], ranks=ranks)
    share = len(rows) // ranks
    own = order[rank * share : (rank + 1) * share]
    data = tensors([rows[i] for i in own], calculate_entropy=True, compute_loss=False)
    scored = worker.compute_log_prob(data)
    old = response_from_nested(scored["log_probs"], data["response_mask"])
    torch.manual_seed(rank)
    old = nested([row + given["noise"] * torch.randn(()) / len(row) for row in old.unbind()])

    seen = []
    weigh = ppo_steps.renew_advantages

    def recorded(worker: Any, data: Any, told: dict[str, Any]) -> dict[str, float]:
        found = weigh(worker, data, told)
        weights = [float(row[row.abs().argmax()]) for row in data["advantages"].unbind()]
        seen.append((data["place"].tolist(), weights, found))
        return found

    ppo_steps.renew_advantages = recorded
    told = json.dumps({"options": given["options"], "progress": 0.0, "step": 1})
    data = tensors(
        [rows[i] for i in own], calculate_entropy=False, global_batch_size=given["mini"],
        mini_batch_size=given["mini"], epochs=given["epochs"], seed=1, bestofk=told,
        dataloader_kwargs={"shuffle": False},
    )  # fmt: skip
    data["old_log_probs"], data["place"] = old, torch.tensor(own)
    gaps = sampler_gap(np.array(own)).tolist()
    data["rollout_log_probs"] = nested(
        [row - gap / len(row) for row, gap in zip(old.unbind(), gaps, strict=True)]
    )
    data["advantages"] = torch.nested.as_nested_tensor(
        [torch.full((len(row),), float("nan")) for row in data["responses"].unbind()],
        layout=torch.jagged,
    )
    output = worker.update_actor(data)
    parameters = {
        name: value.full_tensor().clone()
        for name, value in worker.actor.engine.module.named_parameters()
    }
    torch.save(
        {
            "seen": seen,
            "model": parameters,
            "metrics": output["metrics"],
            "optimiser_steps": [
                float(state["step"])
                for state in worker.actor.engine.optimizer.state.values()
                if "step" in state
            ],
        },
        folder / f"rank-{rank}.pt",
    )


def all_ranks(folder: str, ranks: int) -> list[int]:
    import subprocess

    _store, place = meeting_place()  # it listens until the last of them has ended
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    shared = {**os.environ, **place, **size}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, folder, str(ranks), str(rank)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    return [each.wait(timeout=1800) for each in running]


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[2]))
    else:
        print(json.dumps(all_ranks(sys.argv[1], int(sys.argv[2]))))
