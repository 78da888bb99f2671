"""This module maps other frameworks' names of metrics to ours, and puts our advice into their words.

The table of metrics holds the names. The checks of a diagnosis name this project's keys. For logs of TRL or verl these
become the keys of TRL's GRPOConfig (1.10) or verl's trainer (0.8) that do the same. Keys without a counterpart, and
logs of others, get plain words.
"""

import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from grpo.insight.logs.run_log import Series
from grpo.telemetry.json_lines import Row
from grpo.types import metrics as m

# Our name → the pattern of its names elsewhere.
PATTERNS = {
    name: re.compile("|".join(peer.partition(":")[2] for peer in metric.peers.split()))
    for name, metric in m.TABLE.items()
    if metric.peers
}
# The part of this name is the whole reward of a log that has no other column for it.
TOTAL = f"{m.PART}reward"
# A column whose name matches holds held-out scores, by TRL, verl, OpenRLHF, slime or prime-rl.
HELD_OUT = re.compile(
    r"eval_(reward|accuracy)|eval_rewards/.+/mean|eval/.*(reward|accuracy|pass|score).*|eval/[\w.]+|eval/.+/avg@\d+"
    r"|(eval/)?eval_.+_pass1|val-core/.+/mean@\d+|val/test_score/.+"
)
# Columns whose names match `HELD_OUT` and this pattern too hold something else than scores.
NO_SCORE = re.compile(
    r"(.*[/_.@-])?(lengths?|len|std|time|loss|ratio|epoch|steps?|runtime|second|kl|entropy|frac|tokens?|clip|clipped"
    r"|truncated)([/_.@-].*)?"
)
# Scores whose names match are counted as rewards are.
IN_REWARDS = re.compile("reward|score")
SUM_OF_PARTS = re.compile(r"eval[_/]reward")
# The names of a row's step, in order of preference. In slime's logs rollout, train and eval rows have different ones.
ROLLOUT, TRAIN_STEP = frozenset({"rollout/step", "rollout/raw_reward"}), "train/step"
OF_TRAINING = ("step", "global_step", "train/global_step", "training/global_step", "trainer/global_step")
# Weights & Biases counts the calls of its logger.
OF_CALLS = ("_step", "Step")
STEPS = (*OF_TRAINING, "eval/global_step", "rollout/step", TRAIN_STEP, "eval/step", *OF_CALLS, "iteration")
STEP_NAMES = frozenset(STEPS)
# Further names of a row's step, for logs that have none of those.
_STEP = re.compile(
    r"(?:.*/)?(?:(?:global|train(?:er|ing)?|num|n|optimizer)?[ _-]?(?:step|iter|iteration|update|round)s?"
    r"|batch[ _-]?(?:index|idx|number))",
    re.I,
)
OURS, TRL, VERL, OTHER = "grpo", "trl", "verl", ""
ACTOR = "actor_rollout_ref.actor"
# Patterns of columns that only one framework logs.
MARKS = {
    TRL: re.compile(r"(train/)?(rewards/.+|completions/.+|completion_length|frac_reward_zero_std|clip_ratio.*)"),
    VERL: re.compile(r"(actor|critic|response_length)/.+"),
}


def step_name(row: Row) -> str:
    """Returns the name of a row's step, or "" if it has none."""
    return next((name for name in STEPS if is_number(row.get(name)) and math.isfinite(row[name])), "")


def further_step_name(names: Iterable[str]) -> str:
    """Returns the column whose name says that it holds steps, though it is spelled in a way of its own, or "".

    >>> further_step_name(["loss", "Train_Steps", "step_time"]), further_step_name(["batch_size", "batch_index"])
    ('Train_Steps', 'batch_index')
    """
    return next((name for name in names if _STEP.fullmatch(name)), "")


def numbers_of(row: Row) -> dict[str, float]:
    """Returns the numeric values of a row except its step, under the log's own names."""
    # Most values are floats, of which a long log has millions.
    return {
        name: value
        for name, value in row.items()
        if name not in STEP_NAMES and (type(value) is float or is_number(value))
    }


