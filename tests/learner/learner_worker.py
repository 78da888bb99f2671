"""This program tries reference policies, LoRA, resume and NaN under each ZeRO stage. test_learner.py runs it by
torchrun.

Usage: learner_worker.py MODEL_DIRECTORY OUTPUT_FILE. Rank 0 writes a JSON object of facts per stage.
"""

import gc
import itertools
import json
import sys
import tempfile
from pathlib import Path

import torch

from grpo.host import environment

environment.prepare()

from deepspeed.utils import safe_get_full_fp32_param

from grpo.algorithm.batches import BatchMaker
from grpo.algorithm.loss import policy_loss
from grpo.config import TrainConfig, UserError
from grpo.config.optimizer import learning_rate_factor
from grpo.config.parts import LearnerSettings
from grpo.learner import offloading
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.loading import load_policy
from grpo.learner.weights import gathered, weight_buckets
from grpo.rollout.collect import in_steps
from grpo.types import RoundPlan
from grpo.types.weights import ADAPTERS, BASE, DOWN_SUFFIX, MERGED, UP_SUFFIX
from tests.learner.groups import uneven_groups
from tests.learner.models import files_of

DEVICE = torch.device("cpu")


def config_for(stage, precision="float32", **changes):
    config = TrainConfig()
    config.learner.zero_stage, config.learner.learning_rate = stage, 1e-2
    config.learner.precision = config.rollout.precision = precision
    config.learner.micro_batch_tokens = 60
    for path, value in changes.items():
        *rooms, name = path.split("__")
        owner = config
        for room in rooms:
            owner = getattr(owner, room)
        setattr(owner, name, value)
    return config


def scored(learner):
    return [group.scored for group in uneven_groups()][learner.collective.rank :: learner.collective.world_size]


PLAN = RoundPlan(4, 1, 4)


def take_step(learner, config, plan=PLAN):
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    steps = in_steps(scored(learner), plan.refresh_interval)
    reports = [learner.step(batch) for batch in make(learner.add_logprobs(steps), plan)]
    return reports[-1]


def weights(learner):
    return torch.cat([tensor.flatten() for bucket in learner.weight_buckets() for _, tensor in bucket])


def adapters(learner):
    return torch.cat([tensor.flatten() for bucket in learner.weight_buckets(ADAPTERS) for _, tensor in bucket])


def own_weights_and_masters(learner):
    """Returns all weights as float64 numbers, in the learner's precision and as float32 masters."""
    parameters = list(learner.policy.parameters())
    with gathered(parameters):
        own = torch.cat([parameter.detach().double().flatten() for parameter in parameters])
    return own, torch.cat([safe_get_full_fp32_param(parameter).double().flatten() for parameter in parameters])


def kl(report):
    return report.means["policy/reference_kl"].value


def reference_facts(model, stage, precision):
    """Returns the KL of four steps to three references: the start, a copy refreshed every second step, and a moving
    average."""
    facts = {}
    for name, every, rate in (("start", 0, 1.0), ("copied", 2, 1.0), ("averaged", 1, 0.5)):
        config = config_for(
            stage,
            precision,
            objective__kl__coefficient=0.1,
            objective__kl__refresh_every=every,
            objective__kl__refresh_rate=rate,
            # Coarser than the learner where it can be: what a reference is given must not go by it.
            rollout__precision="bfloat16",
        )
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
        facts[name] = [kl(take_step(learner, config)) for _ in range(4)]
        learner.engine.destroy()
    return facts


def average_facts(model, stage, precision):
    """Returns the types of a reference that moves by a thousandth of the way at each step, and the share of its numbers
    that moved."""
    kl_settings = {"objective__kl__coefficient": 0.1, "objective__kl__refresh_every": 1}
    config = config_for(stage, precision, objective__kl__refresh_rate=1e-3, **kl_settings)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    before = learner.reference.state()
    for _ in range(3):
        take_step(learner, config)
    after = learner.reference.state()
    learner.engine.destroy()
    moved = sum((after[name] != tensor).sum().item() for name, tensor in before.items())
    types = sorted({str(tensor.dtype) for tensor in after.values()})
    return {"types": types, "moved": moved / sum(tensor.numel() for tensor in before.values())}


