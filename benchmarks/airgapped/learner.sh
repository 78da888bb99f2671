# What needs no vLLM: attention, kernels, and the learner under every way to save memory.
#   OUT=FOLDER bash benchmarks/airgapped/learner.sh FOLDER_OF_THE_SMALL_PART [WORDS OF grpo prove]
source benchmarks/airgapped/steps.sh
unpack "$1" || exit; shift
about
prove 70 attention "$@"
step kernels 90 "$PYTHON" -m pytest -m gpu tests/gpu/test_kernels.py
prove 300 learner "$@"
exit $failed
