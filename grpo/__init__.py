"""grpo: GRPO training with vLLM samplers, a DeepSpeed learner, and one std-normalization dial.

prompts → rollout groups → scored groups → batches → optimizer steps → refreshed sampler

types, interfaces   the data types, and the protocols that the loop's parts implement
loop, measure       one round of training, and the facts measured in it
config              dataclasses behind every Hydra key
host                this machine: ranks, ports, terminal, signals
models              where a model's weights come from: the hub, a folder, or embedded ones without a network
tasks               data sets, prompts and graders
rollout             samplers (vLLM, transformers) and dynamic sampling
algorithm           pure torch: the dial, ratio, objective, aggregation, KL, correction, packing
dynamics            pure Python: the scheduler of group size and refresh interval
learner             training with DeepSpeed and transformers
weight_sync         the only bridge from learner to sampler
evaluation          pass rates on held-out problems
telemetry, report   metrics, trackers, progress; plots and tables
run                 puts a training run together and runs it
sweep, launch       several runs, and one run over several machines
reproduce           figures and tables of the papers
commands, cli       the command line
"""

__version__ = "0.1.0"
