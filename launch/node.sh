#!/usr/bin/env bash
# A run on one machine, or from this one over several: sets up here, then hands over to `grpo launch`.
#   bash launch/node.sh experiment=gsm8k_qwen2_5_7b hardware=node            eight GPUs, each learns and samples
#   bash launch/node.sh experiment=gsm8k_qwen2_5_7b hardware=split           four learn, four serve one round ahead
#   bash launch/node.sh experiment=gsm8k_qwen2_5_7b hardware=two_nodes 'hardware.hosts=[a,b]'      over ssh
# Other machines need this folder at the same place (a shared file system), set up with launch/setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup.sh
exec "${GRPO_VENV:-.venv}/bin/python" -m grpo.cli launch "$@"
