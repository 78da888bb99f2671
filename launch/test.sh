#!/usr/bin/env bash
# Sets up, then runs the tests. Arguments go to pytest, e.g. bash launch/test.sh -m "not slow"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup.sh
# Where bytecode is not to be written, every process that starts would compile transformers, vLLM and DeepSpeed anew:
# half a minute each, since uv installs them without it.
export PYTHONDONTWRITEBYTECODE=
# Three files share two cores, where a thread that waits awake takes a core from another one.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT-0}"
# Three files at a time, also on two cores: many tests wait for other processes. In the order of tests/conftest.py.
exec "${GRPO_VENV:-.venv}/bin/python" -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder "$@"
