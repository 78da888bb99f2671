#!/usr/bin/env bash
# Makes the environment in .venv: pinned versions, CUDA builds where there is an NVIDIA GPU. Again: quick.
# GRPO_VENV names another folder; GRPO_PYTHON another interpreter (3.11 or newer); GRPO_KIND=cpu|gpu says which builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${GRPO_VENV:-.venv}
python=${GRPO_PYTHON:-python3.11}
drivers=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) || drivers=
kind=${GRPO_KIND:-$([[ $drivers ]] && echo gpu || echo cpu)}
requirements=launch/requirements-$kind.txt

[[ -f $requirements ]] || { echo "setup: GRPO_KIND=$kind is neither cpu nor gpu" >&2; exit 2; }
driver=${drivers%%.*}
if [[ $kind == gpu && $driver =~ ^[0-9]+$ && $driver -lt 580 ]]; then
  echo "setup: the NVIDIA driver ${drivers%%$'\n'*} is too old for the pinned CUDA 13 wheels, which need 580 or newer: update it, or install CUDA 12 builds of torch and vllm yourself, or set GRPO_KIND=cpu" >&2
  exit 2
fi
command -v "$python" >/dev/null || { echo "setup: no $python here: install it, or set GRPO_PYTHON to a Python 3.11 or newer" >&2; exit 2; }

wanted=$(cat "$requirements" launch/setup.sh pyproject.toml | sha256sum | cut -d' ' -f1)
if [[ -f $venv/.installed && $(cat "$venv/.installed") == "$wanted" ]]; then exit 0; fi

echo "setup: installing $requirements into $venv (some minutes the first time)"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${pip[@]}" uv==0.13.8 "$(grep '^setuptools==' "$requirements")"
# pip fetches torch, because only pip reads every place that a machine may keep wheels in; uv, ten times
# as quick, the rest. The list is a full closure, so nothing is resolved.
"${pip[@]}" "$(grep '^torch==' "$requirements")"
rest=$(mktemp)
trap 'rm -f "$rest"' EXIT
grep -v '^torch==' "$requirements" >"$rest"
"$venv/bin/uv" pip install --quiet --system-certs --python "$venv/bin/python" --no-deps --requirements "$rest" || {
  echo "setup: uv did not get them all; pip goes on, slower"
  "${pip[@]}" -r "$rest"
}
"${pip[@]}" --no-build-isolation --editable .
echo "$wanted" >"$venv/.installed"
echo "setup: done; \`source $venv/bin/activate\` makes \`grpo\` a command"
