"""This program records how much of a model a rank holds while ZeRO-3 loads it in shards. test_sharded.py runs it by
torchrun on two ranks.

Usage: sharded_worker.py MODEL_DIRECTORY OUTPUT_FILE. Rank 0 writes a JSON object of facts.
"""

import json
import sys

import torch

from grpo.host import environment

environment.prepare()

from deepspeed.runtime.zero import partition_parameters
from transformers import AutoModelForCausalLM

from grpo.config import TrainConfig
from grpo.config.parts import LearnerSettings
from grpo.learner import learner as learner_module
from grpo.learner import reference as reference_module
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.loading import load_policy
from tests.learner.models import files_of

DEVICE, LINEAR = torch.device("cpu"), torch.nn.functional.linear
allocated = {"most at once": 0}


def note(name, start):
    """Wraps `start` so that it first records how many numbers of a policy a rank holds: as whole parameters, and in
    its shards."""

    def started(policy, *arguments):
        allocated[name] = sum(parameter.data.numel() for parameter in policy.parameters())
        allocated[f"{name}'s shard"] = sum(parameter.ds_tensor.numel() for parameter in sharded(policy))
        return start(policy, *arguments)

    return started


def sharded(policy):
    return [parameter for parameter in policy.parameters() if hasattr(parameter, "ds_tensor")]


def buffers(policy):
    """Returns types and values of a model's buffers, such as its table of positions, by name."""
    return {name: [str(buffer.dtype), buffer.tolist()] for name, buffer in policy.named_buffers()}


def noted(enter):
    """Wraps `enter` so that it records the most numbers that are gathered at once while weights are read."""

    def entered(self):
        enter(self)
        allocated["most at once"] = max(
            allocated["most at once"], sum(parameter.data.numel() for parameter in getattr(self, "params", ()))
        )

    return entered


def kept(policy):
    """Returns how many linear layers keep a view of their gathered weight for the backward pass."""
    views = []

    def packed(tensor):
        views.append(isinstance(tensor._base, torch.nn.Parameter))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        for layer in (module for module in policy.modules() if isinstance(module, torch.nn.Linear)):
            layer(torch.ones(1, 3, layer.in_features, dtype=layer.weight.dtype, requires_grad=True))
    assert views
    return sum(views)


def main(model: str, output: str) -> None:
    init_distributed(DEVICE, 300)
    learner_module.start_engine = note("policy", learner_module.start_engine)
    reference_module.start_frozen_engine = note("reference", reference_module.start_frozen_engine)
    gathered = partition_parameters.GatheredParameters
    enter, gathered.__enter__ = gathered.__enter__, noted(gathered.__enter__)
    facts = {}
    for precision in ("float32", "bfloat16"):
        config = TrainConfig()
        config.learner.zero_stage, config.objective.kl.coefficient = 3, 0.1
        config.learner.precision = config.rollout.precision = precision
        allocated["most at once"] = 0
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
        facts[precision] = dict(allocated)
        facts[precision]["linear is torch's"] = torch.nn.functional.linear is LINEAR
        gathered.__enter__ = enter
        whole = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, precision)).state_dict()
        ours = {name: tensor.clone() for bucket in learner.weight_buckets() for name, tensor in bucket}
        facts[precision] |= {
            "numbers": sum(tensor.numel() for tensor in ours.values()),
            "largest": max(tensor.numel() for tensor in ours.values()),
            "weights differ": [name for name, tensor in ours.items() if not torch.equal(tensor, whole[name])],
            "reference differs": [
                name for name, tensor in learner.reference.state().items() if not torch.equal(tensor, whole[name])
            ],
            "flops": learner._flops.per_token,
            "buffers": buffers(learner.policy),
            "buffers of a whole model": buffers(load_policy(files_of(model), config.model, precision, 64)),
        }
        facts[precision]["kept"] = kept(learner.policy)
        gathered.__enter__ = noted(enter)
        learner.engine.destroy()
    config = TrainConfig()
    config.learner.precision = config.rollout.precision = "float32"
    facts["flops of a whole model"] = DeepSpeedLearner(
        LearnerSettings.of(config), files_of(model), DEVICE
    )._flops.per_token
    every = learner.collective.gather(facts)
    if learner.collective.rank == 0:
        with open(output, "w") as file:
            json.dump(every, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
