# Whole rounds, once sampler.sh has unpacked: `grpo prove part=round`, and throughput.py at the shape of Qwen2.5-1.5B.
#   OUT=FOLDER bash benchmarks/airgapped/rounds.sh [SHAPE [OVERRIDES]]
source benchmarks/airgapped/steps.sh
shape=${1:-qwen2.5-1.5b}
[ $# = 0 ] || shift
prove 190 round
step throughput 290 "$PYTHON" -m benchmarks.throughput "$WORK/throughput" "$shape" "device=$DEVICE" "$@"
cp "$WORK/throughput/result.json" "$OUT/throughput.json" 2>/dev/null
cp "$WORK/throughput/run/metrics.jsonl" "$OUT/throughput-rounds.jsonl" 2>/dev/null
exit $failed
