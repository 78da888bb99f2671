#!/usr/bin/env bash
# Makes the environment in .venv: pinned versions, CUDA builds where there is an NVIDIA GPU. Again: quick.
# The first of python3.11, python3.12 and python3.13 that can make one makes it; where none can, uv gets a Python 3.12.
# GRPO_VENV names another folder; GRPO_PYTHON another interpreter (3.11 or newer); GRPO_KIND=cpu|gpu says which builds,
# and gpu then also with a driver that looks too old.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stop() { echo "setup: $1" >&2; exit 2; }

# Says whether a Python is new enough, makes environments, and has the headers that a package (pycosat), and kernels on
# GPUs, are compiled against. Debian packages all three apart, and pyenv has commands of versions that it does not run.
fits() {
  "$1" -c 'import ensurepip, os, sys, sysconfig
headers = os.path.join(sysconfig.get_path("include", "posix_prefix"), "Python.h")
sys.exit(sys.version_info < (3, 11) or not os.path.exists(headers))' 2>/dev/null
}

make_environment() {
  local python tools uv candidates=(python3.11 python3.12 python3.13)
  if [[ ${GRPO_PYTHON:-} ]]; then candidates=("$GRPO_PYTHON"); fi
  for python in "${candidates[@]}"; do
    if fits "$python"; then "$python" -m venv "$venv"; return; fi
  done
  if [[ ${GRPO_PYTHON:-} ]]; then stop "GRPO_PYTHON=$GRPO_PYTHON is no $needed: install it, or unset GRPO_PYTHON"; fi
  tools=$(mktemp -d)
  uv=$(command -v uv) || uv=$tools/bin/uv
  [[ $uv != "$tools"* ]] || python3 -m pip install --quiet --target "$tools" "$uv_pin" 2>/dev/null || true
  { [[ -x $uv ]] && UV_SYSTEM_CERTS=1 "$uv" venv --quiet --managed-python --python 3.12 --seed --allow-existing "$venv"; } ||
    stop "no $needed is here, and uv got none: install python3.12, python3.12-venv and python3.12-dev, or set GRPO_PYTHON"
  rm -rf "$tools"
}

venv=${GRPO_VENV:-.venv}
drivers=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) || drivers=
kind=${GRPO_KIND:-$([[ $drivers ]] && echo gpu || echo cpu)}
requirements=launch/requirements-$kind.txt
uv_pin=uv==0.13.8

[[ -f $requirements ]] || stop "GRPO_KIND=$kind is neither cpu nor gpu"
driver=${drivers%%.*}
if [[ ! ${GRPO_KIND:-} && $driver =~ ^[0-9]+$ && $driver -lt 580 ]]; then
  stop "the NVIDIA driver ${drivers%%$'\n'*} is too old for the pinned CUDA 13 wheels, which need 580 or newer, and the package index has torch and vLLM of these versions for no older CUDA: update the driver, or, with a data-centre GPU, install NVIDIA's cuda-compat-13-0 and set GRPO_KIND=gpu, or set GRPO_KIND=cpu"
fi

wanted=$(cat "$requirements" launch/setup.sh pyproject.toml | sha256sum | cut -d' ' -f1)
if [[ -f $venv/.installed && $(cat "$venv/.installed") == "$wanted" ]]; then exit 0; fi

# pip takes a build for CPUs for one with CUDA, and a folder that several machines share would change back and forth.
made=$kind
for built in "$venv"/lib/python*/site-packages/torch-[0-9]*.dist-info; do
  if [[ -e $built ]]; then made=$([[ $built == *+cpu.dist-info ]] && echo cpu || echo gpu); fi
done
[[ $made == "$kind" ]] || stop "$venv has builds for ${made^^}s, and this machine needs those for ${kind^^}s: remove $venv, or set GRPO_VENV to another folder here, or set GRPO_KIND=$made"

needed="Python 3.11 or newer with venv and Python.h"
if [[ $kind == gpu ]]; then
  newest=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -V | tail -n 1) || newest=
  if [[ $newest =~ ^([0-9]+)\.([0-9])$ && ${BASH_REMATCH[1]}${BASH_REMATCH[2]} -lt 75 ]]; then
    stop "the GPU has compute capability $newest, and CUDA 13 and vLLM need 7.5 (Turing) or newer: use a newer GPU, or set GRPO_KIND=cpu"
  fi
fi
[[ ${CC:-} ]] || command -v gcc clang >/dev/null || stop "no C compiler is here, and some packages and kernels are compiled: install gcc, or set CC"
command -v gcc >/dev/null || export CC="${CC:-clang}"

# Measured for CPUs (3.1 GiB, and the wheels while they are unpacked), a guess for GPUs.
room=$([[ $kind == gpu ]] && echo 14 || echo 4)
free=$(df -Pk "$(dirname "$venv")" 2>/dev/null | tail -n 1 | { read -r _ _ _ blocks _ && echo "$blocks"; }) || free=
if [[ ! -e $venv/bin/python && $free =~ ^[0-9]+$ && $free -lt $((room << 20)) ]]; then
  stop "$venv needs about $room GiB, and $((free >> 10)) MiB are free there: free some, or set GRPO_VENV to a folder on another disk"
fi

echo "setup: installing $requirements into $venv (some minutes the first time)"
[[ -x $venv/bin/python ]] || make_environment
fits "$venv/bin/python" || stop "$venv/bin/python is no $needed: install what it lacks, or remove $venv"
[[ $kind == gpu ]] || "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
  stop "vLLM's kernels on CPUs need libnuma.so.1: install libnuma1 (Debian, Ubuntu) or numactl-libs (Fedora)"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${pip[@]}" "$uv_pin" "$(grep '^setuptools==' "$requirements")"
# pip fetches torch, because only pip reads every place that a machine may keep wheels in; uv, ten times
# as quick, the rest. The list is a full closure, so nothing is resolved.
torch=$(grep '^torch==' "$requirements")
if [[ $kind == gpu ]]; then
  "${pip[@]}" "$torch"
else
  # The index's own torch is built for GPUs, and does not start without CUDA's libraries. uv knows where builds for CPUs are.
  "${pip[@]}" "$torch+cpu" 2>/dev/null ||
    "$venv/bin/uv" pip install --quiet --system-certs --python "$venv/bin/python" --no-deps --torch-backend cpu "$torch" ||
    stop "no build of $torch for CPUs and this Python was found, where pip looks or in PyTorch's own index: let this machine reach that index, or set PIP_FIND_LINKS to a folder with the wheel, or GRPO_PYTHON to the Python that a wheel here is for"
fi
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
