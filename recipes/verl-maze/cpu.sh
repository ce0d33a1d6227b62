#!/usr/bin/env bash
# verl's own trainer on this machine's CPU for a few steps: bash cpu.sh [FOLDER] [verl's overrides ...]
# TRAIN=exact bash cpu.sh ... takes several optimiser steps per batch, with exact off-policy weights
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipe=${RECIPE:-$here} # the folder with export.py
folder=${1:-runs/verl-maze}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

python "$recipe/export.py" "$folder" ${STYLE:-}
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
export VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=verl_cpu
# on a busy machine Ray's heartbeats come late: a node counts as dead after ten minutes, not after twenty-five seconds
export RAY_health_check_timeout_ms=60000 RAY_health_check_failure_threshold=10 RAY_agent_register_timeout_ms=300000
export HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0 VERL_FILE_LOGGER_PATH="$folder/metrics.jsonl"

settings=(
  data.train_files="$folder/train.parquet" data.val_files="$folder/test.parquet"
  data.train_batch_size=8 data.max_prompt_length=64 data.max_response_length=20
  data.dataloader_num_workers=0
  reward.custom_reward_function.path="$here/reward.py" reward.num_workers=1
  actor_rollout_ref.model.path="$folder/model"
  actor_rollout_ref.model.use_remove_padding=False # needs flash-attention
  +actor_rollout_ref.model.override_config.attn_implementation=sdpa
  actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.strategy=fsdp2
  +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
  actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum
  actor_rollout_ref.actor.optim.lr=3e-4
  actor_rollout_ref.rollout.name=local actor_rollout_ref.rollout.n=16
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.agent.num_workers=1
  actor_rollout_ref.rollout.calculate_log_probs=True
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32
  trainer.device=cpu trainer.nnodes=1 trainer.n_gpus_per_node=1
  trainer.total_training_steps=3 trainer.val_before_train=False trainer.test_freq=-1
  trainer.save_freq=-1 trainer.default_local_dir="$folder/checkpoints"
  trainer.logger='[console,file]' trainer.rollout_data_dir="$folder/rollouts"
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1
  ray_kwargs.ray_init.num_cpus=12 # a count for Ray's planning, not cores
  ++ray_kwargs.ray_init.num_gpus=1 +ray_kwargs.ray_init.include_dashboard=False
  hydra.run.dir="$folder/hydra"
  "${@:2}"
)
source "$here/${TRAIN:-train}.sh"
python "$here/check.py" "$folder"
