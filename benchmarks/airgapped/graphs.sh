# A call after those four: whole rounds by `grpo prove`, colocated runs with CUDA graphs after updates, and without, and
# learners whose states leave the GPU.
#   OUT=FOLDER bash benchmarks/airgapped/graphs.sh
source benchmarks/airgapped/steps.sh
prove 170 round
step engines 160 "$PYTHON" -m pytest -x -m gpu tests/gpu/test_engines.py -k colocated
step offloading 150 "$PYTHON" -m pytest -x -m gpu tests/gpu/test_offloading.py
exit $failed
