"""A task says what is asked, how it is put to the model, and how answers are graded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(kw_only=True)
class SelectionConfig:
    """The selection takes some of a source's problems; it counts the others and says why they are left out.

    See `grpo.tasks.problem_selection`.
    """

    # Problems with a pass rate in this band are kept, both ends included, e.g. [0.1, 0.8]. [0, 1] keeps all.
    solve_rate: list[float] = field(default_factory=lambda: [0.0, 1.0])
    # Pass rates stand in this column. Where it has none, the default takes solve_rate, which `grpo solve-rates` writes.
    solve_rate_column: str = "llama8b_solve_rate"
    # Problems without a pass rate are kept or dropped.
    without_solve_rate: str = "keep"
    # Problems with one of these values in source_column, or else in the column `source`, are kept, e.g. [gsm8k,
    # olympiads]. [] keeps all.
    sources: list[str] = field(default_factory=list)
    # Problems with one of these parts in a path of the column `domain` are kept, e.g. [Algebra, "Mathematics ->
    # Geometry"]. [] keeps all.
    domains: list[str] = field(default_factory=list)
    # Problems with such an answer are kept: integer | decimal | fraction | percent | choice | yes_no | matrix | set |
    # interval | equation | text | expression. [] keeps all.
    answer_types: list[str] = field(default_factory=list)
    # Questions of at most this many characters are kept. 0 keeps all.
    max_characters: int = 0
    # True asks questions of the same words once, whatever their case, spacing and punctuation. Earlier messages and
    # columns that the template shows, such as choices, belong to a question.
    deduplicate: bool = False
    # Problems that these files ask too are left out of training, e.g. [math500.jsonl].
    evaluation_sets: list[str] = field(default_factory=list)
    # A problem is left out when it shares this many words in a row with a question of evaluation_sets. 0 leaves out
    # only questions of the same words.
    ngram: int = 13


@dataclass(kw_only=True)
class CurriculumConfig:
    """The curriculum says which problem is asked when, see `grpo.tasks.curriculum`."""

    # uniform asks each problem once an epoch. weighted asks a problem more often, the more gradient its pass rate
    # promises. anneal goes from easy to hard. online goes by pass rates measured while training.
    name: str = "uniform"
    # Pass rates stand in this column. weighted and anneal go by it; online begins with it. Where it has none, the
    # default takes solve_rate.
    solve_rate_column: str = "llama8b_solve_rate"
    # A problem without a pass rate is taken to have this one.
    without_solve_rate: float = 0.5
    # With weighted and anneal, problems are drawn anew after this many prompts.
    block: int = 2048
    # anneal begins with problems of about this pass rate.
    easy: float = 0.9
    # anneal ends with problems of about this pass rate.
    hard: float = 0.1
    # anneal draws pass rates about its target with this standard deviation.
    width: float = 0.15
    # anneal reaches the hard end after this many prompts.
    anneal_prompts: int = 100_000
    # The column's pass rate counts for this many completions (weighted and online).
    prior_samples: float = 4.0
    # With online, a measured pass rate counts half after this many prompts, since the policy has changed.
    half_life: int = 50_000
    # With online, a problem that was asked rests for this many prompts.
    rest: int = 1024
    # With online, a problem whose group was silent rests for this many prompts.
    rest_silent: int = 8192


@dataclass(kw_only=True)
class DataConfig:
    """The data is where problems come from, see `grpo.tasks.sources`."""

    # Problems come from a file, a data set on the hub, a generator of reasoning_gym, or arithmetic made here.
    source: str = "file"
    # The path is a .jsonl, .json, .csv, .tsv or .parquet file, a folder of such files or one that `save_to_disk` wrote
    # (source=file), an "owner/name" on the hub (hub), or a generator's name (reasoning_gym). arithmetic needs none.
    path: str = ""
    # The hub's data set is read in this configuration, e.g. main. "" is the only one it has.
    subset: str = ""
    # The hub's data set is read from this split.
    split: str = "train"
    # This column holds the question, as text or as a list of chat messages that ends with the user's. A dot leads into
    # a nested column, e.g. extra_info.question (verl: data.prompt_key).
    question_column: str = "problem"
    # This column holds the answer, e.g. reward_model.ground_truth for verl's files. Data may lack it where
    # no part of the reward needs an answer; "" and null name none.
    answer_column: str | None = "answer"
    # This column lists the choices of a multiple-choice question; {COLUMN} in the template shows them with letters. An
    # answer that is a choice's label, text or index becomes its letter. "": there are none.
    choices_column: str = ""
    # This column holds each problem's identity. "" makes one of the source's name and the row's number.
    id_column: str = ""
    # This regular expression, with one group, finds the part of each answer that counts, e.g. "#### (.*)" for GSM8K. ""
    # takes the whole answer.
    answer_pattern: str = ""
    # This column names each problem's source, for task.reward.by_source and for numbers of each source. "": there is
    # none.
    source_column: str = ""
    # Only this many first rows of a file or a hub's data set are read. 0 reads all.
    limit: int = 0
    # A generator draws this many problems. For arithmetic, 0 takes every problem there is.
    size: int = 0
    # A generator gets these options, e.g. {min_digits: 1, max_digits: 2}.
    options: dict[str, Any] = field(default_factory=dict)
    # Another seed of the generator draws other problems. It is not the training seed.
    seed: int = 0
    # Rows without a usable question, or with an answer that is missing or cannot be parsed, are counted and left out
    # (skip) or end the run (refuse).
    bad_rows: str = "skip"
    # This share of the problems is held out for evaluation and never trained on, by a hash of the question. 0.1: a
    # tenth.
    held_out_fraction: float = 0.1
    selection: SelectionConfig = field(default_factory=SelectionConfig)


@dataclass(kw_only=True)
class PromptConfig:
    """The prompt is the text that puts a problem to the model."""

    # The user's message is this text, with the problem in place of {question}, e.g. "{question} Answer with just the
    # number." Any other column but the answer's can stand in braces too, e.g. "{context} {question}".
    template: str = "{question}"
    # The system message is this text, in place of one that the data may have. null leaves it to the data and the chat
    # template; "" sends none at all.
    system: str | None = None
    # True puts the text through the chat template. False sends it as it is, for base models.
    chat: bool = True
    # The chat template gets these options, e.g. {enable_thinking: false} for Qwen3 (verl:
    # data.apply_chat_template_kwargs).
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    # The chat template stands in this file, in place of the tokenizer's own. chatml_tools comes with grpo, for models
    # whose own template knows no tools.
    chat_template: str = ""
    # vLLM's parser of this name reads calls of tools (vllm serve: --tool-call-parser; verl: multi_turn.format), e.g.
    # llama3_json. "" reads them by the tokenizer's response_template, or as JSON in a <tool_call> tag.
    tool_parser: str = ""
    # Solved examples come before the question, as [question, answer] pairs.
    examples: list[list[str]] = field(default_factory=list)
    # A prompt has at most this many tokens (verl: data.max_prompt_length). 0 takes the longest prompt of the
    # data, as far as the model has room for it and for a completion.
    max_tokens: int = 0
    # Longer prompts are dropped and counted (skip), or end the run (refuse).
    too_long: str = "skip"


REFERENCE = """Reference answer:
{answer}

