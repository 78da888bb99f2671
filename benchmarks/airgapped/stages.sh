# Every ZeRO stage in bfloat16, with the optimizer on the GPU and in main memory. It needs no vLLM either.
#   OUT=FOLDER bash benchmarks/airgapped/stages.sh [FOLDER_OF_THE_SMALL_PART]
source benchmarks/airgapped/steps.sh
[ $# = 0 ] || unpack "$1" || exit
step stages 440 "$PYTHON" -m pytest -m gpu tests/gpu/test_engines.py -k every_stage
exit $failed