def lora_facts(model, stage, precision):
    config = config_for(stage, precision, model__lora__rank=4, objective__kl__coefficient=0.1)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    start, drawn = weights(learner), adapters(learner)
    before = learner._logprobs([scored_group.group for scored_group in scored(learner)], learner._from_reference)
    kls = [kl(take_step(learner, config)) for _ in range(2)]
    after = learner._logprobs([scored_group.group for scored_group in scored(learner)], learner._from_reference)
    moved = (weights(learner) - start).abs().max().item()
    take_step(learner, config)
    forms = {
        form: {name: tensor.clone() for bucket in learner.weight_buckets(form) for name, tensor in bucket}
        for form in (MERGED, BASE, ADAPTERS)
    }
    errors, changes = [], []
    for name, merged in forms[MERGED].items():
        base, halves = (
            forms[BASE][name].float(),
            [forms[ADAPTERS].get(name + half) for half in (UP_SUFFIX, DOWN_SUFFIX)],
        )
        change = halves[0].float() @ halves[1].float() if halves[0] is not None else torch.zeros_like(base)
        errors.append((merged.float() - base - change).flatten())
        changes.append(change.flatten())
    # How much of the change arrives: 1, if the errors of rounding average out.
    errors, changes = torch.cat(errors), torch.cat(changes)
    arrived = 1 + (errors @ changes / changes.square().sum()).item()
    sent = {form: sum(tensor.numel() for tensor in tensors.values()) for form, tensors in forms.items()}
    same = all(torch.equal(a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True))
    apart = sent_apart(learner, forms[ADAPTERS])
    learner.engine.destroy()
    torch.rand(1)
    again, other = (
        adapters(
            DeepSpeedLearner(
                LearnerSettings.of(config_for(stage, precision, model__lora__rank=4, seed=seed)),
                files_of(model),
                DEVICE,
            )
        )
        for seed in (0, 1)
    )
    seeded = [torch.equal(drawn, again), torch.equal(drawn, other)]
    share = sent[ADAPTERS] / sent[BASE]
    facts = {"kl": kls, "moved": moved, "reference_stays": same, "share_sent": share, "seeded": seeded}
    return facts | {"error": errors.abs().max().item(), "arrived": arrived, "sent_apart": apart}


def sent_apart(learner, expected):
    """Returns how many bytes of frozen weights are on the device while adapters alone are sent from there, whether
    these are as expected, and whether all weights are the same afterwards."""
    before = weights(learner)
    states = offloading.LearnerStates(learner.engine, DEVICE, sends_base=False)
    states.offload(keep_weights=True)
    frozen = [parameter for parameter in learner.policy.parameters() if not parameter.requires_grad]
    stored = [getattr(parameter, "ds_tensor", parameter).untyped_storage() for parameter in frozen]
    # A weight that is mapped from a file takes no memory of a CPU.
    num_bytes = sum(storage.nbytes() for storage in stored if storage.resizable())
    arrived = {name: half.clone() for bucket in learner.weight_buckets(ADAPTERS) for name, half in bucket}
    states.offload()
    states.reload()
    same = all(torch.equal(arrived[name], half) for name, half in expected.items())
    return [num_bytes, same, torch.equal(weights(learner), before)]


