"""These tests count the energy of processors whose counters are files, as Linux shows them."""

import pytest

from grpo.config import TrainConfig
from grpo.run.clocks import Clocks, Timing
from grpo.telemetry.energy import EnergyMeter
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
