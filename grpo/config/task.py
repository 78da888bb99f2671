"""What is asked, how it is put to the model, and how answers are graded."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class SelectionConfig:
    """Which of a source's problems are asked, see `grpo.tasks.selection`. What is left out is counted and told."""

    # Pass rates kept, both ends included, e.g. [0.1, 0.8], and the column that has them: `grpo solve-rates` makes one.
    solve_rate: list[float] = field(default_factory=lambda: [0.0, 1.0])
    solve_rate_column: str = "llama8b_solve_rate"
    # Problems without a pass rate: keep | drop.
    without_solve_rate: str = "keep"
    # Values of the column `source` to keep; empty: all.
    sources: list[str] = field(default_factory=list)
    # Parts of the paths in the column `domain` to keep, e.g. [Algebra, "Mathematics -> Geometry"]; empty: all.
    domains: list[str] = field(default_factory=list)
    # integer | decimal | fraction | percent | choice | yes_no | matrix | set | interval | equation | text | expression;
    # empty: all.
    answer_types: list[str] = field(default_factory=list)
    # Longest question in characters; 0: any.
    max_characters: int = 0
    # Questions of the same words, whatever their case, spacing and punctuation, are asked once.
    deduplicate: bool = False
    # Files of evaluation problems: what they ask, or shares `ngram` words in a row with it, is left out. 0: only
    # questions of the same words.
    evaluation_sets: list[str] = field(default_factory=list)
    ngram: int = 13


@dataclass(kw_only=True)
class CurriculumConfig:
    """Which problems are asked when, see `grpo.tasks.curriculum`."""

    # uniform: each once an epoch. weighted: as often as the column's pass rate promises gradient. anneal: from easy
    # to hard. online: by pass rates measured while training.
    name: str = "uniform"
    # Column of pass rates: needed by weighted and anneal, where online begins.
    solve_rate_column: str = "llama8b_solve_rate"
    # Problems without one are taken to have this.
    without_solve_rate: float = 0.5
    # weighted, anneal: prompts after which problems are drawn anew.
    block: int = 2048
    # anneal: pass rates aimed at in the beginning and at the end, the width about them, and over how many prompts.
    easy: float = 0.9
    hard: float = 0.1
    width: float = 0.15
    anneal_prompts: int = 100_000
    # online: completions that the column's rate counts for; prompts after which what was seen counts half; prompts for
    # which a problem rests after it was asked, and after it was silent.
    prior_samples: float = 4.0
    half_life: int = 50_000
    rest: int = 1024
    rest_silent: int = 8192


@dataclass(kw_only=True)
class DataConfig:
    """Where problems come from, see `grpo.tasks.sources`."""

    # file | hub | reasoning_gym | arithmetic.
    source: str = "file"
    # file: a .jsonl, .json, .csv or .parquet. hub: "owner/name". reasoning_gym: the generator's name.
    path: str = ""
    # hub only: configuration and split.
    subset: str = ""
    split: str = "train"
    # Columns of the data set that hold the question, the answer and (optional) an identity.
    question_column: str = "problem"
    answer_column: str = "answer"
    id_column: str = ""
    # Part of each answer that counts: a regular expression with one group, "" for the whole; GSM8K: "#### (.*)".
    answer_pattern: str = ""
    # file and hub: only the first so many rows; 0: all.
    limit: int = 0
    # Generators only: how many problems to draw, and their options, e.g. {min_digits: 1, max_digits: 2}.
    size: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    # Seed of the generator: another seed draws other problems. Not the training seed.
    seed: int = 0
    # What to do with rows without a usable question, or with an answer that is missing or cannot be parsed:
    # "skip" (counted, listed) or "refuse".
    bad_rows: str = "skip"
    # Share of the problems held out for evaluation, by a hash of the question: never trained on. 0.1: a tenth.
    held_out_fraction: float = 0.1
    selection: SelectionConfig = field(default_factory=SelectionConfig)


@dataclass(kw_only=True)
class PromptConfig:
    """How a problem becomes a prompt."""

    # {question} is replaced. E.g. "{question} Answer with just the number."
    template: str = "{question}"
    # null: the chat template's own; "": none at all.
    system: str | None = None
    # False: no chat template, the template's text is the prompt (base models).
    chat: bool = True
    # Solved examples put before the question, as [question, answer] pairs.
    examples: list[list[str]] = field(default_factory=list)
    # Prompts of more tokens are dropped and counted (skip) or refused.
    max_tokens: int = 1024
    too_long: str = "skip"


@dataclass(kw_only=True)
class RewardPartConfig:
    # math | exact | number | reasoning_gym | format, or an import path "package.module:function" of a
    # function that takes (completion, answer, metadata) and gives a float.
    name: str = ""
    weight: float = 1.0


@dataclass(kw_only=True)
class RewardConfig:
    """How a completion becomes a number, see `grpo.tasks.rewards`."""

    # What the reward is a weighted sum of, e.g. [{name: math}, {name: format, weight: 0.1}].
    parts: list[RewardPartConfig] = field(default_factory=list)
    # Where the answer stands in a completion: boxed | tag | final (whatever it gives as its
    # answer, see `grpo.tasks.extraction.final`) | last_number | last_line | all.
    extract: str = "boxed"
    # A completion is correct when its first part reaches this.
    correct_at: float = 0.99
    # Regular expression that the "format" part wants to find in a completion.
    format_pattern: str = ""
    # Rewards in {0, 1} become {−1, +1} (DAPO's option): r → 2r − 1 on the weighted sum.
    signed: bool = False
    # keep | mask (truncated completions are not learned from) | soft (DAPO's linear penalty).
    overlong: str = "keep"
    # soft only: the penalty grows from 0 to −1 over the last `overlong_buffer` tokens before the limit.
    overlong_buffer: int = 0
    # Grading: worker processes, wall-clock seconds per answer, memory cap of a worker in GiB.
    workers: int = 1
    timeout_seconds: float = 5.0
    memory_gib: float = 4.0

    @property
    def weights(self) -> dict[str, float]:
        """Weight by the part's name, in the order given."""
        return {part.name: part.weight for part in self.parts}


@dataclass(kw_only=True)
class TaskConfig:
    """One task: data, prompt and reward."""

    name: str = "task"
    data: DataConfig = field(default_factory=DataConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