def resume_facts(model, stage, precision):
    config = config_for(stage, precision, learner__warmup_steps=4)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    take_step(learner, config)
    folder = learner.collective.gather(tempfile.mkdtemp())[0]
    learner.save(folder)
    straight = [take_step(learner, config) for _ in range(2)]
    learner.load(folder)
    again = [take_step(learner, config) for _ in range(2)]
    # Back to the same policy, with steps counted on; a checkpoint of it is resumed at that count, and at the
    # learning rate that is configured then.
    learner.rewind(folder)
    later = learner.collective.gather(tempfile.mkdtemp())[0]
    learner.save(later)
    rewound = [take_step(learner, config)]
    learner.load(later)
    config.learner.learning_rate /= 2
    resumed = [take_step(learner, config)]
    learner.engine.destroy()
    every = (straight, again, rewound, resumed)
    return [[(r.step, r.gradient_norm, r.learning_rate) for r in reports] for reports in every]


def rate_facts(model, stage, precision):
    """Returns the learning rates of steps under plans that scale the schedule's rate, and whether the weights moved."""
    config = config_for(stage, precision, learner__warmup_steps=4)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    rates, moved = [], []
    for factor in (1.0, 0.0, 0.5):
        before = weights(learner)
        rates.append(take_step(learner, config, RoundPlan(4, 1, 4, learning_rate_factor=factor)).learning_rate)
        moved.append(not torch.equal(weights(learner), before))
    learner.engine.destroy()
    return {"rates": rates, "moved": moved}


def nan_facts(model, stage, precision):
    config = config_for(stage, precision, learner__max_skipped_steps=2)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    start = weights(learner)
    config.objective.clip_low = float("nan")
    first = take_step(learner, config)
    unchanged = torch.equal(weights(learner), start)
    config.objective.clip_low = 0.2
    healthy = take_step(learner, config)
    config.objective.clip_low = float("nan")
    take_step(learner, config)
    try:
        take_step(learner, config)
        error = ""
    except UserError as caught:
        error = str(caught)
    learner.engine.destroy()
    return {"applied": [first.applied, healthy.applied], "unchanged": unchanged, "error": error}


def saving_facts(model, stage, precision):
    """Returns gradient norms of two steps: plain, with gradient checkpointing, and with the optimizer in main memory
    too, as in the recipes for GPUs."""
    # With dither a sum in another order, 1e-8 apart, would take some weights to another bfloat16.
    norms = []
    for checkpointing, offload in ((False, False), (True, False), (True, True)):
        config = config_for(stage, precision, learner__gradient_checkpointing=checkpointing, learner__dither=False)
        config.learner.offload_optimizer = offload
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
        norms.append([take_step(learner, config).gradient_norm for _ in range(2)])
        learner.engine.destroy()
    return norms


