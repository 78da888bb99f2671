# With all parts there: vLLM in the learner's process.
#   OUT=FOLDER bash benchmarks/airgapped/sampler.sh FOLDERS_OF_PARTS
source benchmarks/airgapped/steps.sh
unpack "$@" || exit
about
# The smallest comes first, without graphs, so that a short log shows what is wrong. A run of an earlier call would be
# in the way.
rm -rf "$WORK/colocated"
step colocated 120 "$PYTHON" -m grpo.cli train experiment=tiny "device=$DEVICE" num_steps=3 evaluation.num_problems=0 \
  checkpoint.export=false rollout.gpu_memory_fraction=0.2 rollout.enforce_eager=true \
  learner.precision=bfloat16 rollout.precision=bfloat16 "output_dir=$WORK/colocated"
cp "$WORK/colocated/metrics.jsonl" "$OUT/" 2>/dev/null
step sleep 80 "$PYTHON" -m pytest -m gpu tests/gpu/test_sleep.py
prove 280 sync,sampler
exit $failed
