"""This module knows the peak compute of NVIDIA's GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Dense bfloat16 TFLOP/s of NVIDIA's data sheets, by the part of the device's name that identifies the GPU.
_PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "GH200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "V100": 125.0,
}


def peak_tflops(device: torch.device) -> float | None:
    """Returns the dense bfloat16 TFLOP/s of a GPU in the table, and None for other GPUs and for CPUs."""
    if device.type != "cuda":
        return None
    import torch

    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """Returns the dense bfloat16 TFLOP/s for a name that torch reports, such as ``"NVIDIA H100 80GB HBM3"``."""
    words = f"{name} ".replace("-", " ")
    matches = [(len(part), peak) for part, peak in _PEAK_TFLOPS.items() if f"{part} " in words]
    return max(matches)[1] if matches else None
