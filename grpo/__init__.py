"""grpo: GRPO training with vLLM samplers, a DeepSpeed learner, and one std-normalization dial.

prompts → rollout groups → scored groups → batches → optimizer steps → refreshed sampler

types, interfaces   the data types, and the protocols that the loop's parts implement
loop, measure       one round of training, and the facts measured in it
config              dataclasses behind every Hydra key
host                this machine: ranks, ports, terminal, signals
models              where a model's weights come from: the hub, a folder, or embedded ones without a network
sandbox             runs programs that a model has written
tasks               data sets, prompts and graders
rollout             samplers (vLLM, transformers) and dynamic sampling
algorithm           pure torch: the dial, ratio, objective, aggregation, KL, correction, packing
dynamics            pure numpy and scipy: measures what steps gain, forecasts a run, and chooses G and τ
learner             training with DeepSpeed and transformers
weight_sync         the only bridge from learner to sampler
evaluation          pass rates on held-out problems
telemetry           metrics, trackers, progress
insight             studies runs of any framework: logs, diagnosis, plans, pages
run                 puts a training run together and runs it
sweep, launch       several runs, and one run over several machines
prove               measures whether what is installed is right and fast
trainer             the same from Python: Trainer(words, dataset=…, reward=…).train()
commands, cli       the command line
"""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["Result", "Trainer", "UserError"]
_HOMES = {"Result": "grpo.trainer", "Trainer": "grpo.trainer", "UserError": "grpo.config.errors"}

_OF_TRL = {
    "GRPOTrainer": "grpo.Trainer('model.path=…', dataset=rows, reward=function) is what trains",
    "GRPOConfig": "grpo.Trainer takes settings as words, such as 'learner.learning_rate=1e-6'",
}


def __getattr__(name: str) -> type:
    """Imports what is asked for only then, so that `import grpo` stays light."""
    if name in _OF_TRL:
        raise ImportError(f"grpo has no {name}: {_OF_TRL[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'grpo' has no attribute {name!r}")
    if name == "Trainer":
        # Packages that it imports read the environment as they are imported, such as whether to show progress bars.
        import_module("grpo.host.environment").prepare()
    return getattr(import_module(_HOMES[name]), name)
