"""This module encodes problems as token ids."""

import copy
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from grpo.config import PromptConfig, UserError
from grpo.config.directory import chat_template_in
from grpo.config.errors import first_line, require
from grpo.tasks.columns import cell, whole, written
from grpo.types import Problem

QUESTION = "{question}"

MAX_ADDED_TOKENS = 8
"""A tokenizer adds fewer special tokens than this to a text."""

HUGE = 2**16
"""A question of more characters than this is not tokenized whole if its beginning shows that it is too long."""

MANY_CHARACTERS = 16
"""So many characters for each token of the limit are the beginning of a huge question."""

BATCH = 4096
"""This many prompts are tokenized in one call."""

# A template that escapes, strips or interprets the question would change this text.
_TELLTALE = """ q<&>"'\\ {{1}} {%2%}\n """.strip()

_MARK = "A-MESSAGE-GOES-HERE"

_PLACE = re.compile(r"\{([A-Za-z_][\w.]*|\d+)\}")


class PromptEncoder:
    """An encoder turns a problem into token ids, by the tokenizer's chat template or (``chat=False``) as plain text.

    Examples become earlier user and assistant turns. In plain text, each example is the filled template, the
    example's answer unchanged, and a blank line. Plain text gets the tokenizer's own special tokens.

    With `system` null, the default system text that some templates write and a system message of the data both stay. A
    non-empty `system` replaces them as the system message. "" means no system text at all: a template's default is cut
    out, and a template whose default cannot be cut out is refused.

    Raises `UserError` for prompt settings that contradict each other or that the template refuses.
    """

    def __init__(self, tokenizer: Any, config: PromptConfig) -> None:
        if QUESTION not in config.template:
            raise UserError(f"task.prompt.template {config.template!r} lacks {QUESTION}, where the problem is put.")
        if any(len(example) != 2 or not all(map(str.strip, example)) for example in config.examples):
            raise UserError("task.prompt.examples: each example must be a [question, answer] pair.")
        if config.chat_template:
            tokenizer = copy.copy(tokenizer)
            tokenizer.chat_template = chat_template_in(config.chat_template)
        if config.chat and not getattr(tokenizer, "chat_template", None):
            if config.chat_template:
                raise UserError(f"task.prompt.chat_template={config.chat_template} is an empty file: write a template")
            raise UserError(
                "this tokenizer has no chat template; set task.prompt.chat=false, or name a file of one in "
                "task.prompt.chat_template."
            )
        if config.system and not config.chat:
            raise UserError("task.prompt.system needs a chat template; put its text into task.prompt.template.")
        for option, value in config.chat_template_kwargs.items():
            require(
                value not in ("true", "false", "True", "False"),
                f"task.prompt.chat_template_kwargs has {option} as the text {value!r}, which every template takes for "
                "true: leave out its quotes",
            )
            # A template passes over options that it does not know, so a slip of the pen would go unnoticed.
            if not config.chat or option not in str(tokenizer.chat_template):
                raise UserError(
                    f"task.prompt.chat_template_kwargs has {option!r}, which this model's chat template does not read; "
                    "correct or remove it."
                )
        self.tokenizer = tokenizer
        self._config = config
        if not config.chat and self._ends_texts():
            raise UserError(
                f"this tokenizer ends every text with {tokenizer.eos_token}, so a prompt would end before its answer "
                "begins: set add_eos_token to false in its tokenizer_config.json, or correct tokenizer.json."
            )
        self._default_system = self._written_system() if config.chat and config.system == "" else ""
        if config.chat:
            self._require_question()
        self._require_plain_words()

    def __call__(self, problem: Problem) -> tuple[int, ...]:
        """Returns the prompt's token ids, up to where the completion begins."""
        return self._tokens(self.text(problem))

    def fitting(self, problems: Sequence[Problem]) -> tuple[list[Problem], tuple[str, ...]]:
        """Returns the problems whose prompts have at most `config.max_tokens` tokens, and the ids of the others.

        Called for all problems before training, so that the stream depends on seed and cursor alone. With `max_tokens`
        0 every prompt fits.
        Raises `UserError` for a longer prompt when `config.too_long` is ``"refuse"``, and when no prompt fits.
        """
        limit = self._config.max_tokens or math.inf
        unsure = [problem for problem in problems if self._bound(problem) > limit]
        longer = {problem.problem_id for problem in unsure if self._is_beyond(problem, limit)}
        unsure = [problem for problem in unsure if problem.problem_id not in longer]
        longer |= {
            problem.problem_id
            for start in range(0, len(unsure), BATCH)
            for problem, length in self._lengths(unsure[start : start + BATCH])
            if length > limit
        }
        dropped = [problem for problem in problems if problem.problem_id in longer]
        kept = [problem for problem in problems if problem.problem_id not in longer] if longer else list(problems)
        if dropped and (self._config.too_long == "refuse" or not kept):
            raise UserError(
                f"{len(dropped)} of {len(problems)} prompts are longer than {self._config.max_tokens} tokens, the "
                f"first {dropped[0].problem_id}; raise task.prompt.max_tokens and model.max_length"
                + (", or set task.prompt.too_long=skip." if kept else ".")
            )
        return kept, tuple(problem.problem_id for problem in dropped)

    def holding_special_tokens(self, problems: Sequence[Problem]) -> dict[str, str]:
        """Returns the first special token in each problem that holds one, by the problem's id.

        A model reads such a text as the token that it spells, for example as the end of a message.
        """
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).values()
        tokens = {*self.tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
        pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")
        found = {}
        for problem in problems:
            texts = problem.question, *(str(message["content"]) for message in problem.messages)
            if token := next(filter(None, map(pattern.search, texts)), None):
                found[problem.problem_id] = token[0]
        return found

    def longest(self, problems: Sequence[Problem], most: float = math.inf) -> int:
        """Returns the number of tokens of the longest prompt, or `most` + 1 where a huge one has more than `most`."""
        if any(self._is_beyond(problem, most) for problem in problems):
            return int(most) + 1
        longest = 0
        in_order = sorted(problems, key=self._bound, reverse=True)
        for start in range(0, len(in_order), BATCH):
            unsure = [problem for problem in in_order[start : start + BATCH] if self._bound(problem) > longest]
            longest = max([longest, *(length for _, length in self._lengths(unsure))]) if unsure else longest
        return longest

    def text(self, problem: Problem) -> str:
        """Returns the prompt as text, before tokenization.

        Raises `UserError` for a conversation that cannot be written without a chat template, and for half a character,
        which a column in the template may hold.
        """
        config = self._config
        question = filled(config.template, problem)
        if not whole(question):
            raise UserError(
                f"{problem.problem_id}: its prompt holds half a character, which no tokenizer reads: correct that row, "
                "or take its column out of task.prompt.template"
            )
        examples = self._examples()
        if not config.chat:
            if len(problem.messages) > 1:
                raise UserError(
                    f"{problem.problem_id} is a conversation of several messages, which task.prompt.chat=false cannot "
                    "write; name a column of text with task.data.question_column."
                )
            return "".join(f"{asked}{answer}\n\n" for asked, answer in examples) + question
        return self.render(self._conversation(problem, examples, question))

    def messages(self, problem: Problem) -> list[Mapping[str, str]]:
        """Returns the messages that put a problem to the model."""
        return self._conversation(problem, self._examples(), filled(self._config.template, problem))

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, add_generation_prompt: bool = True
    ) -> str:
        """Returns a conversation as text. With `tools`, JSON schemas, the template describes them to the model."""
        rendered = self._render(messages, add_generation_prompt, tools)
        return rendered.replace(self._default_system, "", 1) if self._default_system else rendered

    def _examples(self) -> list[tuple[str, str]]:
        return [
            (filled(self._config.template, Problem("", asked, "")), answer) for asked, answer in self._config.examples
        ]

    def _conversation(
        self, problem: Problem, examples: Sequence[tuple[str, str]], question: str
    ) -> list[Mapping[str, str]]:
        system = self._config.system
        earlier = problem.messages[:-1]
        first = [message for message in earlier if message["role"] == "system"]
        messages = first if system is None else [_message("system", system)] if system else []
        for asked, answer in examples:
            messages = [*messages, _message("user", asked), _message("assistant", answer)]
        messages += [message for message in earlier if message["role"] != "system"]
        return [*messages, _message("user", question)]

    def _bound(self, problem: Problem) -> float:
        """Returns an upper bound of a prompt's number of tokens without tokenizing the prompt, which would be slow.

        A token of ASCII text spells at least one character. The bound is infinite for other texts, for conversations,
        and for templates that hold other columns.
        """
        countable = problem.question.isascii() and len(problem.messages) <= 1
        return len(problem.question) + self._frame if countable else math.inf

    def _is_beyond(self, problem: Problem, limit: float) -> bool:
        """Tells whether the beginning of a huge question has more than twice `limit` tokens. Later text may change
        how the beginning is cut into tokens, mostly its last ones. Twice the limit is a margin for that, not a proof.
        """
        question = problem.question.strip()
        if len(question) <= max(HUGE, MANY_CHARACTERS * limit):
            return False
        return len(self._tokens(question[: max(HUGE, MANY_CHARACTERS * int(limit))])) > 2 * limit

    @functools.cached_property
    def _frame(self) -> float:
        """Returns an upper bound of the number of tokens that the template puts around an ASCII question.

        The bound is infinite when the template may change the question's text, or holds other columns.
        """
        if any(f"{{{name}}}" != QUESTION for name in _PLACE.findall(self._config.template)):
            return math.inf
        text = self.text(Problem("", _TELLTALE, ""))
        around = text.replace(_TELLTALE, "", 1)
        return len(around) + MAX_ADDED_TOKENS if text.count(_TELLTALE) == 1 and around.isascii() else math.inf

    def _lengths(self, problems: Sequence[Problem]) -> Iterator[tuple[Problem, int]]:
        """Pairs each problem with its prompt's number of tokens. One call lets a fast tokenizer use all cores."""
        special = not self._config.chat
        encoded = self.tokenizer([self.text(problem) for problem in problems], add_special_tokens=special)
        return zip(problems, map(len, encoded["input_ids"]), strict=True)

    def _ends_texts(self) -> bool:
        """Tells whether the tokenizer adds its end of sequence to every text."""
        bare, whole = (self.tokenizer.encode("1", add_special_tokens=special) for special in (False, True))
        end = [self.tokenizer.eos_token_id]
        return whole[-1:] == end != bare[-1:]

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=not self._config.chat))

    def _render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, tools: Any = None
    ) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self._config.chat_template_kwargs,
            )
        except Exception as error:  # a template is code of the model's author and may raise anything
            # A template refuses a prompt by jinja2's own `raise_exception`, and anything else is its own fault.
            if type(error).__name__ == "TemplateError":
                what, remedy = "prompt", "change task.prompt.system or task.prompt.examples"
                if tools:
                    what, remedy = "conversation", "give a template that takes it in task.prompt.chat_template=FILE"
                raise UserError(f"the tokenizer's chat template refuses the {what}: {error}; {remedy}") from error
            line = f" in line {error.lineno}" if hasattr(error, "lineno") else ""
            template, remedy = self._template
            cause = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"{template} is broken{line} ({cause}): {remedy}") from error

    def _require_question(self) -> None:
        """Raises `UserError` for a template that leaves out what the user asks, so that all prompts would be the same,
        or the system message that is configured."""
        system = [_message("system", _MARK[::-1])] if self._config.system else []
        try:
            prompt = self._render([*system, _message("user", _MARK)])
        except UserError:
            return  # it refuses this conversation, but may take those of the data
        template, remedy = self._template
        require(_MARK in prompt, f"{template} leaves out the user's message: {remedy}")
        require(
            not system or _MARK[::-1] in prompt,
            f"{template} leaves out task.prompt.system: write its text into task.prompt.template",
        )

    def _require_plain_words(self) -> None:
        """Raises `UserError` for a configured text with a special token that is written around it anyway. The model
        would read that token twice."""
        config, tokenizer = self._config, self.tokenizer
        texts, by, remedy = {"template": config.template}, "the tokenizer", ""
        if config.chat:
            texts |= {"system": config.system or "", "examples": str(config.examples)}
            by, remedy = "the chat template", ", or set task.prompt.chat=false"
        try:
            around = self._render([_message("user", "1")]) if config.chat else tokenizer.decode(tokenizer.encode("1"))
        except UserError:
            return  # it refuses this conversation, but may take those of the data
        for name, token in product(texts, tokenizer.all_special_tokens):
            twice = token in texts[name] if config.chat else texts[name].startswith(token)
            require(
                not (twice and token in around),
                f"task.prompt.{name} holds {token}, which {by} writes too: leave it out{remedy}",
            )

    @property
    def _template(self) -> tuple[str, str]:
        """Names the chat template, and says where it is corrected."""
        if own := self._config.chat_template:
            return f"task.prompt.chat_template={own}", "correct that file"
        remedy = "correct chat_template.jinja there, or chat_template in tokenizer_config.json"
        return f"the chat template of {self.tokenizer.name_or_path}", remedy

    def _written_system(self) -> str:
        """Returns the system text that the template writes when none is given. It is "" for most templates.

        The text is found by comparing a prompt without a system message to one with a known system text.
        Raises `UserError` when the template writes one that cannot be cut out.
        """
        messages = [_message("user", "question")]
        plain = self._render(messages)
        try:
            marked = self._render([_message("system", _MARK), *messages])
        except UserError:
            return ""  # a template that accepts no system message writes none
        before, mark, after = marked.partition(_MARK)
        if not mark or not plain.startswith(before) or not plain.endswith(after):
            return ""
        try:
            alone = self._render([_message("system", _MARK)], False)
        except UserError:
            alone = ""
        if not alone or not marked.startswith(alone):
            raise UserError("this chat template always writes a system text; set task.prompt.system to null or a text.")
        body = marked[len(alone) :]
        default = plain.removesuffix(body)
        # A first token that opens every turn (ChatML) belongs to the system part; one that opens the whole prompt does
        # not.
        bos = self.tokenizer.bos_token or ""
        return default if bos and body.startswith(bos) else default.removeprefix(bos)


def unfilled(template: str, problems: Sequence[Problem]) -> list[str]:
    """Returns the names in a template's braces that no problem has as a column. Arguments of LaTeX are left out.

    >>> unfilled("{context}: {question} in \\boxed{x}", [Problem("p", "How many?", "3")])
    ['context']
    """
    names = [place[1] for place in _PLACE.finditer(template) if not re.search(r"[\w}^]$", template[: place.start()])]
    return [
        name
        for name in names
        if name != QUESTION.strip("{}") and all(cell(problem.metadata, name) is None for problem in problems)
    ]


def filled(template: str, problem: Problem) -> str:
    """Fills a template: the problem's question and columns replace their names in braces.

    Braces that name no column stay unchanged, such as those of LaTeX. The problem's answer does not count as a column.

    >>> filled("{context} {question} \\\\boxed{}", Problem("p", "How many?", "3", {"context": "A box holds 3 balls."}))
    'A box holds 3 balls. How many? \\\\boxed{}'
    """

    def column(match: re.Match[str]) -> str:
        value = problem.question if match[0] == QUESTION else cell(problem.metadata, match[1])
        return match[0] if value is None else written(value)

    return _PLACE.sub(column, template)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
