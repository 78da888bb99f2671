# The third call: whole rounds at the shape of Qwen2.5-1.5B by throughput.py, and then by TRL with vLLM on the same GPU.
#   OUT=FOLDER bash benchmarks/airgapped/rounds.sh [SHAPE [OVERRIDES]]
source benchmarks/airgapped/steps.sh
shape=${1:-qwen2.5-1.5b}
[ $# = 0 ] || shift
step throughput 230 "$PYTHON" -m benchmarks.throughput "$WORK/throughput" "$shape" "device=$DEVICE" "$@"
cp "$WORK/throughput/result.json" "$OUT/throughput.json" 2>/dev/null
cp "$WORK/throughput/run/metrics.jsonl" "$OUT/throughput-rounds.jsonl" 2>/dev/null
step trl 240 "$PYTHON" -m benchmarks.trl_colocate "$WORK/throughput" "$shape"
cp "$WORK/throughput/trl.json" "$OUT/" 2>/dev/null
exit $failed
