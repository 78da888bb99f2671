"""These tests show the program containers of several kinds, by folders like those of the kernel."""

from types import SimpleNamespace

import psutil
import pytest

from grpo.config import TrainConfig
from grpo.host import main_memory, ranks
from grpo.host.device_memory import available_gib

GIB = 2**30
UNLIMITED_IN_V1 = 9223372036854771712


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Shows a machine with 64 GiB, of which 40 are free. Returns a function that takes the lines of /proc/self/cgroup
    and, by folder, a group's limit, its use, and what of that are pages of files, in GiB or in the kernel's words."""
    memory = SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(main_memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(main_memory, "OWN_GROUPS", tmp_path / "own")

    def make(own, folders):
        (tmp_path / "own").write_text("".join(f"{line}\n" for line in own))
        for folder, (limit, used, file_pages) in folders.items():
            group = tmp_path / "cgroup" / folder
            group.mkdir(parents=True, exist_ok=True)
            first = folder.split("/")[0] == "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if first else ("memory.max", "memory.current")
            for name, value in zip(names, (limit, used), strict=True):
                (group / name).write_text(f"{int(value * GIB) if isinstance(value, float) else value}\n")
            total = "total_" if first else ""
            (group / "memory.stat").write_text(
                f"anon 1\n{total}active_file {int(file_pages * GIB) - GIB}\n{total}inactive_file {GIB}\n"
            )

    return make


def sizes():
    return main_memory.total_gib(), main_memory.free_gib()


def test_without_a_container_the_machine_decides(groups):
    assert sizes() == (64, 40), "there is no file that names groups"
    groups(["0::/user.slice"], {"user.slice": ("max", 30.0, 2.0)})
    assert sizes() == (64, 40)
    groups(["4:memory:/"], {"memory": (UNLIMITED_IN_V1, 30.0, 2.0)})
    assert sizes() == (64, 40)


def test_a_container_may_take_what_its_limit_leaves_of_which_pages_of_files_count_as_free(groups):
    groups(["0::/"], {"": (16.0, 7.0, 2.5)})
    assert sizes() == (16, 11.5)
    assert available_gib(TrainConfig(device="cpu")) == 11.5
    groups(["0::/"], {"": (60.0, 7.0, 2.5)})
    assert sizes() == (60, 40), "the machine has less than the limit leaves"
    groups(["0::/"], {"": (16.0, 17.5, 1.0)})
    assert sizes() == (16, 0)


def test_a_container_of_the_first_version_of_cgroups_may_be_named_as_outside(groups):
    own = ["5:cpu,cpuacct:/docker/a", "4:memory:/docker/a", "0::/docker/a"]
    groups(own, {"memory": (16.0, 7.0, 2.5), "": ("max", 1.0, 1.0)})
    assert sizes() == (16, 11.5)


def test_the_group_that_leaves_least_decides_among_nested_ones(groups):
    groups(["0::/slurm/job_1/step"], {"slurm/job_1/step": ("max", 2.0, 1.0), "slurm/job_1": (32.0, 4.0, 1.0)})
    assert sizes() == (32, 29)
    groups(["0::/slurm/job_1/step"], {"slurm": (48.0, 40.0, 1.0)})
    assert sizes() == (32, 9)


def test_a_group_whose_files_cannot_be_read_limits_nothing(groups, tmp_path):
    groups(["0::/a"], {"a": ("soon", 1.0, 1.0)})
    assert sizes() == (64, 40)
    groups(["0::/../.."], {})
    assert sizes() == (64, 40)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/pod/a", {"pod/a/cpu.max": "max 100000", "pod/cpu.max": "250000 100000"}, 3),
        ("0::/", {"cpu.max": "max 100000"}, 48),
        ("0::/", {"cpu.max": "9900000 100000"}, 48),
        ("0::/", {}, 48),
        ("3:cpu,cpuacct:/docker/a", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("3:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 48),
    ],
)
def test_cores_are_those_of_the_smallest_quota_that_a_group_has(own, files, expected, groups, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(48))
    groups([own], {})
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(f"{text}\n")
    assert (main_memory.cores(), ranks.own_cores()) == (expected, expected)
