#!/usr/bin/env bash
# verl's trainer with vLLM on GPUs: [NODES=1 GPUS=8 MODEL=...] bash gpus.sh [FOLDER] [verl's overrides ...]
# 1 GPU: GPUS=1 MODEL=Qwen/Qwen2.5-1.5B-Instruct. 64 GPUs: NODES=8 GPUS=8, on the head node of a Ray cluster.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-runs/verl-maths}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd) # every node must see it
nodes=${NODES:-1} gpus=${GPUS:-8}
export VERL_FILE_LOGGER_PATH="$folder/metrics.jsonl"

python "$here/export.py" "$folder"
settings=(
  data.train_files="$folder/train.parquet" data.val_files="$folder/test.parquet"
  data.train_batch_size=$((16 * nodes * gpus)) # prompts a step
  data.max_prompt_length=1024 data.max_response_length=2048 data.filter_overlong_prompts=True
  reward.custom_reward_function.path="$here/../verl-maze/reward.py"
  actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen2.5-7B-Instruct}"
  actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.strategy=fsdp2
  actor_rollout_ref.actor.fsdp_config.fsdp_size="$gpus" # shards inside a node, copies between nodes
  actor_rollout_ref.actor.ppo_mini_batch_size=$((16 * nodes * gpus)) # one update a step: on policy
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm actor_rollout_ref.actor.loss_scale_factor=2048
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=16
  actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.rollout.top_p=1.0 actor_rollout_ref.rollout.top_k=-1
  actor_rollout_ref.rollout.tensor_model_parallel_size="${TENSOR_PARALLEL:-1}"
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.calculate_log_probs=True # sampler against learner, in the metrics
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384
  actor_rollout_ref.rollout.val_kwargs.n=16 actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0 # pass@k at validation, as it will be deployed
  trainer.nnodes="$nodes" trainer.n_gpus_per_node="$gpus"
  trainer.total_training_steps=300 trainer.test_freq=20 trainer.save_freq=20
  trainer.default_local_dir="$folder/checkpoints"
  trainer.logger='[console,file]' trainer.rollout_data_dir="$folder/rollouts"
  hydra.run.dir="$folder/hydra"
  "${@:2}"
)
source "$here/../verl-maze/train.sh"
python "$here/../verl-maze/check.py" "$folder"
