"""These tests count the energy of processors whose counters are files, as Linux shows them."""

import pytest

from grpo.config import TrainConfig
from grpo.run.clocks import Clocks, Timing
from grpo.telemetry.energy import Counter, EnergyMeter, visible_gpus
from grpo.telemetry.metrics import energy
from grpo.telemetry.phases import Phases


@pytest.fixture
def packages(tmp_path):
    """Makes two packages whose counters begin again after 1,000 J, and a part of one. Returns their counters."""
    counters = {}
    for name, content in {"0": "package-0", "1": "package-1", "0:0": "core"}.items():
        folder = tmp_path / f"intel-rapl:{name}"
        folder.mkdir()
        (folder / "name").write_text(f"{content}\n")
        (folder / "max_energy_range_uj").write_text("1000000000\n")
        counters[name] = folder / "energy_uj"
        counters[name].write_text("900000000\n")
    return counters


def test_joules_of_all_packages_are_counted_also_where_a_counter_begins_again(packages, tmp_path):
    meter = EnergyMeter(tmp_path)
    packages["0"].write_text("950000000\n")
    packages["0:0"].write_text("950000000\n")
    assert meter and meter.joules() == 50.0
    packages["0"].write_text("20000000\n")
    packages["1"].write_text("901500000\n")
    assert meter.joules() == 50.0 + 70.0 + 1.5 == meter.joules()


def test_a_machine_that_counts_no_energy_or_lets_nobody_read_it_has_no_meter(tmp_path):
    assert not EnergyMeter(tmp_path / "nowhere")
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0/name").write_text("package-0")
    assert not EnergyMeter(tmp_path)


def test_a_counter_that_vanishes_in_a_run_ends_the_counting_and_not_the_run(packages, tmp_path):
    meter = EnergyMeter(tmp_path)
    clocks = Clocks(TrainConfig(), Phases(), Phases(clock=meter.joules))
    packages["0"].write_text("950000000\n")
    assert energy([clocks.joules()], {}) == {"energy/round_joules": 50.0}
    packages["1"].unlink()
    packages["0"].write_text("960000000\n")
    for _ in range(2):
        assert energy([{"round": 7.0}, clocks.joules()], {}) == {}


def test_a_counter_that_was_reset_counts_from_zero_again():
    """GPUs count without an end, until their driver is loaded anew."""
    values = iter([500.0, 530.0, 4.0, 6.0])
    meter = EnergyMeter()
    meter._counters, meter._last = [Counter(lambda: next(values))], [next(values)]
    assert [meter.joules() for _ in range(3)] == [30.0, 34.0, 36.0]


@pytest.mark.parametrize(
    ("visible", "gpus"), [(None, [0, 1, 2]), ("2,0", [2, 0]), ("", []), ("-1", []), ("GPU-5e1f", [0, 1, 2])]
)
def test_gpus_that_the_process_may_not_use_are_not_counted(visible, gpus, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus(3) == gpus


def test_each_phase_has_the_joules_of_its_time_and_the_round_those_of_all(packages, tmp_path):
    meter = EnergyMeter(tmp_path)
    clocks = Clocks(TrainConfig(), Phases(), Phases(clock=meter.joules))

    def use(joules):
        packages["1"].write_text(f"{int(packages['1'].read_text()) + 1_000_000 * joules}\n")

    learn = clocks.call(Timing("learn", "learner.deadline_seconds"), use)
    learn(7), use(2), learn(1)
    assert clocks.joules() == {"round": 10.0, "learn": 8.0}
    use(3)
    assert clocks.joules() == {"round": 3.0}
    assert Clocks(TrainConfig(), Phases()).joules() == {}
