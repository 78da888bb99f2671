"""This package reports a run while it runs: metrics, trackers, timed phases, the terminal, memory and hardware."""

from grpo.telemetry.code import write_code
from grpo.telemetry.completions import CompletionFiles, completion_row, read_completions
from grpo.telemetry.hardware import peak_tflops
from grpo.telemetry.lines import JsonLines, JsonlTracker, read_metrics
from grpo.telemetry.memory import peak_memory
from grpo.telemetry.metrics import COUNTS, FIRST_COUNTS, REASON, WENT_BACK, flatten
from grpo.telemetry.phases import Phases
from grpo.telemetry.profiler import ProfiledRounds
from grpo.telemetry.progress import RunDisplay
from grpo.telemetry.trackers import Trackers, service_trackers

__all__ = [
    "COUNTS",
    "FIRST_COUNTS",
    "REASON",
    "WENT_BACK",
    "CompletionFiles",
    "JsonLines",
    "JsonlTracker",
    "Phases",
    "ProfiledRounds",
    "RunDisplay",
    "Trackers",
    "completion_row",
    "flatten",
    "peak_memory",
    "peak_tflops",
    "read_completions",
    "read_metrics",
    "service_trackers",
    "write_code",
]
