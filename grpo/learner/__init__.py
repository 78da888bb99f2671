"""The learner: a Hugging Face model trained by DeepSpeed ZeRO, fed with packed rows.

attention    attention over trees: prompts shared by their completions
policy       model → log-probabilities of targets, never the whole logits
engine       DeepSpeed's configuration and start
learner      one optimizer step; evaluation of old and reference log-probabilities
reference    the policy that a KL term measures from
weights      weights gathered bucket by bucket, LoRA merged
collective   sums over ranks
checkpoint   atomic checkpoints of a run
export       a Hugging Face directory
"""
