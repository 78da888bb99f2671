"""grpo: GRPO training with vLLM samplers, a DeepSpeed learner, and one std-normalization dial.

prompts → rollout groups → scored groups → batches → optimizer steps → refreshed sampler

types, interfaces   the nouns, and what the loop needs of its parts
config              dataclasses behind every Hydra key
models              embedded models: where weights come from when no hub is at hand
tasks               what is asked and how it is graded
rollout             samplers: vLLM, transformers; dynamic sampling
algorithm           pure torch: the dial, ratio, objective, aggregation, KL, correction, packing
dynamics            pure Python: the scheduler of group size and refresh interval
learner             DeepSpeed + transformers
weight_sync         the only bridge between learner and sampler
telemetry, report   metrics, trackers, progress; plots and tables
loop                one round, as a paragraph
train               a training run, put together and run
"""

__version__ = "0.1.0"
