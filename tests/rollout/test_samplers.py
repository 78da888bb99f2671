"""These tests compare real vLLM and transformers samplers with the learner: same tokens, same log-probabilities."""

import os
from dataclasses import replace

import pytest
import torch

from benchmarks.small_models import tiny_tokenizer
from grpo.algorithm.batches import BatchMaker
from grpo.config import SamplingConfig, TrainConfig, UserError
from grpo.config.errors import Interrupted
from grpo.config.parts import LearnerSettings, SamplerSettings
from grpo.host.signals import HURRY, StopRequest, handled_as_before, interruptible
from grpo.interfaces import Draw
from grpo.run.clocks import Wrapped
from grpo.types import Grade, Mean, Problem, Prompt, RoundPlan, ScoredGroup, StepReport
from grpo.weight_sync.refresh import CheckedSync, Probe, WeightSyncError
from tests.learner.models import files_of, tiny_llama

TEMPERATURE = 0.7
DEVICE = torch.device("cpu")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config():
    value = TrainConfig()
    value.learner.precision = value.rollout.precision = "float32"
    value.learner.learning_rate = 1e-2
    value.model.max_length = 64
    value.rollout.kv_cache_gib = 0.0625
    value.rollout.sampling = SamplingConfig(temperature=TEMPERATURE, max_tokens=12)
    return value


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tiny_llama(tmp_path_factory.mktemp("model"), tied=True)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def learner(config, model):
    from grpo.learner.engine import init_distributed
    from grpo.learner.learner import DeepSpeedLearner

    environment = dict(os.environ)
    init_distributed(DEVICE, 300)
    yield DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    # The rendezvous is announced in the environment, and later tests start processes of their own.
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(scope="module")
def vllm_sampler(config, model):
    from grpo.rollout.vllm_sampler import VllmSampler

    sampler = VllmSampler(SamplerSettings.of(config), files_of(model, tiny_tokenizer()))
    yield sampler
    sampler.close()


@pytest.fixture(scope="module")
def transformers_sampler(config, model):
    from grpo.rollout.transformers_sampler import TransformersSampler

    return TransformersSampler(SamplerSettings.of(config), files_of(model, tiny_tokenizer()), DEVICE)


@pytest.fixture(params=["vllm", "transformers"])
def sampler(request):
    return request.getfixturevalue(f"{request.param}_sampler")


def prompts(count=5):
    generator = torch.Generator().manual_seed(1)
    lengths = [3, 40, 7, 33, 18][:count]
    return [
        Prompt(Problem(f"p{index}", "q", "a"), tuple(torch.randint(3, 64, (length,), generator=generator).tolist()))
        for index, length in enumerate(lengths)
    ]


def scored(groups):
    grades = [tuple(Grade(float(i % 2), i % 2 == 1, {}) for i in range(len(g.completions))) for g in groups]
    return [ScoredGroup(g, graded, (True,) * len(graded)) for g, graded in zip(groups, grades, strict=True)]


def largest_mismatch(learner, groups):
    return max(
        (torch.tensor(completion.sampler_logprobs) - logprobs).abs().max().item()
        for group, per_group in zip(groups, learner.logprobs(groups), strict=True)
        for completion, logprobs in zip(group.completions, per_group, strict=True)
    )


def test_a_sampler_leaves_its_completions_where_the_run_has_to_save_at_once_and_can_sample_again(sampler):
    draw = Draw(prompts(2), 2)
    before = sampler.generate(draw)
    with handled_as_before():
        StopRequest(["hurry"])
        os.kill(os.getpid(), HURRY)
        with interruptible(), pytest.raises(Interrupted):
            sampler.generate(draw)
        # A comparison of sampler and learner after a round's last step is finished.
        assert sampler.generate(draw) == before
    assert sampler.generate(draw) == before


def test_the_engines_cache_has_the_configured_size(vllm_sampler):
    """A token takes 2 layers × 2 (keys and values) × 2 heads × 32 numbers × 4 bytes = 1 KiB, and the cache has 64 MiB.
    A completion has up to 64 tokens."""
    cache = vllm_sampler._llm.llm_engine.vllm_config.cache_config
    assert cache.num_gpu_blocks * cache.block_size == 65536
    assert cache.kv_cache_max_concurrency == 1024


