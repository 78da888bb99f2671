# The rest of the GPU tests, once sampler.sh has unpacked: colocated runs, with CUDA graphs and without, and learners
# whose states leave the GPU.
#   OUT=FOLDER bash benchmarks/airgapped/graphs.sh
source benchmarks/airgapped/steps.sh
step engines 260 "$PYTHON" -m pytest -x -m gpu tests/gpu/test_engines.py -k colocated
step offloading 220 "$PYTHON" -m pytest -x -m gpu tests/gpu/test_offloading.py
exit $failed
