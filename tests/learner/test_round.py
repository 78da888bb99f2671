"""These tests run one round of the real learner in this process, and check its old log-probabilities and its
mismatch."""

import copy
import os
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo.algorithm.batches import BatchMaker
from grpo.config import TrainConfig
from grpo.config.parts import LearnerSettings
from grpo.learner.engine import end_distributed, init_distributed
from grpo.rollout.collect import in_steps
from grpo.types import RolloutGroup, RoundPlan, ScoredGroup
from tests.learner.groups import uneven_groups
from tests.learner.models import files_of, tiny_llama

DEVICE = torch.device("cpu")
PLAN = RoundPlan(4, 2, 2)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Yields a function that makes a learner of a configuration."""
    from grpo.learner.learner import DeepSpeedLearner

    model = tiny_llama(tmp_path_factory.mktemp("model"))
    environment = dict(os.environ)
    init_distributed(DEVICE, 300)
    yield lambda config: DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    end_distributed()
    # Later tests start processes of their own, which may meet over another network.
    os.environ.clear()
    os.environ.update(environment)


def test_a_learner_starts_where_another_library_has_ended_the_groups_of_an_earlier_one(start):
    """An engine of vLLM ends torch.distributed when it is closed."""
    start(config_of())
    torch.distributed.destroy_process_group()
    init_distributed(DEVICE, 300)
    assert start(config_of()).num_steps == 0


def config_of(**objective):
    config = TrainConfig()
    config.learner.precision = config.rollout.precision = "float32"
    config.learner.learning_rate = 1e-2
    config.learner.micro_batch_tokens = 60
    config.objective = replace(config.objective, **objective)
    return config


def scored():
    """Returns groups whose sampler had another policy than the learner."""
    return [group.scored for group in uneven_groups()]


def sampled_by(learner):
    """Returns the groups of `scored`, as if the learner's own policy had sampled them."""
    sampled = []
    for group, logprobs in zip(
        scored(), learner.logprobs([scored_group.group for scored_group in scored()]), strict=True
    ):
        completions = tuple(
            replace(completion, sampler_logprobs=tuple(values.tolist()))
            for completion, values in zip(group.group.completions, logprobs, strict=True)
        )
        rollout = RolloutGroup(group.group.prompt, completions, 0, 0)
        sampled.append(ScoredGroup(rollout, group.grades, group.included))
    return sampled


def batches_of(learner, config, groups):
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    return make(learner.add_logprobs(in_steps(groups, PLAN.refresh_interval)), PLAN)


def test_a_kl_in_the_reward_is_nothing_while_the_learner_is_its_reference(start):
    plain, penalized = config_of(), config_of()
    penalized.objective.kl = replace(plain.objective.kl, coefficient=0.5, place="reward", estimator="k1")
    learner = start(penalized)
    advantages = [
        [micro.advantages.tolist() for batch in batches_of(learner, config, scored()) for micro in batch.micro_batches]
        for config in (plain, penalized)
    ]
    for expected, penalized_values in zip(*advantages, strict=True):
        assert penalized_values == pytest.approx(expected, abs=1e-5)


def test_a_reference_that_moved_stays_where_it_is_in_runs_that_move_it_no_further(start, tmp_path):
    moving, resting = config_of(), config_of()
    moving.objective.kl = replace(moving.objective.kl, coefficient=0.1, refresh_every=1)
    resting.objective.kl = replace(moving.objective.kl, refresh_every=0)
    learner = start(moving)
    before = learner.reference.state()
    for batch in batches_of(learner, moving, scored()):
        learner.step(batch)
    moved = learner.reference.state()
    learner.save(str(tmp_path / "first"))
    # The run is resumed twice, each time without further moves.
    for source, target in (("first", "second"), ("second", "third")):
        resumed = start(resting)
        resumed.load(str(tmp_path / source))
        resumed.save(str(tmp_path / target))
    assert not all(torch.equal(tensor, before[name]) for name, tensor in moved.items())
    assert all(torch.equal(tensor, moved[name]) for name, tensor in resumed.reference.state().items())


@pytest.mark.parametrize("old_logprobs", ["learner", "sampler"])
def test_learning_within_a_round_is_no_mismatch_of_its_engines(start, old_logprobs):
    config = config_of(old_logprobs=old_logprobs)
    learner = start(config)
    reports = [learner.step(batch) for batch in batches_of(learner, config, sampled_by(learner))]
    assert reports[1].means["policy/old_kl"].value > 1e-3, "the first step did not change the policy"
    gap = reports[0].means["mismatch/mean_abs"] + reports[1].means["mismatch/mean_abs"]
    assert gap.value < 1e-5
    counts = [report.means["mismatch/mean_abs"].count for report in reports]
    assert counts[0] > 0 and (counts[1] > 0) is (old_logprobs == "learner")


