# The scripts beside this one share these functions; each sources them from the repository's root.
# OUT is the folder for logs and numbers, SITE the one for packages that the machine lacks, PYTHON the machine's own.
# CALL_SECONDS is how long a call may take; the limits of its steps, written for 480, are shares of it.
# `planned` adds up the shares of the steps so far.
set -u
: "${OUT:?set OUT to a folder for logs and numbers}" "${SITE:=/tmp/grpo-site}" "${PYTHON:=python3}" "${DEVICE:=cuda}" \
  "${CALL_SECONDS:=480}"
WORK=/tmp/grpo-airgapped
mkdir -p "$OUT" "$SITE" "$WORK"
export PYTHONPATH="$PWD:$SITE" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
# vLLM neither compiles a sampler nor reports its use. Its workers would not start by fork beside CUDA.
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 VLLM_WORKER_MULTIPROC_METHOD=spawn
# A run would let the allocator's segments grow, by the name of this variable that vLLM 0.26 does not read: it would not
# switch them off around the memory that sleeps.
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False
# DeepSpeed takes the device that torch takes, wherever the driver shows it.
export DS_ACCELERATOR="$DEVICE"
failed=0 planned=0

# unpack FOLDER...: packages from the parts of an archive that lie in these folders.
unpack() {
  local parts
  parts=$(find "$@" -name 'site.tar.xz.part*' -printf '%f %p\n' | sort | cut -d ' ' -f 2)
  # shellcheck disable=SC2086
  cat $parts | tar -xJ -C "$SITE" || return
  # On all cores at once, or every step would wait for its own imports on one.
  "$PYTHON" -m compileall -q -j 0 "$SITE" >/dev/null 2>&1 || true
}

# step NAME SECONDS COMMAND...: runs it so long at most, of 480, and as much longer as earlier steps took less, but not
# longer than the call. Its output is in OUT/NAME.log, its end is printed here.
step() {
  local name=$1 seconds=$(($2 * CALL_SECONDS / 480)) begun=$SECONDS code=0
  local spare=$((planned - begun)) left=$((CALL_SECONDS - begun))
  shift 2
  planned=$((planned + seconds))
  [ "$spare" -le 0 ] || seconds=$((seconds + spare))
  [ "$seconds" -le "$left" ] || seconds=$left
  [ "$seconds" -gt 0 ] || seconds=1
  timeout -k 10 "$seconds" "$@" >"$OUT/$name.log" 2>&1 &
  wait $! || code=$?
  # A run that was asked to stop still saves. It would hold the GPU's memory while the next step starts.
  kill -KILL -- -$! 2>/dev/null
  tail -n 40 "$OUT/$name.log"
  echo "== $name: exit code $code after $((SECONDS - begun)) s"
  [ "$code" = 0 ] || failed=1
}

# prove SECONDS PART [WORDS]: parts of `grpo prove`; prove.json gathers them over all calls.
prove() {
  local seconds=$1 parts=$2
  shift 2
  step "prove-${parts//,/-}" "$seconds" "$PYTHON" -m grpo.cli prove "part=$parts" "output_dir=$WORK/prove" \
    "device=$DEVICE" "$@"
  cp "$WORK/prove/prove.json" "$OUT/" 2>/dev/null
}

# The machine and the versions that stand there, for whoever reads the numbers.
about() {
  {
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv 2>&1
    "$PYTHON" -m pip list 2>/dev/null | grep -iE '^(torch|triton|transformers|deepspeed|vllm|datasets|hydra-core) '
    "$PYTHON" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
    git rev-parse HEAD 2>/dev/null
    nproc && free -g
  } >"$OUT/machine.txt"
  cat "$OUT/machine.txt"
}
