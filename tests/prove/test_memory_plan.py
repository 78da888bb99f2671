"""These tests hold that a proof's GPU memory is known before its engines start, by hand arithmetic and by the bench."""

import pytest
import torch

from grpo.config.memory_estimate import ModelShape
from grpo.host import device_memory, ranks
from grpo.prove import exchange, sampling
from grpo.prove.bench import Bench, Room, config_of, fitting_rows, lacking, refreshing_gib
from grpo.prove.sizes import SIZES
from grpo.run.tables import shape_of

WORDS = ["learner.precision=bfloat16", "rollout.precision=bfloat16"]
# In GiB: an H100 of 80 GB and an H200 of 141 GB.
H100, H200 = Room(79.6, 79.0), Room(139.8, 139.0)
SEVEN_B = shape_of(config_of(SIZES["7b"].shape))


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Makes a bench on a GPU with this much memory."""

    def made(room, size, *words):
        monkeypatch.setattr(ranks, "device", lambda config: torch.device("cuda", 0))
        monkeypatch.setattr(device_memory, "device_gib", lambda config: room.gpu_gib)
        monkeypatch.setattr(device_memory, "available_gib", lambda config: room.free_gib)
        return Bench(size, tmp_path, [*WORDS, *words], device="cpu")

    return made


def test_the_memory_of_a_model_of_7b_is_counted_by_hand(on):
    assert ModelShape(7_615_616_512, 28, 3584, 18_944, 152_064, 3584, 512) == SEVEN_B
    # Weights 14.2, gradients 28.4, masters 28.4, of the sampler 0.4 of the GPU, and 1.5 of runtime.
    config = on(H100, "7b").config
    assert refreshing_gib(config, SEVEN_B, 79.6) == pytest.approx(14.2 + 28.4 + 28.4 + 31.8 + 1.5, abs=0.2)
    assert refreshing_gib(config, SEVEN_B, 139.8) == pytest.approx(14.2 + 28.4 + 28.4 + 55.9 + 1.5, abs=0.2)
    config.learner.offload_optimizer = True
    assert refreshing_gib(config, SEVEN_B, 79.6) == pytest.approx(14.2 + 28.4 + 31.8 + 1.5, abs=0.2)
    # Moments that wait in main memory while the sampler works are not there to be subtracted.
    config.learner.offload_optimizer, config.learner.offload_states = False, True
    assert refreshing_gib(config, SEVEN_B, 79.6) >= 31.8 + 1.5


def test_a_refresh_that_does_not_fit_is_skipped_and_says_what_to_try(on):
    needs = "needs 104 GiB of a GPU, of which 79 are free: try learner.offload_optimizer=true"
    for part in (exchange.sync, sampling.sampler):
        [fact] = part(on(H100, "7b")).facts
        assert (fact.verdict, fact.needs) == ("skipped", needs)
    assert on(H100, "7b", "learner.offload_optimizer=true").lacking(steps=False) == ""
    assert on(H200, "7b").lacking(steps=False) == ""
    # Weights alone take a third of it.
    small = Room(40.0, 39.5)
    assert on(small, "7b").lacking(steps=False).endswith("of which 40 are free: try a smaller size")


def test_rows_are_as_long_as_a_gpu_has_memory_for(on):
    # 1.78 B parameters, output layer included: states 29.8, 2.8 MiB of activations for a token, and 10.7 more.
    assert "learner.micro_batch_tokens=8192" in on(H100, "1.5b").words
    assert "learner.micro_batch_tokens=16384" not in on(H200, "1.5b").words
    assert on(H200, "1.5b").config.learner.micro_batch_tokens == 16384
    for size, room in (("1.5b", H100), ("1.5b", H200), ("7b", H200)):
        chosen = on(room, size, *(["learner.offload_optimizer=true"] if size == "7b" else []))
        assert chosen.lacking(steps=True) == "", (size, room)
    given = on(H100, "1.5b", "learner.micro_batch_tokens=16384")
    assert given.config.learner.micro_batch_tokens == 16384
    [fact] = exchange.whole_round(given).facts
    assert fact.needs.startswith("needs 86 GiB of a GPU, of which 79 are free")
    # The learner's states, 29.8, stay while nine tenths of the GPU are the sampler's.
    sampling_more = on(H100, "1.5b", "rollout.gpu_memory_fraction=0.9").lacking(steps=True)
    assert sampling_more.startswith("needs 103 GiB of a GPU, of which 79 are free")


def test_a_model_whose_states_fill_a_gpu_has_no_fitting_rows(on):
    bench = on(H100, "7b")
    assert fitting_rows(bench.config, SEVEN_B, 1, H100) is None
    assert lacking(bench.config, SEVEN_B, H100, steps=True).startswith("needs 239 GiB of a GPU")


def test_a_cpu_has_no_such_room(tmp_path):
    bench = Bench("tiny", tmp_path, [], device="cpu")
    assert bench.room is None and bench.lacking(steps=True) == ""
