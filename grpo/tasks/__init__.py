"""What is asked, and how the answers are graded.

    sources (arithmetic, procedural) → selection → split → curriculum → prompts → … completions …
    → grader (rewards, extraction)

Importing this package is light: grading workers are spawned processes and import it too.
"""

from grpo.tasks.grader import GraderPool, RawGrade
from grpo.tasks.prompts import PromptEncoder, PromptStream
from grpo.tasks.selection import select
from grpo.tasks.sources import SourceReport, load_problems
from grpo.tasks.split import split
from grpo.tasks.task import VerifiableTask, build_task

__all__ = [
    "GraderPool",
    "PromptEncoder",
    "PromptStream",
    "RawGrade",
    "SourceReport",
    "VerifiableTask",
    "build_task",
    "load_problems",
    "select",
    "split",
]
