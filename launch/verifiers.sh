#!/usr/bin/env bash
# Makes .venv-verifiers, a Python with Prime Intellect's verifiers beside the trainer's own, and installs an environment
# there. PACKAGE is what pip installs: a name, a folder or an address. Then it writes the environment's tasks to ID.jsonl.
#   bash launch/verifiers.sh ID PACKAGE [KEY=VALUE …]
#   grpo train task=verifiers task.episode=verifiers:ID task.data.path=ID.jsonl model=…
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${GRPO_VERIFIERS_VENV:-$root/.venv-verifiers}
[[ $# -ge 2 ]] || { echo "verifiers: give an environment's ID, and the package that holds it" >&2; exit 2; }
id=$1 package=$2
shift 2
[[ -x $venv/bin/python ]] || "${GRPO_PYTHON:-${GRPO_VENV:-$root/.venv}/bin/python}" -m venv "$venv"
echo "verifiers: installing verifiers and $package into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$root[verifiers]" "$package"
# Harnesses of verifiers start programs by uv.
PATH="$venv/bin:$PATH" exec "$venv/bin/python" -m grpo.episodes.verifiers_bridge "$id.jsonl" "$id" "$@"
