import subprocess
import sys

import pytest
import torch

from grpo.telemetry.hardware import peak_memory, peak_of, peak_tflops


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200 NVL", 835.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("Tesla V100-SXM2-16GB", 125.0),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_gpu_is_known_by_its_name(name, peak):
    assert peak_of(name) == peak


def test_a_cpu_has_no_peak_to_compare_with():
    assert peak_tflops(torch.device("cpu")) is None


def test_the_peak_of_a_gpu_is_shown_with_and_without_the_allocators_gaps(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2 * 2**30)
    peaks = peak_memory()
    assert (peaks["memory/peak_cuda_gib"], peaks["memory/peak_tensors_gib"]) == (3.0, 2.0)


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_peak_memory_keeps_what_was_given_back():
    shown = run(
        "from grpo.telemetry.hardware import peak_memory\n"
        "before = peak_memory()['memory/peak_rss_gib']\n"
        "block = bytearray(b'x') * 2**28; del block\n"
        "print(0.2 < peak_memory()['memory/peak_rss_gib'] - before < 0.3)"
    )
    assert shown == "True\n"


def test_asking_does_not_import_torch():
    shown = run(
        "import sys; from grpo.telemetry.hardware import peak_memory\n"
        "print(sorted(peak_memory()), 'torch' in sys.modules)"
    )
    assert shown == "['memory/peak_rss_gib'] False\n"