"""
JUDGING = f"""Question:
{{question}}

{REFERENCE}Response:
{{completion}}

How good is the response, from 0 (wrong or useless) to 10 (right and clear)? Give your reasons in a sentence, then the
last line "Score: N"."""


@dataclass(kw_only=True)
class RewardServerConfig:
    """The server of a reward part computes its rewards: a service of one's own (http), or a language model (judge)."""

    # An http part posts {completion, answer, metadata, prompt, messages, source, step, truncated} to this address, and
    # gets back a number or {"score": number, ...}. A judge is any server with OpenAI's interface, e.g. vLLM's
    # http://127.0.0.1:8000/v1.
    url: str = ""
    # The judge is this model. "" takes the first one that its server names.
    model: str = ""
    # The key of the server stands in this environment variable, e.g. OPENAI_API_KEY. It is sent as a bearer token, or
    # put where url says {key}, as in http://127.0.0.1:9000/score?code={key}. "" sends none.
    key_variable: str = ""
    # The judge is asked this, with {question}, {answer} and {completion} filled in. For data without answers, the
    # default leaves out its lines about a reference answer.
    prompt: str = JUDGING
    # This regular expression, with one group, finds the score in the judge's reply. The last one counts.
    pattern: str = r"[Ss]core\W*(-?[0-9.]*[0-9])"
    # The judge's score is divided by this number. A score beyond it, on either side, counts as a failed grading.
    scale: float = 10.0
    # A request to the judge has these further fields, e.g. {max_tokens: 256}.
    options: dict[str, Any] = field(default_factory=dict)
    # Each learner rank has at most this many requests under way.
    at_once: int = 32
    # A request may take this many seconds.
    seconds: float = 60.0
    # A request that fails is repeated so often, with growing pauses.
    retries: int = 3
    # True sends the same request only once. For http, the same completion at another step is another request.
    cache: bool = True


