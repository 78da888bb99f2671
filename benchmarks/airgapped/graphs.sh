# The rest of the GPU tests, once sampler.sh has unpacked: colocated runs, with CUDA graphs and without.
#   OUT=FOLDER bash benchmarks/airgapped/graphs.sh
source benchmarks/airgapped/steps.sh
step engines 440 "$PYTHON" -m pytest -x -m gpu tests/gpu/test_engines.py -k colocated
exit $failed
