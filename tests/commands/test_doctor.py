"""These tests show the doctor machines with an NVIDIA driver."""

import os
import shutil
import sysconfig

import pytest

from grpo.commands import doctor


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Returns a function that shows the doctor a machine with or without a compiler and Python's headers."""

    def check(gcc, headers):
        if headers:
            (tmp_path / "Python.h").touch()
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(doctor, "_driver", lambda cuda: doctor.Check("NVIDIA driver", "580.65.06"))
        monkeypatch.setattr(shutil, "which", lambda name: gcc if name == "gcc" else None)
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
        return next(check for check in doctor._torch() if check.what == "compiler for Triton")

    return check


def test_kernels_can_be_compiled_where_there_are_a_compiler_and_the_headers_of_python(compiler):
    assert compiler("/usr/bin/gcc", headers=True) == doctor.Check("compiler for Triton", "/usr/bin/gcc")


@pytest.mark.parametrize(
    ("gcc", "headers", "told"),
    [("/usr/bin/gcc", False, ["Python.h"]), (None, True, ["install gcc"]), (None, False, ["install gcc", "Python.h"])],
)
def test_what_is_missing_for_vllms_kernels_is_told(compiler, gcc, headers, told):
    remedy = compiler(gcc, headers).remedy
    assert all(word in remedy for word in told) and ("install gcc" in remedy) == (gcc is None)


def test_a_machine_without_a_gpu_needs_no_compiler(monkeypatch):
    monkeypatch.setattr(doctor, "_driver", lambda cuda: None)
    assert "compiler for Triton" not in [check.what for check in doctor._torch()]


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
UNLOADED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        (f"echo '{MISMATCH}'; echo 'NVML library version: 580.65'; exit 18", f"nvidia-smi fails: {MISMATCH}"),
        (f'echo; echo "{UNLOADED}" >&2; exit 9', f"nvidia-smi fails: {UNLOADED}"),
        ("exit 6", "nvidia-smi fails: exit code 6"),
        ("echo No devices were found", "nvidia-smi fails: No devices were found"),
        (None, "nvidia-smi cannot be run: Permission denied"),
        ("exec sleep 30", "nvidia-smi does not answer within 0.2 seconds"),
    ],
)
def test_a_driver_that_does_not_answer_is_one_row_with_what_it_says_and_what_to_do(
    monkeypatch, tmp_path, script, shown
):
    stand_in(monkeypatch, tmp_path, script)
    monkeypatch.setattr(doctor, "SMI_SECONDS", 0.2 if script == "exec sleep 30" else 60)
    [row] = [check for check in doctor._torch() if check.what == "NVIDIA driver"]
    assert (row.there, row.remedy) == (shown, doctor.MEND_DRIVER)
    assert doctor.Check("GPUs", "none that torch sees", "see the driver above") in [*doctor._torch()]


def test_a_driver_that_answers_is_shown_by_its_version(monkeypatch, tmp_path):
    stand_in(monkeypatch, tmp_path, "echo 580.65.06; echo 580.65.06")
    assert doctor._driver("13.0") == doctor.Check("NVIDIA driver", "580.65.06")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert doctor._driver("13.0") is None


def stand_in(monkeypatch, folder, script):
    """Puts a stand-in for nvidia-smi first on the PATH. With `script` None it may not be executed."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755 if script else 0o644)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}" if script else str(folder))