@dataclass(kw_only=True)
class LimitsConfig:
    """These are the limits of an episode, see `grpo.episodes`."""

    # The model has at most this many turns (TRL: max_tool_calling_iterations; verl: multi_turn.max_assistant_turns).
    turns: int = 8
    # Tools, environment and their descriptions have room for this many tokens in model.max_length, if that is 0.
    observed_tokens: int = 1024
    # The episode's own code may take this many seconds in all, while it waits for no turn of the model.
    seconds: float = 60.0
    # The episode's process may take this many GiB of memory.
    memory_gib: float = 4.0
    # One program that the model runs by the tool `python` may take this many seconds.
    program_seconds: float = 10.0
    # The model reads this many characters of the program's output, and as many of its errors.
    program_characters: int = 2000
    # Programs run in a sandbox, and where this machine has none, the run is refused (auto). none runs them with the
    # rights of this user, so that they may read files.
    sandbox: str = "auto"
    # Nothing is learned from the group of an episode that raises an exception or takes too long (spoil), or it counts
    # as cut off there (truncate).
    failed: str = "spoil"
    # Each learner rank has at most this many episodes under way.
    at_once: int = 256


REMOTE = ("http", "judge")
"""Reward parts of these kinds are computed by servers."""
LARGEST_REWARD = 1e6
"""No reward may be larger, since squares of huge rewards overflow."""
EPISODE = "episode"
"""This reward part is what the episode itself returned; "episode/NAME" is a further number that it returned."""


def remote_kind(name: str) -> str:
    """Returns "http" or "judge" for a reward part that a server computes, by its name up to a slash; "" for others.

    >>> remote_kind("judge/style"), remote_kind("math")
    ('judge', '')
    """
    kind = name.partition("/")[0]
    return kind if kind in REMOTE and ":" not in name else ""


@dataclass(kw_only=True)
class RewardPartConfig:
    """A reward part is one function of a completion and its weight in the sum."""

    # The part is math | exact | number | reasoning_gym | format | code, or the path of a function of one's own,
    # "package.module:function" or "file.py:function". It takes (completion, answer, metadata), or what TRL or verl
    # would give it (verl: custom_reward_function). http and judge ask a server; judge/style is a second judge.
    # episode is the reward that the episode itself returned, and episode/NAME another number of it.
    name: str = ""
    # The part's value is multiplied by this weight (TRL: reward_weights).
    weight: float = 1.0
    # This server computes the part, if its name is http or judge, e.g. {url: "http://127.0.0.1:8000/v1"}.
    server: RewardServerConfig | None = None


@dataclass(kw_only=True)
class SourceRewardConfig:
    """The reward of one source of problems takes the place of the task's own."""

    # The reward of this source is the weighted sum of these parts.
    parts: list[RewardPartConfig] = field(default_factory=list)
    # Answers of this source are read in this way. "" reads them as those of all others.
    extract: str = ""


