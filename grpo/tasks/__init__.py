"""This package turns data sets into prompts and grades the completions.

    sources (arithmetic, procedural) → selection → split → curriculum → prompts → … completions …
    → grader (rewards, extraction)

Importing it must stay light, since every grading worker is a spawned process that imports it too.
"""

from grpo.tasks.curriculum import Grouping
from grpo.tasks.grader_pool import GraderPool
from grpo.tasks.grading_worker import RawGrade
from grpo.tasks.prompts import PromptEncoder
from grpo.tasks.selection import select
from grpo.tasks.sources import SourceReport, load_problems
from grpo.tasks.split import split
from grpo.tasks.stream import PromptStream
from grpo.tasks.task import LoadedTask, VerifiableTask, build_task, loaded_task, usable_problems

__all__ = [
    "GraderPool",
    "Grouping",
    "LoadedTask",
    "PromptEncoder",
    "PromptStream",
    "RawGrade",
    "SourceReport",
    "VerifiableTask",
    "build_task",
    "load_problems",
    "loaded_task",
    "select",
    "split",
    "usable_problems",
]
