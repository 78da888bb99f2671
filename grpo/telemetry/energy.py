"""This module reads how much energy this machine's GPUs and processors use, where the machine counts it.

GPUs count it themselves (NVML's total energy consumption, Volta and later), and Linux shows the counters of processor
packages (RAPL), which on many machines only root may read. Main memory, fans and network are in neither.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = Path("/sys/class/powercap")


class Counter(NamedTuple):
    """A counter of joules begins again at 0 after `most`, or never where that is 0."""

    read: Callable[[], float]
    most: float = 0.0


class EnergyMeter:
    """The meter counts joules from the moment in which it is made: those of the GPUs that this process may use, and
    those of all processors of the machine."""

    def __init__(self, packages: Path = PACKAGES):
        self._counters = [*_gpus(), *_packages(packages)]
        self._last = [counter.read() for counter in self._counters]
        # Phases of several threads read the same meter.
        self._total, self._reading = 0.0, threading.Lock()

    def __bool__(self) -> bool:
        """Says whether the machine counts any energy."""
        return bool(self._counters)

    def joules(self) -> float:
        """Returns the joules so far, and NaN once a counter is gone, since what it counted would be missing. Calls must
        not be further apart than a counter takes to begin again, which is minutes for a processor."""
        with self._reading:
            for index, counter in enumerate(self._counters):
                try:
                    now = counter.read()
                # A driver or a right to read may be gone, and each kind of counter has errors of its own.
                except Exception:
                    self._counters, self._total = [], math.nan
                    break
                before = self._last[index]
                # A counter that never begins again by itself has been reset, and its joules before that are lost.
                self._total += now - before if now >= before else now + max(counter.most - before, 0.0)
                self._last[index] = now
            return self._total


def _packages(folder: Path) -> Iterator[Counter]:
    # The parts of a package, such as intel-rapl:0:1, are counted in it.
    for package in sorted(folder.glob("intel-rapl:*")):
        with suppress(OSError, ValueError):
            if package.name.count(":") == 1 and (package / "name").read_text().startswith("package"):
                counter = Counter(_reader(package / "energy_uj"), _reader(package / "max_energy_range_uj")())
                counter.read()
                yield counter


def _reader(file: Path) -> Callable[[], float]:
    return lambda: int(file.read_text()) / 1e6


def _gpus() -> list[Counter]:
    try:
        pynvml = import_module("pynvml")
        pynvml.nvmlInit()
        counters = [_of_gpu(pynvml, index) for index in visible_gpus(pynvml.nvmlDeviceGetCount())]
        for counter in counters:
            counter.read()
        return counters
    # There is no such package, no driver, or a GPU that counts no energy.
    except Exception:
        return []


def _of_gpu(pynvml: Any, index: int) -> Counter:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Counter(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)


def visible_gpus(count: int) -> list[int]:
    """Returns the GPUs that this process may use, by their numbers on the machine. Names of other kinds stand for all
    GPUs."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "all").split(",")
    if words in ([""], ["-1"]):
        return []
    return [int(word) for word in words] if all(word.strip().isdecimal() for word in words) else list(range(count))
