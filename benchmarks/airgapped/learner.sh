# The first call: what needs no vLLM. About seven minutes on one GPU.
#   OUT=FOLDER bash benchmarks/airgapped/learner.sh FOLDER_OF_THE_SMALL_PART [WORDS OF grpo prove]
source benchmarks/airgapped/steps.sh
unpack "$1" && shift
about
prove 90 attention "$@"
step kernels 90 "$PYTHON" -m pytest -m gpu tests/gpu/test_kernels.py
prove 240 learner "$@"
step stages 120 "$PYTHON" -m pytest -x -m gpu tests/gpu/test_engines.py -k every_stage
exit $failed
