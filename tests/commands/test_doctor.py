"""These tests show the doctor machines with an NVIDIA driver."""

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
        monkeypatch.setattr(doctor, "_driver", lambda: "580.65.06")
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
    monkeypatch.setattr(doctor, "_driver", lambda: "")
    assert "compiler for Triton" not in [check.what for check in doctor._torch()]