def test_a_second_pass_compares_with_the_policy_that_began_the_round(start):
    """The same batch is learned twice: the first pass is on-policy, and the second has the ratio of one step."""
    config = config_of(name="unclipped")
    config.dynamics.passes = 2
    learner = start(config)
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    batches = make(learner.add_logprobs([sampled_by(learner)]), RoundPlan(4, 2, 4, passes=2))
    first, second = [learner.step(batch) for batch in batches]
    assert first.means["policy/old_kl"].value == 0
    assert second.means["policy/old_kl"].value > 1e-3
    assert second.means["mismatch/mean_abs"].value < 1e-5


def test_a_step_is_compared_with_gradients_of_new_samples_alone(start):
    """In a second pass the samples have made the steps before, so that even noise would seem to agree with them."""
    config = config_of()
    config.dynamics.passes = 2
    learner = start(config)
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    batches = make(learner.add_logprobs([sampled_by(learner)] * 2), RoundPlan(4, 4, 4, passes=2))
    reports = [learner.step(batch) for batch in batches]
    assert [report.means["step/cosine"].count > 0 for report in reports] == [False, True, False, False]
    assert [report.means["path/steps"].count for report in reports] == [0, 1, 0, 0]


def plain_logprobs(model, group, temperature):
    """Yields log π of each completion of a group, as transformers computes one sequence."""
    prompt = torch.tensor(group.group.prompt.token_ids)
    for completion in group.group.completions:
        ids = torch.cat([prompt, torch.tensor(completion.token_ids)])
        logits = model(ids[None]).logits[0, len(prompt) - 1 : -1] / temperature
        yield logits.log_softmax(-1).gather(1, ids[len(prompt) :, None])[:, 0]


def plain_step(model, optimizer, groups, old, config):
    """Takes one optimizer step on the clipped loss, computed directly from its formula."""
    completions = [pair for group in groups for pair in zip(group.group.completions, group.included, strict=True)]
    tokens = sum(len(completion.token_ids) for completion, used in completions if used)
    for group, old_of_group in zip(groups, old, strict=True):
        rewards = torch.tensor([grade.reward for grade in group.grades])
        advantages = (rewards - rewards.mean()) / rewards.std(correction=0).clamp_min(1e-6)
        logprobs = plain_logprobs(model, group, config.rollout.sampling.temperature)
        for used, advantage, new, before in zip(group.included, advantages, logprobs, old_of_group, strict=True):
            ratio = (new - before).exp()
            clipped = ratio.clamp(1 - config.objective.clip_low, 1 + config.objective.clip_high)
            loss = -torch.minimum(ratio * advantage, clipped * advantage).sum() / tokens
            (loss * used).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.learner.max_gradient_norm)
    optimizer.step()
    optimizer.zero_grad()


def test_rounds_of_several_steps_are_plain_adamw_on_the_clipped_loss(start):
    """The weights after each of two rounds of two steps are compared with transformers and torch's AdamW."""
    config = config_of(clip_low=0.2, clip_high=0.28)
    config.learner.learning_rate, config.learner.warmup_steps, config.learner.schedule = 1e-3, 0, "constant"
    config.rollout.sampling.temperature = 0.7
    learner = start(config)
    plain = copy.deepcopy(learner.policy.language_model).float()
    plain.config._attn_implementation = "eager"
    before = {name: value.detach().clone() for name, value in plain.named_parameters()}
    learner_settings = {"betas": config.learner.betas, "eps": config.learner.adam_epsilon, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, **learner_settings)
    for _ in range(2):
        steps = in_steps(groups := sampled_by(learner), PLAN.refresh_interval)
        with torch.no_grad():
            old = [[list(plain_logprobs(plain, group, 0.7)) for group in step] for step in steps]
        reports = [learner.step(batch) for batch in batches_of(learner, config, groups)]
        for step, old_of_step in zip(steps, old, strict=True):
            plain_step(plain, optimizer, step, old_of_step, config)
        assert reports[1].means["policy/old_kl"].value > 1e-5, "the second step is not off-policy"
        trained = dict(learner.policy.language_model.named_parameters())
        off = sum(float((trained[name] - value).square().sum()) for name, value in plain.named_parameters())
        moved = sum(float((value - before[name]).square().sum()) for name, value in plain.named_parameters())
        assert off**0.5 < 2e-3 * moved**0.5


class Waits(TorchDispatchMode):
    """Counts operations whose result the host reads; on a GPU the host would wait for each of them."""

    count = 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        self.count += operation.name() in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")
        return operation(*arguments, **(named or {}))


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_host_never_waits_between_micro_batches(start, ratio):
    config = config_of(ratio=ratio, old_logprobs="sampler")
    config.learner.logit_chunk_tokens = 7
    config.objective.correction.veto = 1e-4
    learner, counts = start(config), []
    for tokens in (10_000, 60):
        config.learner.micro_batch_tokens = tokens
        [batch] = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)(
            learner.add_logprobs([scored()]), RoundPlan(4, 1, 4)
        )
        with Waits() as waits:
            learner.step(batch)
        counts.append((len(batch.micro_batches), waits.count))
    (few, waited), (many, waited_for_more) = counts
    assert few == 1 < many
    assert waited_for_more == waited
