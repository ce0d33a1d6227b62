#!/usr/bin/env bash
# The whole loop on this machine's CPU, two workers, two steps, a tiny random model: bash cpu.sh [FOLDER] [verl's overrides ...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RECIPE="$here" STYLE=tiny bash "$here/../verl-maze/cpu.sh" "${1:-runs/verl-maths-cpu}" \
  data.max_prompt_length=512 data.max_response_length=16 \
  trainer.n_gpus_per_node=2 ++ray_kwargs.ray_init.num_gpus=2 trainer.total_training_steps=2 \
  trainer.test_freq=2 actor_rollout_ref.rollout.val_kwargs.n=4 \
  actor_rollout_ref.rollout.val_kwargs.do_sample=True actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
  "${@:2}"
