# The second call, once keep.sh has stored the first part: vLLM beside the learner. The run that learns comes first.
#   OUT=FOLDER bash benchmarks/airgapped/sampler.sh FOLDERS_OF_PARTS
source benchmarks/airgapped/steps.sh
unpack "$@" || exit
about
# colocated NAME SECONDS [WORDS]: three rounds of a small run.
colocated() {
  local name=$1 seconds=$2
  shift 2
  # A run of an earlier call would be in the way.
  rm -rf "$WORK/$name"
  step "$name" "$seconds" "$PYTHON" -m grpo.cli train experiment=tiny "device=$DEVICE" num_steps=3 \
    evaluation.num_problems=0 checkpoint.export=false rollout.gpu_memory_fraction=0.2 learner.precision=bfloat16 \
    rollout.precision=bfloat16 "output_dir=$WORK/$name" "$@"
  cp "$WORK/$name/metrics.jsonl" "$OUT/$name.jsonl" 2>/dev/null
}
# Without graphs a short log shows what is wrong.
colocated eager 110 rollout.enforce_eager=true
colocated graphs 110
prove 180 sync,sampler
step sleep 70 "$PYTHON" -m pytest -m gpu tests/gpu/test_sleep.py
exit $failed