def test_sampler_and_learner_logprobs_agree_before_and_after_a_step(config, learner, sampler):
    sync = CheckedSync(max_mismatch=0.5)
    sync.refresh(learner, sampler)
    groups = sampler.generate(Draw(prompts(), 4))
    assert largest_mismatch(learner, groups) < 1e-4
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    plan = RoundPlan(4, 1, 5)
    report = learner.step(make(learner.add_logprobs([scored(groups)]), plan)[0])
    sync.check(report)
    assert report.means["mismatch/mean_abs"].value < 1e-5
    assert largest_mismatch(learner, groups) > 1e-2, "the step did not change the policy: the test shows nothing"
    sync.refresh(learner, sampler)
    assert sampler.policy_version == learner.num_steps
    assert largest_mismatch(learner, sampler.generate(Draw(prompts(), 4))) < 1e-4


def test_samples_repeat_by_prompt_sample_and_version_whatever_else_is_in_the_batch(sampler):
    together = sampler.generate(Draw(prompts(), 4))
    alone = sampler.generate(Draw(prompts()[1:2], 2))
    assert [c.token_ids for c in alone[0].completions] == [c.token_ids for c in together[1].completions[:2]]
    assert len({c.token_ids for c in together[1].completions}) > 1
    version = sampler.policy_version
    sampler.finish_weights(version + 1)
    other = sampler.generate(Draw(prompts(), 4))
    sampler.finish_weights(version)
    assert [c.token_ids for c in other[1].completions] != [c.token_ids for c in together[1].completions]


def test_samples_drawn_later_and_unevenly_are_those_of_one_draw(sampler):
    together = sampler.generate(Draw(prompts(), 4))
    later = sampler.generate(Draw(prompts()[:2], [1, 2], first_sample=2))
    assert [[c.token_ids for c in group.completions] for group in later] == [
        [c.token_ids for c in together[0].completions[2:3]],
        [c.token_ids for c in together[1].completions[2:4]],
    ]


def test_no_answer_is_made_before_a_completion_has_ended(vllm_sampler, monkeypatch):
    engine, made = vllm_sampler._llm.llm_engine, []
    step = engine.step

    def counted():
        outputs = step()
        made.extend(outputs)
        return outputs

    monkeypatch.setattr(engine, "step", counted)
    groups = vllm_sampler.generate(Draw(prompts(), 4))
    assert sum(len(c.token_ids) for group in groups for c in group.completions) > 20
    assert len(made) == 20


def test_groups_that_take_too_long_are_given_up_and_the_engine_goes_on(vllm_sampler, monkeypatch):
    draw, completed = Draw(prompts(), 4), []
    whole = vllm_sampler.generate(draw)
    monkeypatch.setattr(vllm_sampler._settings.rollout, "group_deadline_seconds", 1e-9)
    groups = vllm_sampler.generate(draw, lambda place, group: completed.append(place))
    assert sorted(completed) == [0, 1, 2, 3, 4]
    # A completion of one token ends with the first step of the engine, after which all others are given up.
    written = {(c.late, len(c.token_ids)) for group in groups for c in group.completions}
    assert (True, 0) in written and written <= {(True, 0), (False, 1)}
    assert not vllm_sampler._llm.llm_engine.has_unfinished_requests()
    # With time enough they are what they are without a limit, also where the engine gets no more than six at once.
    monkeypatch.setattr(vllm_sampler._settings.rollout, "group_deadline_seconds", 100.0)
    monkeypatch.setattr(vllm_sampler._settings.rollout, "max_concurrent", 6)
    assert [[c.token_ids for c in group.completions] for group in vllm_sampler.generate(draw)] == [
        [c.token_ids for c in group.completions] for group in whole
    ]


def test_completions_end_at_the_end_token_or_are_truncated(sampler):
    completions = [c for group in sampler.generate(Draw(prompts(), 8)) for c in group.completions]
    assert {c.truncated for c in completions} == {True, False}
    for completion in completions:
        assert len(completion.token_ids) == len(completion.sampler_logprobs)
        assert (completion.token_ids[-1] == 2) != completion.truncated
        assert 2 not in completion.token_ids[:-1]


def test_greedy_sampling_takes_the_most_likely_token(learner, sampler, model):
    from transformers import AutoModelForCausalLM

    sampler_of_start = sampler
    CheckedSync(0.5).refresh(learner, sampler_of_start)
    group = sampler_of_start.generate(Draw(prompts(1), 1, SamplingConfig(temperature=0.0, max_tokens=5)))[0]
    weights = {name: tensor for bucket in learner.weight_buckets() for name, tensor in bucket}
    language_model = AutoModelForCausalLM.from_pretrained(model)
    language_model.load_state_dict(weights, strict=False)
    ids = list(group.prompt.token_ids)
    for token in group.completions[0].token_ids:
        assert language_model(torch.tensor([ids])).logits[0, -1].argmax().item() == token
        ids.append(token)