@dataclass(kw_only=True)
class RewardConfig:
    """The reward turns a completion into a number, see `grpo.tasks.rewards`."""

    # The reward is the weighted sum of these parts, e.g. [{name: math}, {name: format, weight: 0.1}] (TRL:
    # reward_funcs).
    parts: list[RewardPartConfig] = field(default_factory=list)
    # Problems of these sources have other parts, e.g. task.reward.by_source={gsm8k: {parts: [{name: number}]}}. The
    # source of a problem stands in task.data.source_column.
    by_source: dict[str, SourceRewardConfig] = field(default_factory=dict)
    # A completion's answer is read from `\boxed{}`, from an `<answer>` tag, from whatever it gives as its final answer
    # (see `grpo.tasks.extraction.final`), from its last number, from its last line, or from all of it.
    extract: str = "boxed"
    # A completion is correct when its first part reaches this value.
    correct_at: float = 0.99
    # The part "format" gives 1 when this regular expression is found in the completion.
    format_pattern: str = ""
    # True turns rewards in {0, 1} into {−1, +1}, by r → 2r − 1 on the weighted sum (DAPO's option).
    signed: bool = False
    # Completions cut at the limit are kept, count as wrong (zero), are not learned from (mask; TRL:
    # mask_truncated_completions), or get DAPO's linear penalty (soft).
    overlong: str = "keep"
    # With overlong=soft, the penalty grows from 0 to −1 over this many tokens before the limit (verl:
    # overlong_buffer.len).
    overlong_buffer: int = 0
    # This many worker processes grade answers.
    workers: int = 1
    # Grading one answer may take this many seconds by the clock.
    timeout_seconds: float = 5.0
    # A worker may take this many GiB of memory.
    memory_gib: float = 4.0
    # The part "code" runs programs in a sandbox, and where this machine has none, the run is refused (auto). none runs
    # them with the rights of this user, so that they may read files.
    sandbox: str = "auto"

    @property
    def weights(self) -> dict[str, float]:
        """Returns the weight of each part by its name, in the order given."""
        return {part.name: part.weight for part in self.parts}

    def of(self, source: str) -> RewardConfig:
        """Returns the reward of a source's problems: the task's, changed by the source's own settings."""
        if source not in self.by_source:
            return replace(self, by_source={})
        reward = self.by_source[source]
        return replace(self, parts=reward.parts or self.parts, extract=reward.extract or self.extract, by_source={})


@dataclass(kw_only=True)
class TaskConfig:
    """A task is its data, its prompt and its reward."""

    # Tables and messages call the task by this name.
    name: str = "task"
    data: DataConfig = field(default_factory=DataConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    # A completion is an episode of several turns, led by functions that are tools ("tools.py:search,calculator";
    # "python" and "calculator" come with grpo), by a class that is an environment (TRL: environment_factory), by a
    # function of one's own, async def solve(chat, problem), or by a program that speaks OpenAI's chat interface
    # ("program: node agent.js"). "" is a single turn.
    episode: str = ""
    # The episode's code runs in this Python, e.g. .venv-agents/bin/python, where grpo is installed without its extras.
    # "" is the trainer's own.
    python: str = ""
    # Episodes reach the policy by OpenAI's chat interface at this address of the learner's machine.
    gateway: str = "127.0.0.1"
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    # A task may be made of several sets of problems. Each has a name, and data, prompt and reward of its own: see
    # configs/task/mixed.yaml. The task itself then has a curriculum only.
    sets: dict[str, TaskConfig] = field(default_factory=dict)
    # One of several sets is asked in proportion to this weight, however many problems it has.
    weight: float = 1.0

    @property
    def all_sets(self) -> dict[str, TaskConfig]:
        """Returns the sets by their names. A task without sets is its only set, and has the name ""."""
        return self.sets or {"": self}

    @property
    def rewards(self) -> list[RewardConfig]:
        return [of_set.reward for of_set in self.all_sets.values()]

    @property
    def answer_name(self) -> str:
        """Returns the name of the answers' column, without the columns that it is nested in."""
        return (self.data.answer_column or "").rpartition(".")[2]

    @property
    def column_names(self) -> tuple[str, str]:
        """Returns the names of the questions' and of the answers' column, as `answer_name` does."""
        return self.data.question_column.rpartition(".")[2], self.answer_name
