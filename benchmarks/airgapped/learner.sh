# The fourth call, or one by itself, since it needs no vLLM: attention, kernels, and the learner's ways to save memory.
#   OUT=FOLDER bash benchmarks/airgapped/learner.sh [FOLDER_OF_THE_SMALL_PART] [WORDS OF grpo prove]
source benchmarks/airgapped/steps.sh
if [ -d "${1:-}" ]; then
  unpack "$1" || exit
  shift
fi
about
prove 60 attention "$@"
step kernels 80 "$PYTHON" -m pytest -m gpu tests/gpu/test_kernels.py
prove 320 learner ways=ZeRO-1,checkpointing "$@"
exit $failed
