# Whole rounds at the shape of Qwen2.5-7B, once sampler.sh has unpacked. Adapters learn: the states of an optimizer of all
# weights fit neither on one GPU of 141 GB nor into 128 GiB of main memory.
#   OUT=FOLDER bash benchmarks/airgapped/large.sh [OVERRIDES]
source benchmarks/airgapped/steps.sh
step throughput-7b 470 "$PYTHON" -m benchmarks.throughput "$WORK/throughput-7b" qwen2.5-7b "device=$DEVICE" \
  model.lora.rank=32 learner.gradient_checkpointing=true "$@"
cp "$WORK/throughput-7b/result.json" "$OUT/throughput-7b.json" 2>/dev/null
cp "$WORK/throughput-7b/run/metrics.jsonl" "$OUT/throughput-7b-rounds.jsonl" 2>/dev/null
exit $failed
