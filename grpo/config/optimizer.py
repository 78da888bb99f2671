"""The optimizer is AdamW, or the one that `learner.deepspeed.optimizer` names, in DeepSpeed's own words.

ZeRO hands flat shards to an optimizer, in which matrices are cut. Optimizers that compute every weight by itself are
exact there. Those with Adam's keys and two moments for each weight also fit the learner's keys and the memory estimate.

The schedule of the learning rate follows from its configuration.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from grpo.config.engines import LearnerConfig
from grpo.config.errors import require
from grpo.config.run import TrainConfig

# Learning rates that are chosen for a whole model and for adapters, and the one below which adapters hardly learn.
WHOLE_RATE, ADAPTER_RATE, SLOW_ADAPTER_RATE = 1e-6, 1e-4, 1e-5
ADAMW = "AdamW"
# For each optimizer that can be chosen, its class in torch and the settings that it has besides Adam's.
CLASSES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "adamw": (ADAMW, ()),
    "adam": ("Adam", ("adam_w_mode",)),
    "radam": ("RAdam", ("decoupled_weight_decay",)),
    "nadam": ("NAdam", ("momentum_decay", "decoupled_weight_decay")),
    "adamax": ("Adamax", ()),
}
# DeepSpeed (0.19.8) converts Adam's two moments and the count of steps to other shards, and no other state.
CONVERTED = (ADAMW, "Adam", "RAdam")
ONE_BIT = "DeepSpeed has dropped it, and never ran it under ZeRO 2 and 3"
COMPILED = "DeepSpeed's kernels for it need a compiler on every machine"
REFUSED = {
    "muon": "DeepSpeed would clip and report the norm of its updates, where learner.max_gradient_norm means gradients",
    "lamb": "it needs the norm of each whole matrix, and ZeRO cuts matrices",
    "lion": COMPILED,
    "adafactor": "it needs sums over rows and columns of matrices, and ZeRO cuts matrices",
    **dict.fromkeys(("onebitadam", "zerooneadam", "onebitlamb"), ONE_BIT),
    **dict.fromkeys(("muadam", "muadamw", "musgd"), "it needs the shape of each matrix, and ZeRO flattens them"),
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer is the name of a class in `torch.optim`, with settings that the learner has no keys for."""

    name: str = ADAMW
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def converted(self) -> bool:
        """Says whether its state can be read by another number of ranks, or in another precision."""
        return self.name in CONVERTED


def chosen_optimizer(learner: LearnerConfig) -> Optimizer:
    """Returns the optimizer that a configuration asks for. Raises UserError for one that would not be exact."""
    block = learner.deepspeed.get("optimizer")
    if block is None:
        return Optimizer()
    key = "learner.deepspeed.optimizer"
    plain = isinstance(block, Mapping) and {"type"} <= {*block} <= {"type", "params"}
    require(plain, f"{key} has a type and may have params, e.g. {{type: NAdam, params: {{momentum_decay: 0.004}}}}")
    type_name, settings = str(block["type"]), dict(block.get("params") or {})
    class_names = ", ".join(name for name, _ in CLASSES.values())
    reason = REFUSED.get(type_name.lower(), "it has no two moments for each weight, as Adam has")
    require(type_name.lower() in CLASSES, f"{key}.type={type_name} is none of {class_names}: {reason}")
    name, setting_names = CLASSES[type_name.lower()]
    for setting, value in settings.items():
        names_in_words = " and ".join(setting_names) or "none besides the learner's keys"
        require(
            setting in setting_names,
            f"{key}.params.{setting} is no setting of {name} here, which has {names_in_words}: leave it out",
        )
        number = setting == "momentum_decay"
        fits = type(value) in (int, float) and value >= 0 if number else isinstance(value, bool)
        what_fits = "a number of at least 0" if number else "true or false"
        require(fits, f"{key}.params.{setting}={value} must be {what_fits}")
    # DeepSpeed's Adam decays weights as AdamW does, unless `adam_w_mode` is false.
    if name == "Adam" and settings.pop("adam_w_mode", True):
        name = ADAMW
    return Optimizer(name, settings)


def with_learning_rate(config: TrainConfig) -> TrainConfig:
    """Fills in a learning rate that suits what is trained, where none was set."""
    if config.learner.learning_rate is not None:
        return config
    rate = ADAPTER_RATE if config.model.lora.rank else WHOLE_RATE
    return replace(config, learner=replace(config.learner, learning_rate=rate))


def learning_rate_factor(step: float, learner: LearnerConfig, num_steps: float) -> float:
    """Returns the share of the peak learning rate at optimizer step `step` (from 0): linear warm-up, then the
    schedule."""
    if step < learner.warmup_steps:
        return (step + 1) / learner.warmup_steps
    progress = min(1.0, (step - learner.warmup_steps) / max(1, num_steps - learner.warmup_steps))
    shape = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    floor = learner.min_lr_fraction
    return floor + (1 - floor) * shape[learner.schedule]
