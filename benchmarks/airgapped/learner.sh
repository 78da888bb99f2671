# This measures the parts that need no vLLM: attention, kernels, and the learner under every way to save memory.
#   OUT=FOLDER bash benchmarks/airgapped/learner.sh FOLDER_OF_THE_SMALL_PART [WORDS OF grpo prove]
source benchmarks/airgapped/steps.sh
unpack "$1" || exit; shift
about
prove 60 attention "$@"
step kernels 80 "$PYTHON" -m pytest -m gpu tests/gpu/test_kernels.py
prove 340 learner "$@"
exit $failed
