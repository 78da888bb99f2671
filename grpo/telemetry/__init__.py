"""This package reports a run while it runs: metrics, trackers, timed phases, the terminal, memory and hardware.

Numbers:
metrics, breakdown    a round's statistics as named numbers; lengths by kind of completion
phases                seconds of each phase, and deadlines
memory, hardware      peak memory; peak compute of GPUs
profiler              traces of chosen rounds

Where they go:
json_lines, completions     files of JSON lines; completions as rows
trackers, outage      Weights & Biases, TensorBoard, MLflow; a run goes on when one of them fails
console, notebook     the line of each round on the terminal; its row of a table below a notebook's cell
code_version          which code ran
ending, resumptions   how a run ended; where it was resumed
foreign_files         reads TensorBoard's files and Parquet
"""

from grpo.telemetry.breakdown import CompletionFacts, breakdown, completion_facts
from grpo.telemetry.code_version import write_code
from grpo.telemetry.completions import (
    CompletionFiles,
    completion_row,
    first_groups,
    is_graded,
    is_unjudged,
    kind_of,
    read_completions,
    score_of,
    whole_groups,
)
from grpo.telemetry.console import RunDisplay
from grpo.telemetry.ending import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    Ending,
    forget_ending,
    read_ending,
    recording_failure,
    write_ending,
)
from grpo.telemetry.hardware import peak_tflops
from grpo.telemetry.json_lines import JsonLines, JsonlTracker, Row, read_json_lines, read_metrics
from grpo.telemetry.memory import peak_memory
from grpo.telemetry.metrics import COUNTS, FIRST_COUNTS, REASON, WENT_BACK, flatten, without_pass_rates
from grpo.telemetry.notebook import NotebookDisplay, in_notebook
from grpo.telemetry.outage import Outlasting
from grpo.telemetry.phases import Phases
from grpo.telemetry.profiler import ProfiledRounds
from grpo.telemetry.resumptions import KILLED, Resumption, add_resumption, forget_resumptions, read_resumptions
from grpo.telemetry.trackers import Trackers, service_trackers

__all__ = [
    "COUNTS",
    "FAILED",
    "FINISHED",
    "FIRST_COUNTS",
    "INTERRUPTED",
    "KILLED",
    "REASON",
    "WENT_BACK",
    "CompletionFacts",
    "CompletionFiles",
    "Ending",
    "JsonLines",
    "JsonlTracker",
    "NotebookDisplay",
    "Outlasting",
    "Phases",
    "ProfiledRounds",
    "Resumption",
    "Row",
    "RunDisplay",
    "Trackers",
    "add_resumption",
    "breakdown",
    "completion_facts",
    "completion_row",
    "first_groups",
    "flatten",
    "forget_ending",
    "forget_resumptions",
    "in_notebook",
    "is_graded",
    "is_unjudged",
    "kind_of",
    "peak_memory",
    "peak_tflops",
    "read_completions",
    "read_ending",
    "read_json_lines",
    "read_metrics",
    "read_resumptions",
    "recording_failure",
    "score_of",
    "service_trackers",
    "whole_groups",
    "without_pass_rates",
    "write_code",
    "write_ending",
]
