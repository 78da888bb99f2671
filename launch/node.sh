#!/usr/bin/env bash
# One node: some GPUs learn, the others serve, one round ahead. On a machine without GPUs: processes on its cores.
#   bash launch/node.sh LEARNERS SERVERS [overrides of grpo train]
#   bash launch/node.sh 4 4 experiment=gsm8k_qwen2_5_7b
# SERVERS = 0: every learner has an engine of its own, on its own GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ $# -lt 2 || ! $1 =~ ^[1-9][0-9]*$ || ! $2 =~ ^[0-9]+$ ]]; then
  echo "usage: bash launch/node.sh LEARNERS SERVERS [overrides of grpo train]" >&2
  exit 2
fi
learners=$1 servers=$2
shift 2
bash launch/setup.sh
overrides=()
if ((servers > 0)); then
  overrides=(rollout=vllm_server pipeline=one_round "rollout.servers.replicas=$servers" "rollout.servers.first_gpu=$learners")
fi
exec "${GRPO_VENV:-.venv}/bin/python" -m torch.distributed.run --standalone --nproc-per-node "$learners" \
  -m grpo.cli train "${overrides[@]}" "$@"
