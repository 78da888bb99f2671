"""This module asks a language model to judge completions: the request, and the score in the reply."""

import re
from collections.abc import Mapping
from typing import Any

from grpo.config import RewardServerConfig, UserError
from grpo.config.task import REFERENCE

MAX_EXCERPT = 200


class Judge:
    """A judge is a language model that is asked to score a completion, over OpenAI's chat completions API."""

    def __init__(self, name: str, server: RewardServerConfig) -> None:
        """Takes the reward part's name, for messages, and its server. Raises `UserError` for an invalid pattern."""
        self._server, self.model = server, server.model
        pattern = f"task.reward.parts: {name!r}: server.pattern {server.pattern!r}"
        try:
            self._pattern = re.compile(server.pattern)
        except re.error as error:
            raise UserError(f"{pattern} is not a valid regular expression: {error}") from error
        if self._pattern.groups != 1:
            raise UserError(f"{pattern} has {self._pattern.groups} groups; it needs one")

    def request(self, question: str, answer: str, completion: str) -> Mapping[str, Any]:
        """Returns the request that asks for a score. Names in braces inside the inserted texts are not filled.

        Without an answer, the lines about a reference answer are left out.
        """
        texts = {"{question}": question, "{answer}": answer, "{completion}": completion}
        prompt = self._server.prompt if answer else self._server.prompt.replace(REFERENCE, "")
        text = re.sub("|".join(map(re.escape, texts)), lambda place: texts[place[0]], prompt)
        message = {"role": "user", "content": text}
        return {"model": self.model, "messages": [message], "temperature": 0.0, **self._server.options}

    @property
    def needs_answers(self) -> bool:
        """Returns whether the judge compares completions with the problem's answer whatever the data have."""
        return "{answer}" in self._server.prompt.replace(REFERENCE, "")

    def score(self, answer: Mapping[str, Any]) -> float:
        """Returns the last score in the judge's reply, divided by the scale.

        Raises ValueError where there is none, or one beyond the scale: a completion may have talked the judge into it.
        """
        reply = answer["choices"][0]["message"]["content"] or ""
        scores = self._pattern.findall(reply)
        if not scores:
            raise ValueError(f"no {self._server.pattern!r} in the reply {excerpt(reply)}")
        score = float(scores[-1]) / self._server.scale
        if abs(score) > 1:
            raise ValueError(f"the score {scores[-1]} in the reply {excerpt(reply)} is beyond {self._server.scale:g}")
        return score


def excerpt(answer: Any) -> str:
    """Returns the beginning of what a server answered, on one line."""
    text = " ".join(str(answer).split())
    return repr(text if len(text) <= MAX_EXCERPT else f"{text[:MAX_EXCERPT]}…")
