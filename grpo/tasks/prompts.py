"""This module encodes problems as token ids and gives them out as an endless stream of prompts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from grpo.config import PromptConfig, UserError
from grpo.tasks.curriculum import Order
from grpo.types import Problem, Prompt

QUESTION = "{question}"

MAX_ADDED_TOKENS = 8
"""A tokenizer adds fewer special tokens than this to a text."""

BATCH = 4096
"""This many prompts are tokenized in one call."""

# A template that escapes, strips or interprets the question would change this text.
_TELLTALE = """ q<&>"'\\ {{1}} {%2%}\n """.strip()

_MARK = "SYSTEM-TEXT-GOES-HERE"


class PromptEncoder:
    """An encoder turns a problem into token ids, by the tokenizer's chat template or (``chat=False``) as plain text.

    Examples become earlier user and assistant turns. In plain text, each example is the filled template, the
    example's answer unchanged, and a blank line. Plain text gets the tokenizer's own special tokens.

    `system` null leaves the template as it is, including the default system text that some templates write.
    A non-empty `system` is sent as the system message. "" means no system text at all: a default is cut out, and a
    template from which it cannot be cut is refused.

    Raises `UserError` for prompt settings that contradict each other or that the template refuses.
    """

    def __init__(self, tokenizer: Any, config: PromptConfig) -> None:
        if QUESTION not in config.template:
            raise UserError(f"task.prompt.template {config.template!r} lacks {QUESTION}, where the problem is put.")
        if any(len(example) != 2 for example in config.examples):
            raise UserError("task.prompt.examples: each example must be a [question, answer] pair.")
        if config.chat and not getattr(tokenizer, "chat_template", None):
            raise UserError("this tokenizer has no chat template; set task.prompt.chat=false.")
        if config.system and not config.chat:
            raise UserError("task.prompt.system needs a chat template; put its text into task.prompt.template.")
        self._tokenizer = tokenizer
        self._config = config
        self._default_system = _default_system(tokenizer) if config.chat and config.system == "" else ""

    def __call__(self, problem: Problem) -> tuple[int, ...]:
        """Returns the token ids up to where the model's answer begins."""
        return self._tokens(self.text(problem))

    def fitting(self, problems: Sequence[Problem]) -> tuple[list[Problem], tuple[str, ...]]:
        """Returns the problems whose prompts have at most `config.max_tokens` tokens, and the ids of the others.

        Called for all problems before training, so that the stream depends on seed and cursor alone.
        Raises `UserError` for a longer prompt when `config.too_long` is ``"refuse"``, and when no prompt fits.
        """
        unsure = [problem for problem in problems if not self._surely_fits(problem)]
        longer = {
            problem.problem_id
            for start in range(0, len(unsure), BATCH)
            for problem, length in self._lengths(unsure[start : start + BATCH])
            if length > self._config.max_tokens
        }
        dropped = [problem for problem in problems if problem.problem_id in longer]
        kept = [problem for problem in problems if problem.problem_id not in longer] if longer else list(problems)
        if dropped and (self._config.too_long == "refuse" or not kept):
            raise UserError(
                f"{len(dropped)} of {len(problems)} prompts are longer than {self._config.max_tokens} tokens, the "
                f"first {dropped[0].problem_id}; raise task.prompt.max_tokens or set task.prompt.too_long=skip."
            )
        return kept, tuple(problem.problem_id for problem in dropped)

    def text(self, problem: Problem) -> str:
        """Returns the prompt as text, before tokenization."""
        config = self._config
        question = config.template.replace(QUESTION, problem.question)
        solved = [(config.template.replace(QUESTION, example[0]), example[1]) for example in config.examples]
        if not config.chat:
            return "".join(f"{asked}{answer}\n\n" for asked, answer in solved) + question
        messages = [_message("system", config.system)] if config.system else []
        for asked, answer in solved:
            messages += [_message("user", asked), _message("assistant", answer)]
        rendered = _render(self._tokenizer, [*messages, _message("user", question)], True)
        return rendered.replace(self._default_system, "", 1) if self._default_system else rendered

    def _surely_fits(self, problem: Problem) -> bool:
        """Tells whether a prompt certainly fits, without tokenizing it, which would be slow.

        A token of ASCII text spells at least one character, so the number of characters is an upper bound.
        """
        question = problem.question
        return question.isascii() and len(question) + self._frame <= self._config.max_tokens

    @functools.cached_property
    def _frame(self) -> float:
        """An upper bound of the tokens that the template puts around an ASCII question.

        It is infinite when the template may treat the question's own text specially.
        """
        text = self.text(Problem("", _TELLTALE, ""))
        around = text.replace(_TELLTALE, "", 1)
        return len(around) + MAX_ADDED_TOKENS if text.count(_TELLTALE) == 1 and around.isascii() else math.inf

    def _lengths(self, problems: Sequence[Problem]) -> Iterator[tuple[Problem, int]]:
        """Pairs each problem with its prompt's number of tokens. One call lets a fast tokenizer use all cores."""
        special = not self._config.chat
        encoded = self._tokenizer([self.text(problem) for problem in problems], add_special_tokens=special)
        return zip(problems, map(len, encoded["input_ids"]), strict=True)

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=not self._config.chat))


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _render(tokenizer: Any, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    except Exception as error:  # a template is code of the model's author and may raise anything
        raise UserError(
            f"the tokenizer's chat template refuses the prompt: {error}; change task.prompt.system or "
            "task.prompt.examples."
        ) from error


def _default_system(tokenizer: Any) -> str:
    """Returns the system text that the template writes when none is given. It is "" for most templates.

    The text is found by comparing a prompt without a system message to one with a known system text.
    Raises `UserError` when the template writes one that cannot be cut out.
    """
    asked = [_message("user", "question")]
    plain = _render(tokenizer, asked, True)
    try:
        marked = _render(tokenizer, [_message("system", _MARK), *asked], True)
    except UserError:
        return ""  # a template that accepts no system message writes none
    before, mark, after = marked.partition(_MARK)
    if not mark or not plain.startswith(before) or not plain.endswith(after):
        return ""
    try:
        alone = _render(tokenizer, [_message("system", _MARK)], False)
    except UserError:
        alone = ""
    if not alone or not marked.startswith(alone):
        raise UserError("this chat template always writes a system text; set task.prompt.system to null or a text.")
    body = marked[len(alone) :]
    default = plain.removesuffix(body)
    # A first token that opens every turn (ChatML) belongs to the system part; one that opens the whole prompt does not.
    bos = tokenizer.bos_token or ""
    return default if bos and body.startswith(bos) else default.removeprefix(bos)


class PromptStream:
    """A prompt stream gives out prompts without end, in the order of a curriculum.

    `cursor` counts the prompts given out over all ranks. The prompt at a position depends on the order and the position
    only, so setting the cursor is enough to resume. A position belongs to rank `position % world_size`, so the ranks'
    shares always make up the same stream, however many prompts are taken at a time.

    Raises `UserError` when there are no problems.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        encode: Callable[[Problem], tuple[int, ...]],
        order: Order,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not problems:
            raise UserError("there are no problems to train on; check task.data.")
        self._problems = tuple(problems)
        self._encode = functools.lru_cache(maxsize=4096)(lambda index: encode(self._problems[index]))
        self._order = order
        self._rank = rank
        self._world_size = world_size
        self.cursor = 0

    def __len__(self) -> int:
        """The number of problems in one epoch."""
        return len(self._problems)

    def next_prompts(self, count: int) -> list[Prompt]:
        """Moves the cursor by `count` positions, and returns the prompts at those that belong to this rank."""
        first = self.cursor
        indices = self._order.indices(first, count)
        self.cursor += count
        return [
            Prompt(self._problems[index], self._encode(int(index)), self._order.visit(position))
            for position, index in enumerate(indices, start=first)
            if position % self._world_size == self._rank
        ]

    def learn(self, outcomes: Mapping[str, tuple[int, int]], cursor: int) -> None:
        """Passes the outcomes of a round to the order: problem id → (correct, tried) completions, over all ranks.

        `cursor` is where the stream stood after that round.
        """
        counts = [(self._places[name], *outcome) for name, outcome in outcomes.items() if name in self._places]
        self._order.learn(counts, cursor)

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {problem.problem_id: index for index, problem in enumerate(self._problems)}
