# Whole rounds, once sampler.sh has unpacked: `grpo prove part=round` and throughput.py at the shape of Qwen2.5-1.5B.
#   OUT=FOLDER bash benchmarks/airgapped/rounds.sh [SHAPE]
source benchmarks/airgapped/steps.sh
prove 200 round
step throughput 270 "$PYTHON" -m benchmarks.throughput "$WORK/throughput" "${1:-qwen2.5-1.5b}"
cp "$WORK/throughput/result.json" "$OUT/throughput.json" 2>/dev/null
exit $failed
