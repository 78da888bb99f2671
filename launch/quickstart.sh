#!/usr/bin/env bash
# Sets up, then trains the embedded default: a real 135M language model learns arithmetic.
# Arguments are config overrides, e.g. bash launch/quickstart.sh seed=1 num_steps=20
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup.sh
exec "${GRPO_VENV:-.venv}/bin/grpo" train experiment=quickstart "$@"
