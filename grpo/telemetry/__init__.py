"""What a run says while it runs: metric names, trackers, phases with deadlines, the terminal, memory, hardware."""

from grpo.telemetry.hardware import peak_tflops
from grpo.telemetry.memory import peak_memory
from grpo.telemetry.metrics import COUNTS, REASON, flatten
from grpo.telemetry.phases import Phases
from grpo.telemetry.progress import RunDisplay
from grpo.telemetry.trackers import JsonLines, JsonlTracker, Trackers, WandbTracker, read_metrics

__all__ = [
    "COUNTS",
    "REASON",
    "JsonLines",
    "JsonlTracker",
    "Phases",
    "RunDisplay",
    "Trackers",
    "WandbTracker",
    "flatten",
    "peak_memory",
    "peak_tflops",
    "read_metrics",
]