def test_a_corrupted_transfer_is_caught_and_names_the_tensor_group(learner, sampler):
    class Corrupting:
        """This wrapper of the sampler flips one bit of one weight that is loaded through it."""

        def __getattr__(self, name):
            return getattr(sampler, name)

        def load_weights(self, bucket):
            broken = [(name, tensor.clone()) for name, tensor in bucket]
            for name, tensor in broken:
                if "layers.1.mlp.up_proj" in name:
                    tensor.view(torch.int32)[3, 5] ^= 1
            sampler.load_weights(broken)

    with pytest.raises(WeightSyncError, match="layer 1"):
        CheckedSync(0.5).refresh(learner, Corrupting())
    CheckedSync(0.5).refresh(learner, sampler)


def test_a_sampler_that_drifted_away_stops_the_run(config, learner, transformers_sampler):
    """The sampler's weights are changed without the learner, by as much as a wrong transfer would change them."""
    sync, sampler = CheckedSync(max_mismatch=0.5), transformers_sampler
    make = BatchMaker(config.normalization, config.objective, config.learner, learner.collective)
    plan = RoundPlan(4, 1, 5)

    def report():
        sync.refresh(learner, sampler)
        if drifts:
            for bucket in learner.weight_buckets(sampler.begin_refresh()):
                sampler.load_weights([(name, 3.0 * tensor) for name, tensor in bucket])
        groups = sampler.generate(Draw(prompts(), 4))
        return learner.step(make(learner.add_logprobs([scored(groups)]), plan)[0])

    drifts = False
    sync.check(report())
    drifts = True
    with pytest.raises(WeightSyncError, match="disagree by"):
        sync.check(report())
    sync.refresh(learner, sampler)


def test_with_rounds_sampled_ahead_both_sides_are_compared_right_after_a_refresh(config, learner, sampler):
    probe = Probe(prompts(2), SamplingConfig(temperature=TEMPERATURE, max_tokens=8), learner.collective)
    CheckedSync(1e-4, probe).refresh(learner, sampler)
    # A sampler at another temperature holds the right weights, and makes another policy of them.
    hot = Probe(prompts(2), SamplingConfig(temperature=2.0, max_tokens=8), learner.collective)
    with pytest.raises(WeightSyncError, match=r"disagree by .* compare rollout.precision with learner.precision"):
        CheckedSync(0.1, hot).refresh(learner, sampler)
    # The first step of what was sampled ahead says nothing about it.
    drifted = StepReport(1, True, 1.0, 1e-3, 0.0, {"mismatch/mean_abs": Mean(8.0, 4)})
    CheckedSync(0.5, probe).check(drifted)
    with pytest.raises(WeightSyncError, match="disagree by 2 nats"):
        CheckedSync(0.5).check(drifted)
    CheckedSync(0.5).check(replace(drifted, means={"mismatch/mean_abs": Mean(0.0, 0)}))


def test_both_sides_are_compared_before_anything_is_sampled_for_learning(config, learner, transformers_sampler):
    sampler, slept = transformers_sampler, []
    hot = Probe(prompts(2), SamplingConfig(temperature=2.0, max_tokens=8), learner.collective)
    with pytest.raises(WeightSyncError, match="sampler and learner disagree by"):
        CheckedSync(0.1, hot, after_each=False).begin(learner, sampler)
    probe = replace(hot, sampling=SamplingConfig(temperature=TEMPERATURE, max_tokens=8))
    resting = Wrapped(sampler, sleep=lambda: slept.append(sampler.policy_version))
    CheckedSync(1e-4, probe, after_each=False).begin(learner, resting)
    assert slept == [learner.num_steps] == [sampler.policy_version]
    # The rounds compare what they sample.
    once = CheckedSync(0.1, hot, after_each=False)
    once.refresh(learner, sampler)
    with pytest.raises(WeightSyncError, match="disagree by 2 nats"):
        once.check(StepReport(1, True, 1.0, 1e-3, 0.0, {"mismatch/mean_abs": Mean(8.0, 4)}))


def test_transformers_sampler_refuses_what_it_cannot_do(transformers_sampler):
    with pytest.raises(UserError, match="use rollout.engine=vllm"):
        transformers_sampler.generate(Draw(prompts(), 1, SamplingConfig(top_p=0.9)))
