"""This script runs TRL's GRPOTrainer with vLLM on the same GPU, on the rounds of `throughput.py`.

    python benchmarks/trl_colocate.py FOLDER SHAPE [FIELD=VALUE of trl.GRPOConfig …]

SHAPE, model, tokenizer, prompts, group size, tokens of completions, steps and warm-up are those of `throughput.py
FOLDER SHAPE`. Where that has run before, the ratio to its round is printed too. An optimizer step of TRL learns from
the completions of one such round. Its padded micro-batches have at most the tokens of a row. Weights are in bfloat16.
The engine sleeps while the learner works, and has the same share of the GPU. FIELD=VALUE changes this, e.g.
use_liger_kernel=true or vllm_importance_sampling_correction=false. Writes FOLDER/trl.json.

Without a GPU, TRL generates with transformers, which rehearses everything else. The script needs trl==1.16.0, and on a
GPU one of the versions of vLLM that it takes (0.22 to 0.31).
"""

import json
import sys
from pathlib import Path
from statistics import median

from benchmarks.trl_baseline import Clock, dataset_of, reward
from grpo.host import environment

environment.prepare()

import torch
import trl
import yaml

from benchmarks.throughput import SHAPES, WARM_UP, settings_of
from grpo.config.hydra import compose_config
from grpo.host import ranks
from grpo.models.files import ModelFiles
from grpo.run.preparing import with_precision


class Record(Clock):
    """Writes what is known after each step, so that a run that is ended early leaves the steps that it has taken."""

    def __init__(self, folder, about):
        super().__init__()
        self._folder, self._about, self._lengths = folder, about, []

    def on_log(self, args, state, control, logs=None, **kwargs):
        super().on_log(args, state, control, logs=logs, **kwargs)
        if "completions/mean_length" not in (logs or {}):
            return
        self._lengths.append(logs["completions/mean_length"])
        result = self._about | {
            "completion length": median(self._lengths),
            "seconds_per_step": self.seconds,
            "largest memory, GiB": torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_initialized() else None,
        }
        ours = self._folder / "result.json"
        if seconds := self.seconds[WARM_UP:]:
            result["step, s"] = median(seconds)
            if ours.exists():
                result["a step of TRL in rounds of grpo"] = median(seconds) / json.loads(ours.read_text())["round, s"]
        (self._folder / "trl.json").write_text(json.dumps(result, indent=1))


def padded_rows(config, completions):
    """Returns how many padded completions a micro-batch takes: the most within a row's tokens that divide the step."""
    longest = config.task.prompt.max_tokens + config.rollout.sampling.max_tokens
    fitting = range(1, max(1, config.learner.micro_batch_tokens // longest) + 1)
    return max(count for count in fitting if completions % count == 0)


def arguments(config, steps, folder, fields, on_gpu):
    """Returns TRL's arguments for a run of this configuration."""
    dynamics, learner = config.dynamics, config.learner
    completions = dynamics.group_size * dynamics.prompts_per_step
    rows = padded_rows(config, completions)
    engine = {
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": config.rollout.gpu_memory_fraction,
        "vllm_enable_sleep_mode": True,
        "vllm_max_model_length": config.model.max_length,
    }
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": completions // rows,
        "num_generations": dynamics.group_size,
        "max_completion_length": config.rollout.sampling.max_tokens,
        "max_steps": steps,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "loss_type": "dapo",
        "epsilon_high": 0.28,
        "gradient_checkpointing": learner.gradient_checkpointing,
        "bf16": learner.precision == "bfloat16",
        "model_init_kwargs": {"dtype": learner.precision},
        "optim": "adamw_torch_fused",
        "use_vllm": on_gpu,
        "use_cpu": not on_gpu,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "seed": config.seed,
    }
    return trl.GRPOConfig(**(settings | engine | fields))


def main(folder, name="small", *words):
    folder = Path(folder)
    fields = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}
    config = with_precision(compose_config(settings_of(folder, name, [])))
    tokenizer, steps = ModelFiles(folder / name).tokenizer, SHAPES[name][2] + WARM_UP
    on_gpu = ranks.device(config.device).type == "cuda"
    # TRL's checks of its vLLM arguments do not depend on the machine.
    # transformers refuses bfloat16 where it was to run on a GPU and finds none.
    arguments(config, steps, folder / "trl", fields if on_gpu else fields | {"bf16": False}, on_gpu=True)
    chosen = arguments(config, steps, folder / "trl", fields, on_gpu)
    about = {
        "framework": f"trl {trl.__version__}",
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "completions": chosen.generation_batch_size,
        "micro-batch": chosen.per_device_train_batch_size,
        "fields": fields,
    }
    trainer = trl.GRPOTrainer(
        model=str(folder / name),
        reward_funcs=reward,
        train_dataset=dataset_of(config, tokenizer),
        processing_class=tokenizer,
        callbacks=[Record(folder, about)],
        args=chosen,
    )
    trainer.train()
    print((folder / "trl.json").read_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