def our_name(name: str) -> str:
    """Returns our name of a metric, or `name` itself if the tables do not have it.

    >>> our_name("train/rewards/accuracy_reward/mean"), our_name("train/agg/all/solver/solved_none"), our_name("loss")
    ('reward/part/accuracy_reward', 'groups/all_wrong_fraction', 'loss')
    """
    for candidate in (name, name.removeprefix("train/")):
        for our, pattern in PATTERNS.items():
            if match := pattern.fullmatch(candidate):
                return our + next(filter(None, match.groups()), "")
    return name


def own_name(our: str, names: Iterable[str]) -> str:
    """Returns the first of a log's names that is that of one of our metrics, or `our` itself if none is.

    >>> own_name("reward/mean", ["kl", "train/reward"]), own_name("reward/mean", ["rewards/reward/mean"])
    ('train/reward', 'rewards/reward/mean')
    """
    known = {our_name(name): name for name in reversed([*names])}
    return known.get(our, known.get(TOTAL, our) if our == m.REWARD else our)


def held_out_scores(series: Mapping[str, Series], part: str, scale: float) -> dict[str, Series]:
    """Returns the columns with held-out scores between 0 and 1.

    Columns whose names contain `part`, the part of the reward that grades answers, come first. The sum of all parts is
    then no such score. A right answer earns `scale` in that part, or in the reward if `part` is "". Other rewards are
    of another scale, so they count only where that is 1.
    """
    names = [name for name in series if HELD_OUT.fullmatch(name) and not NO_SCORE.fullmatch(name)]
    names = [name for name in names if not (part and SUM_OF_PARTS.fullmatch(name))]
    scales = {name: scale if (part in name if part else IN_REWARDS.search(name)) else 1.0 for name in names}
    scores = {
        name: Series(series[name].steps, series[name].values / scales[name])
        for name in sorted(names, key=lambda name: not (part and part in name))
        if scales[name] == scale or not IN_REWARDS.search(name)
    }
    return {name: one for name, one in scores.items() if one.values.min() >= 0 and one.values.max() <= 1}


