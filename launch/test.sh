#!/usr/bin/env bash
# Sets up, then runs the tests. Arguments go to pytest, e.g. bash launch/test.sh -m "not slow"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup.sh
# Where bytecode is not to be written, every process that starts would compile transformers, vLLM and DeepSpeed anew:
# half a minute each, since uv installs them without it.
export PYTHONDONTWRITEBYTECODE=
# Three files at a time, also on two cores: many slow tests wait for other processes, and the quick ones do not. In the
# order of tests/conftest.py.
files=3
[[ "$*" == *"not slow"* ]] && files=2
exec "${GRPO_VENV:-.venv}/bin/python" -m pytest --numprocesses "$files" --dist loadfile --no-loadscope-reorder "$@"
