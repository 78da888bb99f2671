"""This program compares the tokens that TRL puts between a call of a tool and the model's next turn with ours.

    python benchmarks/trl_bridges.py FOLDER

Run it with an interpreter that has trl==1.16.0 beside this project's environment. FOLDER has chat templates, such as
TRL's own (trl/chat_templates). For each that shows tools, the program plays the conversations in `CASES`. It takes the
template that TRL would train with, and asks TRL's `_get_tool_suffix_ids` and our `ChatTemplate.bridge` for the tokens
after the last call. Both are compared with what the template writes there in the whole conversation. It also prints
what a run of ours with the template would do before its first round, as chat_templates.py does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trl.chat_template_utils import (
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    supports_tool_calling,
)
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.chat_templates import TOOL, tokenizer_of, verdict
from grpo.config import ModelConfig
from grpo.config.errors import UserError, first_line
from grpo.episodes.messages import system_of
from grpo.episodes.template import ChatTemplate
from grpo.models.resolve import resolve

MARK = "4711"
EOS = {"glm": "<|endoftext|>", "gemma4": "<eos>", "diffusion_gemma": "<eos>", "gptoss": "<|return|>"}
"""The tokenizers of these families have another end of text than the token that ends turns."""


def turn(*expressions: str, content: str = "") -> dict[str, Any]:
    calls = [
        {
            "id": f"call0000{place}",
            "type": "function",
            "function": {"name": "calculator", "arguments": {"expression": e}},
        }
        for place, e in enumerate(expressions)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def answer(content: str, place: int = 0) -> dict[str, Any]:
    return {"role": "tool", "name": "calculator", "tool_call_id": f"call0000{place}", "content": content}


ASKED = {"role": "user", "content": "What is 2 + 3?"}
LAST = turn(f"2 + {MARK}")
CASES = {
    "one call": ([ASKED, LAST], [answer("4713")]),
    "words before the call": ([ASKED, turn(f"2 + {MARK}", content="Let me see.")], [answer("4713")]),
    "two calls": ([ASKED, turn("2 + 3", f"2 + {MARK}")], [answer("5"), answer("4713", 1)]),
    "a second call": ([ASKED, turn("2 + 3"), answer("5"), LAST], [answer("4713")]),
    "a system message": ([{"role": "system", "content": "Be brief."}, ASKED, LAST], [answer("4713")]),
    "an answer of several lines": ([ASKED, LAST], [answer('4713\n\n"it" is <b>4713</b>\n')]),
    "an empty answer": ([ASKED, LAST], [answer("")]),
    "a further question": ([ASKED, LAST], [answer("4713"), {"role": "user", "content": "Surely?"}]),
}
"""Each conversation ends with a call, which these messages follow."""


class Comparison:
    """A comparison asks TRL and us for the tokens after calls of one chat template."""

    def __init__(self, path: Path, model: Path):
        self.tokenizer, self._ends = tokenizer_of(path, model)
        self.tokenizer.chat_template = path.read_text()
        for family, end in EOS.items():
            if path.stem.startswith(family):
                self.tokenizer.add_special_tokens({"eos_token": end})
        self.shows_tools = supports_tool_calling(self.tokenizer)
        # As TRL's trainer does.
        preserving = not self.shows_tools or is_chat_template_prefix_preserving(self.tokenizer)
        self._used = None if preserving else get_training_chat_template(self.tokenizer)
        self._ours = ChatTemplate(self.tokenizer, self._text, self._ends)

    def _text(self, messages: Sequence[Any], **how: Any) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, chat_template=self._used, **how)

    def outcomes(self, before: Sequence[Any], after: Sequence[Any]) -> tuple[str, str]:
        """Returns how TRL and we do: "exact", "differs" or an error."""
        try:
            whole = self._text([*before, *after], tools=[TOOL], add_generation_prompt=True)
        except Exception as error:
            return (f"no such conversation: {first_line(error)[:50]}",) * 2
        encoded = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        ids, begins = encoded["input_ids"], [begin for begin, _ in encoded["offset_mapping"]]
        behind = whole.rfind(MARK)
        cut = next((at for at, token in enumerate(ids) if token in self._ends and begins[at] > behind), None)
        if behind < 0 or cut is None:
            return ("the template leaves the call out, or does not end it",) * 2
        parts = {"_is_vlm": False, "_tokenizer": self.tokenizer, "processing_class": self.tokenizer}
        trainer = SimpleNamespace(**parts, chat_template=self._used, chat_template_kwargs={})
        trl = partial(GRPOTrainer._get_tool_suffix_ids, trainer, list(after))
        ours = partial(self._ours.bridge, system_of(before), before[-1], after, [TOOL], ids[cut])
        return said(trl, ids[cut + 1 :]), said(ours, ids[cut + 1 :])


def said(bridge: Callable[[], Sequence[int]], expected: Sequence[int]) -> str:
    try:
        return "exact" if list(bridge()) == list(expected) else "differs"
    except (ValueError, UserError) as error:
        return f"refuses: {first_line(error)[:60]}"


def main(folder: str) -> None:
    model = resolve(ModelConfig(source="smollm2"), tuple)
    for path in sorted(Path(folder).glob("*.jinja")):
        # TRL puts these in the place of others.
        if path.stem.endswith("_training") or not (comparison := Comparison(path, model)).shows_tools:
            continue
        print(f"{path.stem}: {verdict(path, model, [TOOL])[:140]}")
        for name, (before, after) in CASES.items():
            trl, ours = comparison.outcomes(before, after)
            print(f"    {name:28} TRL: {trl:75} ours: {ours}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
