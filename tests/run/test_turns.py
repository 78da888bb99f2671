"""These tests let a learner and a sampler use one device in turn, and check who holds memory when."""

from types import SimpleNamespace

import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.validate_loss import check_pipeline
from grpo.interfaces import WeightSync
from grpo.run.assembly import learner_in_turn, sampler_in_turn
from grpo.run.clocks import Clocks, TimedSampler
from grpo.telemetry.phases import Phases
from grpo.weight_sync.refresh import CheckedSync

STATES, WEIGHTS, CACHE = "learner's states", "learner's weights", "sampler's cache"


class Device:
    """This device records what each part holds of its memory, and fails a test in which parts meet that do not fit."""

    def __init__(self):
        self.present, self.seconds = {STATES, WEIGHTS}, 0.0

    # The learner's states.

    def offload(self, keep_weights=False):
        self.seconds += 2.0
        self.present -= {STATES} if keep_weights else {STATES, WEIGHTS}

    def reload(self):
        assert "sampler's weights" not in self.present
        self.seconds += 1.0
        self.present |= {STATES, WEIGHTS}

    # The sampler.

    def build(self):
        assert not self.present
        self.present = {"sampler's weights", CACHE}
        return self.sampler

    def wake(self):
        assert STATES not in self.present
        self.seconds += 0.25
        self.present.add("sampler's weights")

    def finish_weights(self, version):
        assert WEIGHTS not in self.present
        self.present.add(CACHE)

    def sleep(self):
        assert "sampler's weights" in self.present, "vLLM's memory is lost where an engine sleeps twice"
        self.seconds += 0.5
        self.present -= {"sampler's weights", CACHE}

    @property
    def sampler(self):
        return SimpleNamespace(
            wake=self.wake,
            begin_refresh=lambda: "merged",
            load_weights=lambda bucket: None,
            finish_weights=self.finish_weights,
            checksums=lambda: [],
            sleep=self.sleep,
        )

    def needs(self, *present):
        """Returns a learner's method that asserts that the parts `present` are on the device, and no KV cache."""

        def method(*arguments):
            assert set(present) <= self.present and CACHE not in self.present
            return [[]]

        return method


def offloading():
    config = TrainConfig()
    config.learner.offload_states = True
    return config


@pytest.fixture
def parts():
    device, config = Device(), offloading()
    clocks = Clocks(config, Phases(clock=lambda: device.seconds))
    bare = SimpleNamespace(
        states=lambda: SimpleNamespace(offload=device.offload, reload=device.reload),
        weight_buckets=device.needs(WEIGHTS),
        step=device.needs(STATES, WEIGHTS),
        save=device.needs(STATES, WEIGHTS),
        rewind=device.needs(STATES, WEIGHTS),
        num_steps=3,
    )
    sampler = sampler_in_turn(config, bare, device.build, clocks)
    learner = learner_in_turn(config, bare, sampler, clocks.timed(CheckedSync(0.5), WeightSync), clocks)
    return device, clocks, sampler, learner


def test_the_sampler_starts_on_an_empty_device_and_leaves_it_to_the_learner(parts):
    device, *_ = parts
    assert device.present == {STATES, WEIGHTS}


def test_states_leave_before_a_refresh_and_weights_before_the_cache_comes(parts):
    device, clocks, sampler, learner = parts
    clocks.phases.begin_round()
    sampler.wake()
    assert device.present == {WEIGHTS, "sampler's weights"}
    sampler.finish_weights(3)
    assert device.present == {"sampler's weights", CACHE}
    sampler.sleep()
    assert device.present == {STATES, WEIGHTS}
    learner.step()
    # Twice away and once back, which a round's table shows; and what the engine itself takes to wake and to sleep.
    assert clocks.phases.end_round() == {"round": 5.75, "offload": 5.0, "sleep": 0.75}


def test_the_first_comparison_samples_while_the_sampler_has_the_device_and_scores_while_the_learner_has_it(parts):
    device, _, sampler, learner = parts
    present = []

    class Probe:
        def groups(self, sampler):
            present.append(set(device.present))

        def mismatch(self, learner, groups):
            present.append(set(device.present))
            return 0.0

    CheckedSync(0.5, Probe(), after_each=False).begin(learner, sampler)
    assert present == [{"sampler's weights", CACHE}, {STATES, WEIGHTS}]
    assert device.present == {"sampler's weights", CACHE}


def test_a_checkpoint_is_written_by_the_learner_and_the_sampler_has_the_device_afterwards(parts):
    device, _, sampler, learner = parts
    CheckedSync(0.5).refresh(learner, sampler)
    learner.save("folder")
    assert device.present == {"sampler's weights", CACHE}


def test_a_round_that_was_cut_short_is_saved_while_the_sampler_still_sleeps(parts):
    device, _, sampler, learner = parts
    CheckedSync(0.5).refresh(learner, sampler)
    sampler.sleep()
    learner.step()
    learner.save("folder")
    assert device.present == {"sampler's weights", CACHE}


def test_the_seconds_of_a_checkpoint_hold_what_it_takes_to_give_the_device_back_and_forth(parts):
    _, clocks, sampler, learner = parts
    CheckedSync(0.5).refresh(learner, sampler)
    learner.save("folder")
    clocks.phases.begin_round()
    sampler.sleep()
    # One second to take the states back, twice two to put them away again, and the engine's own. The round pays for its
    # own only.
    assert clocks.phases.end_round() == {"round": 1.5, "offload": 1.0, "sleep": 0.5, "save": 5.75}


def test_a_rank_that_cannot_write_a_checkpoint_refreshes_with_the_others(parts):
    device, _, sampler, learner = parts

    def save(directory):
        raise OSError("no space left")

    CheckedSync(0.5).refresh(learner, sampler)
    learner.save = save
    with pytest.raises(OSError, match="no space left"):
        learner.save("folder")
    assert device.present == {"sampler's weights", CACHE}


def test_going_back_has_the_device_for_the_learner(parts):
    device, _, sampler, learner = parts
    CheckedSync(0.5).refresh(learner, sampler)
    learner.rewind("folder")
    assert device.present == {STATES, WEIGHTS}


def test_without_it_a_sampler_is_timed_as_it_sleeps_in_a_round_and_wakes_in_a_refresh(parts):
    device, clocks, *_ = parts
    config, learner = TrainConfig(), object()
    device.present.clear()
    sampler = sampler_in_turn(config, learner, device.build, clocks)
    clocks.phases.begin_round()
    TimedSampler(sampler, clocks).sleep()
    assert device.present == set()
    clocks.phases.timed("sync", sampler.wake, 9.0, "key")()
    assert clocks.phases.end_round() == {"round": 0.75, "sleep": 0.75, "sync": 0.0}
    assert learner_in_turn(config, learner, sampler, None, None) is learner


def test_states_do_not_leave_for_servers_that_have_gpus_of_their_own():
    config = offloading()
    config.rollout.engine = "vllm_server"
    with pytest.raises(UserError, match="offload_states=true makes room for vLLM in the learner's process"):
        check_pipeline(config)