def storages():
    """Returns the bytes of every storage of living tensors on the device, by the storage's identity. Mapped files are
    left out."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    sizes = [tensor.untyped_storage() for tensor in tensors if tensor.device == DEVICE]
    return {storage._cdata: storage.nbytes() for storage in sizes if storage.resizable()}


def offload_facts(model, stage, precision):
    """Returns gradient norms of three steps with and without offloaded states between the steps, and whether the final
    weights are the same. "held" has the bytes on the device before and after the states leave."""
    # Smaller than the states, so that these are cut.
    offloading.CHUNK = 2**16
    outcomes, sizes = [], []
    for away in (False, True):
        config = config_for(stage, precision, objective__kl__coefficient=0.1)
        before = storages()
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
        states, norms = learner.states(), []
        for _ in range(3):
            norms.append(take_step(learner, config).gradient_norm)
            if away:
                sizes = [sum(size for name, size in storages().items() if name not in before)]
                states.offload(keep_weights=True)
                sent = weights(learner)
                states.offload()
                kept = sum(chunk.nbytes for chunk in states._memory._chunks) + sent.untyped_storage().nbytes()
                # Copies of earlier weights are in the host's memory at all times.
                kept += sum(copy.nbytes for copy in learner._products.state().values())
                sizes.append(sum(size for name, size in storages().items() if name not in before) - kept)
                states.reload()
                # The weights sent during offloading equal those after the reload.
                assert torch.equal(sent, weights(learner))
        outcomes.append((norms, weights(learner)))
        learner.engine.destroy()
    (norms, plain), (others, back) = outcomes
    return {"norms": [norms, others], "same": torch.equal(plain, back), "held": sizes}


def hpz_facts(model):
    """Returns gradient norms of two steps with and without a second copy of the shards (hpZ), and the largest
    difference of weights."""
    outcomes = []
    for size in (0, 2):
        config = config_for(3, learner__hpz_partition_size=size)
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
        norms = [take_step(learner, config).gradient_norm for _ in range(2)]
        outcomes.append((norms, weights(learner)))
        learner.engine.destroy()
    (plain, without), (norms, copied) = outcomes
    return {"plain": plain, "norms": norms, "different": (without - copied).abs().max().item()}


def changed_facts(model):
    """Returns how training continues from checkpoints that were read under another ZeRO stage and precision, saved
    there, and read under the first settings again."""
    changes = []
    for stage, other in ((1, 2), (3, 3)):
        first, then = config_for(stage), config_for(other, learner__precision="bfloat16")
        learner = DeepSpeedLearner(LearnerSettings.of(first), files_of(model), DEVICE)
        take_step(learner, first)
        folder, later = learner.collective.gather((tempfile.mkdtemp(), tempfile.mkdtemp()))[0]
        learner.save(folder)
        start, norm = weights(learner), take_step(learner, first).gradient_norm
        learner.engine.destroy()
        learner = DeepSpeedLearner(LearnerSettings.of(then), files_of(model), DEVICE)
        learner.load(folder)
        away = ((weights(learner) - start).abs() / start.abs().clamp(min=1e-3)).max().item()
        learner.save(later)
        learner.engine.destroy()
        learner = DeepSpeedLearner(LearnerSettings.of(first), files_of(model), DEVICE)
        learner.load(later)
        back = torch.equal(weights(learner), start)
        again = take_step(learner, first)
        learner.engine.destroy()
        names = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
        changes.append([away, back, [again.step, again.gradient_norm], [2, norm], names])
    return changes


OPTIMIZERS = {
    "Adam": {"adam_w_mode": False},
    "RAdam": {"decoupled_weight_decay": True},
    "NAdam": {"momentum_decay": 0.1},
    "Adamax": {},
}


OPTIMIZER_CASES = [("Adam", 1), ("RAdam", 2), ("NAdam", 1), ("NAdam", 3), ("Adamax", 3), ("NAdam", 1, "bfloat16")]


def plain_weights(learner, model, config, name, steps):
    """Returns the weights after `steps` steps without DeepSpeed: gradients of autograd, summed over the ranks, and
    torch's optimizer `name` over the model's own parameters."""
    policy = load_policy(files_of(model), config.model, "float32", 64)
    own = {setting: value for setting, value in OPTIMIZERS[name].items() if setting != "adam_w_mode"}
    adams = {"betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 1.0}
    optimizer = getattr(torch.optim, name)(policy.parameters(), **adams, **own)
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    for step in range(steps):
        [batch] = make(learner.add_logprobs([scored(learner)]), PLAN)
        optimizer.zero_grad(set_to_none=False)
        for micro in batch.micro_batches:
            policy_loss(*policy(micro, 1.0), micro, config.objective)[0].backward()
        for parameter in policy.parameters():
            torch.distributed.all_reduce(parameter.grad)
        factor = learning_rate_factor(step, config.learner, config.num_steps)
        optimizer.param_groups[0]["lr"] = config.learner.learning_rate * factor
        optimizer.step()
    return torch.cat(
        [tensor.flatten() for bucket in weight_buckets(policy, 2**20, torch.float32) for _, tensor in bucket]
    )


def optimizer_facts(model, name, stage, precision="float32"):
    """Returns how far four steps under ZeRO move a weight, and lead away from the same steps without DeepSpeed. "same"
    says whether a checkpoint of the second step leads to the same weights, though states leave the device between
    steps."""
    # An epsilon well above rounding: otherwise the sign of a gradient that is nearly zero decides a whole step.
    changes = {"learning_rate": 1e-3, "adam_epsilon": 1e-4, "betas": [0.8, 0.9], "weight_decay": 1.0, "warmup_steps": 6}
    changes = {f"learner__{key}": value for key, value in changes.items()} | {"learner__max_gradient_norm": 0.0}
    config = config_for(stage, precision, **changes)
    config.learner.deepspeed = {"optimizer": {"type": name, "params": OPTIMIZERS[name]}}
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    _, start = own_weights_and_masters(learner)
    for step in range(4):
        if step == 2:
            folder = learner.collective.gather(tempfile.mkdtemp())[0]
            learner.save(folder)
        take_step(learner, config)
    end, states = weights(learner), learner.states()
    moved = own_weights_and_masters(learner)[1] - start
    learner.load(folder)
    for _ in range(2):
        states.offload()
        states.reload()
        take_step(learner, config)
    facts = {"moved": moved.abs().max().item(), "same": torch.equal(weights(learner), end)}
    if precision == "float32":
        facts["away"] = (end - plain_weights(learner, model, config, name, 4)).abs().max().item()
    learner.engine.destroy()
    return facts


def dither_facts(model, stage):
    """Returns what share of a small step reaches bfloat16 weights, and what share of the masters begins at the weights
    themselves, without dithered masters and with them. "same" says whether both begin with the same weights."""
    facts, starts = [], []
    for dithered in (False, True):
        config = config_for(stage, "bfloat16", learner__learning_rate=1e-5, learner__dither=dithered)
        learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
        start, masters = own_weights_and_masters(learner)
        take_step(learner, config)
        own, moved = own_weights_and_masters(learner)
        step = moved - masters
        arrived = ((own - start) @ step / step.square().sum()).item()
        facts.append({"arrived": arrived, "at_weight": (masters == start).double().mean().item()})
        starts.append(start)
        learner.engine.destroy()
    return {"plain": facts[0], "dithered": facts[1], "same": torch.equal(*starts)}


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (self.file, "w")


def refused_facts(model):
    """Returns the messages for a checkpoint that holds code and for one of another model, and whether the code ran."""
    config, lines = config_for(1), {}
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    folder = learner.collective.gather(tempfile.mkdtemp())[0]
    learner.save(folder)
    learner.engine.destroy()
    for name, changes in (("other", {"model__lora__rank": 4}), ("same", {}), ("resharded", {"learner__zero_stage": 2})):
        if name == "same" and learner.collective.rank == 0:
            for file in Path(folder).glob("*/*optim_states.pt"):
                torch.save({"optimizer_state_dict": Hostile(f"{folder}/ran")}, file)
        learner = DeepSpeedLearner(LearnerSettings.of(config_for(1, **changes)), files_of(model), DEVICE)
        learner.collective.barrier()
        try:
            learner.load(folder)
        except UserError as error:
            lines[name] = str(error)
        learner.engine.destroy()
    return lines | {"ran": Path(folder, "ran").exists()}


def main(model, output):
    init_distributed(DEVICE, 300)
    facts = {}
    parts = (reference_facts, average_facts, lora_facts, resume_facts, rate_facts, nan_facts)
    parts += (saving_facts, offload_facts)
    for stage, precision in itertools.product((1, 2, 3), ("float32", "bfloat16")):
        facts_of_case = facts[f"{stage}/{precision}"] = {}
        for part in parts:
            facts_of_case[part.__name__] = part(model, stage, precision)
            # Every engine looks through all that there is for garbage, several times, also through what others left.
            gc.freeze()
    facts["dither"] = {str(stage): dither_facts(model, stage) for stage in (1, 2, 3)}
    facts["hpz"] = hpz_facts(model)
    facts["optimizers"] = {" ".join(map(str, case)): optimizer_facts(model, *case) for case in OPTIMIZER_CASES}
    facts["changed"] = changed_facts(model)
    facts["refused"] = refused_facts(model)
    if torch.distributed.get_rank() == 0:
        with open(output, "w") as file:
            json.dump(facts, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
