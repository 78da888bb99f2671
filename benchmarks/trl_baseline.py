"""This script runs TRL's GRPOTrainer on the quickstart's model, prompts, group size, lengths, precision and steps.

    python benchmarks/trl_baseline.py OUTPUT.json [STEPS] [KEY=VALUE …]

Run it with an interpreter that has trl==1.16.0 beside this project's environment. It writes wall-clock and processor
seconds per step, reward per step and peak memory, to be compared with a run of `grpo train experiment=quickstart` of as
many steps. KEY=VALUE changes that experiment, for example `learner.precision=float32`. TRL generates with transformers
here, because its vLLM mode needs a GPU: see `trl_colocate.py`.
"""

import json
import platform
import re
import resource
import sys
import time

from grpo.host import environment
from grpo.run.preparing import with_precision

environment.prepare()

import torch
import trl
from datasets import Dataset
from transformers import TrainerCallback

from grpo.config.hydra import compose_config
from grpo.models.files import ModelFiles
from grpo.models.resolve import resolve
from grpo.tasks.problem_selection import split
from grpo.tasks.prompt_encoding import PromptEncoder
from grpo.tasks.sources import load_problems


def reward(completions, answer, **_):
    numbers = [re.findall(r"-?\d+", completion.replace(",", "")) for completion in completions]
    return [float(bool(written) and written[-1] == right) for written, right in zip(numbers, answer, strict=True)]


class Clock(TrainerCallback):
    def __init__(self):
        self.seconds, self.processor_seconds, self.rewards = [], [], []

    def on_step_begin(self, *args, **kwargs):
        self._start, self._processor_start = time.perf_counter(), time.process_time()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.perf_counter() - self._start)
        self.processor_seconds.append(time.process_time() - self._processor_start)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "reward" in (logs or {}):
            self.rewards.append(logs["reward"])


def dataset_of(config, tokenizer):
    """Returns the problems that a run of this configuration trains on, as TRL takes them."""
    problems, _ = load_problems(config.task.data)
    train, _ = split(problems, config.task.data.held_out_fraction)
    encode = PromptEncoder(tokenizer, config.task.prompt)
    return Dataset.from_list([{"prompt": encode.text(problem), "answer": problem.answer} for problem in train])


def main(output, steps=10, *overrides):
    config = with_precision(compose_config(["experiment=quickstart", *overrides]))
    path = resolve(config.model, list)
    tokenizer = ModelFiles(path).tokenizer
    group_size, prompts = config.dynamics.group_size, config.dynamics.prompts_per_step
    clock = Clock()
    trainer = trl.GRPOTrainer(
        model=str(path),
        reward_funcs=reward,
        train_dataset=dataset_of(config, tokenizer),
        processing_class=tokenizer,
        callbacks=[clock],
        args=trl.GRPOConfig(
            output_dir="/tmp/trl-baseline",
            per_device_train_batch_size=group_size * prompts,
            num_generations=group_size,
            max_completion_length=config.rollout.sampling.max_tokens,
            max_steps=int(steps),
            learning_rate=config.learner.learning_rate,
            lr_scheduler_type="constant",
            epsilon_high=0.28,
            loss_type="dapo",
            gradient_checkpointing=False,
            bf16=config.learner.precision == "bfloat16",
            model_init_kwargs={"dtype": config.learner.precision},
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=not torch.cuda.is_available(),
            seed=config.seed,
        ),
    )
    trainer.train()
    result = {
        "framework": f"trl {trl.__version__}",
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "precision": config.learner.precision,
        "seconds_per_step": clock.seconds,
        "processor_seconds_per_step": clock.processor_seconds,
        "reward": clock.rewards,
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    with open(output, "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