def is_number(value: Any) -> bool:
    """Tells whether a value of a log is a number that fits into a float. NaN and infinity are, booleans are not."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


class Words(NamedTuple):
    """These are the names of one setting: in plain words, in TRL and in verl. None stands for the plain words."""

    plain: str
    trl: str | None = None
    verl: str | None = None


RATE = Words("learning rate", "learning_rate", f"{ACTOR}.optim.lr")
# A phrase in our advice → its names elsewhere. `PATTERN` tries longer phrases before the phrases that they contain.
WORDS = {
    ", or dynamics=adaptive with its guard": Words(""),
    ", or dynamics=adaptive": Words(""),
    " (dynamics=adaptive dynamics.adaptive.stop_gain=0.02)": Words(""),
    ", or a lower task.reward.correct_at if what is rewarded counts as right": Words(""),
    " (task.reward.extract)": Words(""),
    "half of learner.learning_rate": Words("half the learning rate"),
    "learner.learning_rate": RATE,
    m.LEARNING_RATE: RATE,
    "learner.warmup_steps": Words("number of warm-up steps", "warmup_steps", f"{ACTOR}.optim.lr_warmup_steps"),
    " (learner.schedule, num_steps)": Words(""),
    "learner.precision=float32": Words("training in float32", "bf16=false"),
    "learner.max_gradient_norm=0.5": Words("gradients clipped at 0.5", "max_grad_norm=0.5", f"{ACTOR}.grad_clip=0.5"),
    "objective.clip_high=0.28":
        Words("an upper clip bound of 0.28", "epsilon_high=0.28", f"{ACTOR}.clip_ratio_high=0.28"),
    "objective.clip_high": Words("upper clip bound", "epsilon_high", f"{ACTOR}.clip_ratio_high"),
    "objective.entropy_coefficient=0.001": Words("an entropy bonus of 0.001", None, f"{ACTOR}.entropy_coeff=0.001"),
    "objective.entropy_coefficient": Words("entropy bonus", None, f"{ACTOR}.entropy_coeff"),
    "objective.kl.coefficient=0.01": Words("a KL term with coefficient 0.01", "beta=0.01",
        f"{ACTOR}.use_kl_loss=True with {ACTOR}.kl_loss_coef=0.01"),
    "objective.kl.coefficient": Words("coefficient of the KL term", "beta", f"{ACTOR}.kl_loss_coef"),
    "learner.max_gradient_norm": Words("limit of gradient norms", "max_grad_norm", f"{ACTOR}.grad_clip"),
    "objective.correction.level=token":
        Words("importance weights that correct for it", "vllm_importance_sampling_correction=true"),
    "objective=dr_grpo": Words("the loss of Dr. GRPO", "loss_type=dr_grpo"),
    "a smaller dynamics.refresh_interval": Words("fewer steps between two updates of the sampler"),
    "dynamics.refresh_interval=1": Words("new samples for every optimizer step"),
    "dynamics.group_size": Words("group size", "num_generations", "actor_rollout_ref.rollout.n"),
    "dynamics.prompts_per_step": Words("the number of prompts per step", None, "data.train_batch_size"),
    "normalization=dapo to replace silent groups": Words("other prompts in place of silent groups, as DAPO does",
        None, "algorithm.filter_groups.enable=True in the DAPO recipe"),
    "normalization=dapo": Words("other prompts in place of silent groups, as DAPO does"),
    "; task.limits.failed=truncate": Words(""),
    "task.limits.seconds": Words("time limit of an episode"),
    "model.max_length":
        Words("length of a whole conversation", "max_model_length", "actor_rollout_ref.rollout.max_model_len"),
    "task.limits.turns": Words("limit of turns", "max_tool_calling_iterations", "multi_turn.max_assistant_turns"),
    "rollout.sampling.max_tokens": Words("limit of tokens", "max_completion_length", "data.max_response_length"),
    "rollout.group_deadline_seconds": Words("time limit of a group"),
    "rollout.precision=float32": Words("a sampler in float32"),
    "task.prompt.chat and task.prompt.template": Words("the chat template"),
    "task.prompt.template": Words("the prompt"),
    "task.reward.extract=final": Words("a parser of answers that accepts more forms"),
    "task.reward.overlong=mask": Words("cut completions left out of the loss", "mask_truncated_completions=true"),
    "task.reward.overlong=keep": Words("no penalty"),
    "task.reward.overlong=soft task.reward.overlong_buffer=64": Words("DAPO's soft penalty of overlong completions"),
    "task.reward.overlong=soft": Words("DAPO's soft penalty of overlong completions"),
    "raise task.reward.timeout_seconds, set task.reward.workers=8": Words("allow more time for grading"),
    "task.reward.timeout_seconds=20 task.reward.workers=4": Words("more time and more processes for grading"),
    " than task.reward.timeout_seconds allows": Words(" than is allowed"),
    "choose another task.data.answer_column, or set task.data.answer_pattern or task.reward.parts=[{name: exact}]":
        Words("compare the answers of the problems with what the reward function reads"),
    " in the form that task.reward.extract looks for": Words(" in the form that is looked for"),
    "in task.reward.parts": Words("in the reward", "in reward_weights"),
    "task.reward.parts": Words("reward"),
    "read samples.jsonl": Words("read some completions"),
    "in samples.jsonl": Words("in some completions"),
    m.SILENT: Words("the share of silent groups", "frac_reward_zero_std"),
}  # fmt: skip
PATTERN = re.compile("|".join(re.escape(key) for key in sorted(WORDS, key=len, reverse=True)))


def framework_of(columns: Iterable[str]) -> str:
    """Returns the framework that wrote a log, by its columns' names, or "" if it is not known.

    >>> framework_of(["reward", "completions/mean_length"]), framework_of(["reward", "kl"])
    ('trl', '')
    """
    names = set(columns)
    return next((framework for framework, mark in MARKS.items() if any(map(mark.fullmatch, names))), OTHER)


def in_words_of(framework: str, advice: str) -> str:
    """Returns our advice with our keys replaced by a framework's keys or plain words.

    >>> in_words_of("trl", "half of learner.learning_rate, or objective.kl.coefficient=0.01")
    'half the learning rate, or beta=0.01'
    """
    if framework == OURS:
        return advice

    def known(match: re.Match[str]) -> str:
        words = WORDS[match.group()]
        return {TRL: words.trl, VERL: words.verl}.get(framework) or words.plain

    return PATTERN.sub(known, advice)
