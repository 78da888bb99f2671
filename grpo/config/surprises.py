"""This module finds settings that are possible and rarely meant. A run prints a line about each, and goes on."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from grpo.config.optimizer import ADAPTER_RATE, SLOW_ADAPTER_RATE, with_learning_rate
from grpo.config.run import TrainConfig
from grpo.config.task import TaskConfig
from grpo.config.validate_task import of_named_set

# Values beyond these bounds are rarely meant.
MOST_CLIP = 10.0  # objective.clip_high
NARROW_CLIP = 5e-3  # objective.clip_low and clip_high, for the ratio of a token
WIDE_SEQUENCE_CLIP = 0.1  # the same for the ratio of a whole sequence
WIDE_DUAL_CLIP = 30.0  # objective.dual_clip
LARGE_KL = 1.0  # objective.kl.coefficient
LARGE_BONUS = 0.5  # objective.entropy_coefficient
STRICT_VETO = 0.5  # objective.correction.veto
MANY_LENGTHS = 10  # objective.aggregation.constant_length over rollout.sampling.max_tokens
LARGE_EPSILON = 0.1  # normalization.epsilon
LEAST_RATE, FAST = 1e-10, 1e-4  # learner.learning_rate; FAST is for the training of all weights
LEAST_SHARE, FLOOR = 1e-4, 0.1  # learner.min_lr_fraction; FLOOR is usual
LARGE_ADAM_EPSILON = 1e-2  # learner.adam_epsilon
LEAST_NORM = 1e-6  # learner.max_gradient_norm
MOST_DECAY = 1.0  # learner.weight_decay
MOST_SHRINKING = 0.5  # the share by which weight decay shrinks the weights in a run
COLD, HOT = 0.05, 2.0  # rollout.sampling.temperature
LARGE_SHARE = 0.5  # task.data.held_out_fraction
LONGEST_NAME = 80  # task.prompt.system, where it may be the name of a file
FAR = 0.9  # the share of task.curriculum.anneal_prompts that a run asks
MUCH_GAIN = 0.2  # dynamics.adaptive.stop_gain


def surprises(config: TrainConfig) -> Iterator[str]:
    """Yields lines about settings that are possible and rarely meant."""
    config = with_learning_rate(config)
    interval, longest = config.dynamics.refresh_interval, config.dynamics.adaptive.longest_interval
    if config.dynamics.name == "adaptive" and interval > longest:
        yield (
            f"the run begins with dynamics.refresh_interval={interval}, and the schedule takes at most {longest}: "
            "raise dynamics.adaptive.longest_interval, or begin within it"
        )
    if config.learner.schedule != "constant" and config.learner.warmup_steps == config.num_steps:
        yield f"learner.schedule={config.learner.schedule} never begins, since learner.warmup_steps takes all num_steps"
    if (warmup := config.learner.warmup_steps) > config.num_steps:
        yield (
            f"learner.warmup_steps={warmup} is above num_steps={config.num_steps}: the learning rate ends at "
            f"{100 * config.num_steps / warmup:.2g}% of learner.learning_rate"
        )
    if config.model.lora.rank and config.learner.learning_rate < SLOW_ADAPTER_RATE:
        yield (
            f"adapters hardly learn at learner.learning_rate={config.learner.learning_rate:g}, since they begin at "
            f"zero: {ADAPTER_RATE:g} is their default"
        )
    smallest, size, largest = config.dynamics.adaptive.smallest_group, config.dynamics.group_size, config.largest_group
    if config.dynamics.name == "adaptive" and not smallest <= size <= largest:
        sizes = f"{smallest}" if smallest == largest else f"{smallest} to {largest} only"
        yield (
            f"the run begins with dynamics.group_size={size}, and the schedule takes groups of {sizes} later "
            f"(dynamics.adaptive.smallest_group and largest_group): set both to {size} to keep it, or begin within them"
        )
    for name, of_set in config.task.all_sets.items():
        yield from (of_named_set(line, name) for line in _odd_task(of_set, config.rollout.deadline_seconds))
    yield from _odd_bounds(config)
    yield from _odd_numbers(config)
    yield from _odd_losses(config)
    yield from _odd_learning(config)
    yield from _odd_stops(config.rollout.sampling.stop)


def _odd_bounds(config: TrainConfig) -> Iterator[str]:
    """Yields lines about bounds that the run does not reach, or reaches at once."""
    batch, curriculum = config.dynamics, config.task.curriculum
    asked = config.num_steps * batch.prompts_per_step
    if curriculum.name == "anneal" and asked < FAR * curriculum.anneal_prompts:
        yield (
            f"the run asks {asked:,} prompts, and task.curriculum.anneal_prompts={curriculum.anneal_prompts} leads "
            f"from easy to hard: the run ends at {asked / curriculum.anneal_prompts:.1%} of the way, so set {asked}"
        )
    per_round = batch.prompts_per_step * batch.group_size * batch.refresh_interval
    if 0 < config.limits.samples < per_round:
        yield (
            f"limits.samples={config.limits.samples} ends the run after its first round, which samples {per_round:,} "
            "completions"
        )
    if 0 < config.limits.tokens < per_round:
        yield (
            f"limits.tokens={config.limits.tokens} ends the run after its first round, which samples {per_round:,} "
            "completions of a token or more"
        )
    if config.rollout.refill.enabled and config.rollout.refill.max_waves == 1:
        yield "rollout.refill.max_waves=1 counts the first wave, so no silent group is replaced: make it 2 or more"
    if (gain := config.dynamics.adaptive.stop_gain) >= MUCH_GAIN:
        yield (
            f"dynamics.adaptive.stop_gain={gain:g} is a share of all problems, so the run ends unless it may still "
            f"gain {gain:.0%}: 0.01 is one percent"
        )
    learner = config.learner
    if learner.schedule != "constant" and 0 < learner.min_lr_fraction < LEAST_SHARE:
        yield (
            f"learner.min_lr_fraction={learner.min_lr_fraction:g} is a share, so the rate ends at "
            f"{learner.min_lr_fraction * learner.learning_rate:.1g}: {FLOOR:g} of learner.learning_rate is usual"
        )


def _odd_numbers(config: TrainConfig) -> Iterator[str]:
    """Yields lines about numbers that are possible, and far from what anybody uses."""
    objective = config.objective
    if MOST_CLIP < objective.clip_high < math.inf:
        yield f"objective.clip_high={objective.clip_high:g} clips ratios at {1 + objective.clip_high:g}: 0.28 is DAPO's"
    if objective.name in ("clip", "gmpo") and (objective.clip_low >= 0.6 or 1 <= objective.clip_high <= MOST_CLIP):
        least, most = 1 - objective.clip_low, 1 + objective.clip_high
        usual = "[0.8, 1.28] is written 0.2 and 0.28"
        if objective.name == "gmpo":
            least, most = math.exp(-objective.clip_low), math.exp(objective.clip_high)
            usual = "gmpo bounds the logarithm of ratios, and its paper takes 0.4 for both"
        yield (
            f"objective.clip_low={objective.clip_low:g} and clip_high={objective.clip_high:g} let ratios lie between "
            f"{least:.3g} and {most:.3g}: {usual}"
        )
    if objective.kl.coefficient and objective.kl.estimator == "k1" and not objective.kl.in_reward:
        yield (
            "objective.kl.estimator=k1 in the loss does nothing on average: use k2 or k3, or put it into the reward by "
            "objective.kl.place=reward"
        )
    clips = objective.name in ("clip", "cispo")
    if clips and objective.ratio == "token" and max(objective.clip_low, objective.clip_high) < NARROW_CLIP:
        yield (
            f"objective.clip_low={objective.clip_low:g} and clip_high={objective.clip_high:g} clip nearly every moved "
            "token, and are those of a whole sequence (objective=gspo): 0.2 is usual"
        )
    if clips and objective.ratio == "sequence" and max(objective.clip_low, objective.clip_high) >= WIDE_SEQUENCE_CLIP:
        yield (
            f"objective.clip_low={objective.clip_low:g} and clip_high={objective.clip_high:g} hardly clip the ratio of "
            "a whole sequence: GSPO takes 3e-4 and 4e-4"
        )
    if 0 < config.rollout.sampling.temperature < COLD:
        yield (
            f"rollout.sampling.temperature={config.rollout.sampling.temperature:g} makes the completions of a group "
            "alike, and equal ones teach nothing: 1 is usual"
        )
    if config.rollout.sampling.temperature > HOT:
        yield (
            f"rollout.sampling.temperature={config.rollout.sampling.temperature:g} makes completions nearly random, so "
            "that few end or are right: 1 is usual"
        )
    if objective.kl.coefficient > LARGE_KL:
        yield f"objective.kl.coefficient={objective.kl.coefficient:g} holds a policy still: 0.001 to 0.1 is usual"


def _odd_losses(config: TrainConfig) -> Iterator[str]:
    """Yields lines about numbers of the loss by which next to nothing, or nothing else, is learned."""
    objective, longest = config.objective, config.rollout.sampling.max_tokens
    aggregation, share = objective.aggregation, objective.selection.share
    single = not any(of_set.episode for of_set in config.task.all_sets.values())
    if aggregation.level == "constant" and single and aggregation.constant_length >= MANY_LENGTHS * longest:
        yield (
            f"objective.aggregation.constant_length={aggregation.constant_length} divides the losses of completions of "
            f"at most {longest} tokens, which leaves little of them: rollout.sampling.max_tokens is usual"
        )
    if objective.entropy_coefficient > LARGE_BONUS:
        yield (
            f"objective.entropy_coefficient={objective.entropy_coefficient:g} rewards a random policy more than right "
            "answers: 0.001 to 0.01 is usual"
        )
    if objective.dual_clip > WIDE_DUAL_CLIP:
        yield f"objective.dual_clip={objective.dual_clip:g} is a ratio that no token reaches: 3 is usual"
    if objective.correction.veto >= STRICT_VETO:
        yield (
            f"objective.correction.veto={objective.correction.veto:g} leaves out a completion for any token on which "
            "sampler and learner differ a little: 1e-4 is usual"
        )
    if objective.selection.name == "top_entropy" and share == 1:
        yield "objective.selection.share=1 takes all tokens, so nothing is selected: 0.2 is a fifth of them"


def _odd_learning(config: TrainConfig) -> Iterator[str]:
    """Yields lines about numbers of the optimizer and of normalization that are possible, and far from usual ones."""
    learner, epsilon = config.learner, config.normalization.epsilon
    if learner.adam_epsilon > LARGE_ADAM_EPSILON:
        yield f"learner.adam_epsilon={learner.adam_epsilon:g} divides every step and makes it tiny: 1e-8 is usual"
    if 0 < learner.max_gradient_norm < LEAST_NORM:
        yield f"learner.max_gradient_norm={learner.max_gradient_norm:g} leaves next to nothing of gradients: 1 is usual"
    if len(learner.betas) == 2 and learner.betas[0] > learner.betas[1]:
        yield f"learner.betas={learner.betas} has the momentum first and the average of squares second: [0.9, 0.999]"
    if learner.learning_rate < LEAST_RATE:
        yield f"learner.learning_rate={learner.learning_rate:g} moves no weight that a float32 number holds"
    if (shrinking := learner.weight_decay * learner.learning_rate * config.num_steps) > MOST_SHRINKING:
        yield (
            f"learner.weight_decay={learner.weight_decay:g} shrinks every weight to {math.exp(-shrinking):.0%} of it "
            "within the run"
        )
    elif learner.weight_decay > MOST_DECAY:
        yield (
            f"learner.weight_decay={learner.weight_decay:g} times the learning rate is taken off every weight in each "
            "step: 0.01 is usual"
        )
    pretrained = config.model.source in ("huggingface", "smollm2") and not config.model.lora.rank
    if pretrained and learner.learning_rate >= FAST:
        yield (
            f"learner.learning_rate={learner.learning_rate:g} is a rate for adapters (model.lora.rank), and all "
            "weights are trained here: 1e-6 to 2e-5 is usual"
        )
    if config.normalization.exponent and epsilon >= LARGE_EPSILON:
        yield (
            f"normalization.epsilon={epsilon:g} is as large as the standard deviations that it is added to, so groups "
            "are hardly normalized: 1e-6 is usual"
        )


def _odd_task(task: TaskConfig, deadline_seconds: float) -> Iterator[str]:
    """Yields lines about one set of problems. `deadline_seconds` is that of sampling a round."""
    prompt, reward, limits = task.prompt, task.reward, task.limits
    system = prompt.system or ""
    if (held_out := task.data.held_out_fraction) > LARGE_SHARE:
        yield f"task.data.held_out_fraction={held_out:g} keeps most problems from training: 0.1 is usual"
    asked = [prompt.template, system, str(prompt.examples)]
    if reward.extract == "boxed" and "<answer>" in str(asked) and "box" not in str(asked):
        yield (
            "task.reward.extract=boxed looks for \\boxed{…}, and the prompt asks for <answer>…</answer>: set "
            "task.reward.extract=tag"
        )
    if reward.extract == "tag" and not any("answer>" in text for text in asked) and not task.episode:
        yield (
            "task.reward.extract=tag looks for <answer>…</answer>, for which neither task.prompt.template nor "
            "task.prompt.system asks"
        )
    # A system prompt without a blank may be a long Chinese text, which `Path.is_file` refuses to look for.
    is_name = re.fullmatch(r"\S+", system) and len(system) <= LONGEST_NAME
    if is_name and (re.search(r"\.(txt|md|jinja)$", system) or Path(system).is_file()):
        yield f"task.prompt.system={system} is the name of a file, and the model reads the name: put its text there"
    for name, text in {"template": prompt.template, "system": system}.items():
        if r"\n" in text:
            yield (
                f"task.prompt.{name} holds a backslash and an n, and no new line: write it in a YAML file, or by the "
                "shell as $'…\\n…'"
            )
    if "{question}" in system:
        yield "task.prompt.system holds {question}, which is filled in task.prompt.template alone"
    if system.strip().lower() in ("none", "null"):
        yield f"task.prompt.system is the text {prompt.system!r}: null leaves it to the chat template"
    if reward.timeout_seconds > deadline_seconds:
        yield (
            f"task.reward.timeout_seconds={reward.timeout_seconds:g} is above rollout.deadline_seconds="
            f"{deadline_seconds:g}, which ends the run first: it is seconds for one answer"
        )
    if "python" in re.split("[,:]", task.episode) and limits.program_seconds > limits.seconds:
        yield (
            f"task.limits.program_seconds={limits.program_seconds:g} is above task.limits.seconds={limits.seconds:g}, "
            "so a slow program ends its episode, and the model never reads that it took too long"
        )


def _odd_stops(stops: Sequence[str]) -> Iterator[str]:
    """Yields lines about texts at which completions end that are hardly what was meant."""
    if lines := [text for text in stops if r"\n" in text]:
        yield f"rollout.sampling.stop={lines[0]!r} holds a backslash and an n, and no new line: write it in a YAML file"
    if numbers := [text for text in stops if text.strip().isdecimal()]:
        yield f"rollout.sampling.stop={numbers[0]} ends a completion at that text: token ids are not taken"
