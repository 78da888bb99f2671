"""This program says of each chat template in a folder whether conversations with it grow by appending.

    python benchmarks/chat_templates.py FOLDER

The folder has Jinja files, one for each template, as TRL (trl/chat_templates) and llama.cpp (models/templates) keep
them. The tokenizer is SmolLM2's, with the special tokens that a template names added. For each template the program
prints "exact", or what stays of earlier turns where the template would drop it, or why a run would be refused: for
conversations without tools and with one tool, and for both with a system message where that makes a difference.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from grpo.config import ModelConfig, PromptConfig
from grpo.config.errors import UserError
from grpo.episodes.template import ChatTemplate
from grpo.models.resolve import resolve
from grpo.tasks.prompt_encoding import PromptEncoder

ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eot|>", "<|eom_id|>", "<|eom|>", "<end_of_turn>", "<turn|>", "<|end|>"),
    *("<|return|>", "<|call|>", "<｜end▁of▁sentence｜>", "</s>", "<|END_OF_TURN_TOKEN|>", "<|end_of_text|>"),
    *("<|endoftext|>", "<SPECIAL_12>", "<|user|>", "<|observation|>", "<|tool_response>", "<eos>", "[EOS]"),
    *("<|tool_calls_section_end|>", "<seed:eos>", "<[e~["),
)
"""These tokens end an assistant's turn in one family or another."""
SPECIAL = re.compile(r"<\|[\w]+\|>|<[a-z_]+_of_turn>|</?s>|<｜[^｜]+｜>|\[/?[A-Z_]{3,}\]|<\|?turn\|?>|<bos>|<eos>")
SYSTEM = ({"role": "system", "content": "Be brief."},)
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "The expression."}},
            "required": ["expression"],
        },
    },
}


def tokenizer_of(path: Path, model: Path) -> tuple[PreTrainedTokenizerBase, list[int]]:
    """Returns the tokenizer of `model` with the special tokens that a template names, and the tokens that end turns."""
    text = path.read_text()
    tokenizer = AutoTokenizer.from_pretrained(model)
    named = [end for end in ENDS if end in text] or [tokenizer.eos_token]
    # Llama's parser wants a token that not all of its templates write.
    added = {*SPECIAL.findall(text), *named, "<|python_tag|>"}
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(added)})
    tokenizer.eos_token = named[0]
    ends = [tokenizer.convert_tokens_to_ids(end) for end in named]
    return tokenizer, [end for end in ends if end is not None]


def verdict(path: Path, model: Path, tools: list | None, system: tuple = ()) -> str:
    """Returns what a run with this template would do."""
    tokenizer, known = tokenizer_of(path, model)

    def proved(parser: str = "") -> str:
        encode = PromptEncoder(tokenizer, PromptConfig(chat_template=str(path)))
        kept = ChatTemplate(tokenizer, encode.render, known, parser).prove(tools, system)
        read_by = f", read by {parser}" if parser else ""
        return f"exact{read_by}, but for {kept} of earlier turns, which stay" if kept else f"exact{read_by}"

    try:
        return proved()
    except UserError as error:
        # A run names a parser that reads the calls, and is taken at its word.
        if named := re.search(r"set task.prompt.tool_parser to (\w+)", str(error)):
            try:
                return proved(named[1])
            except UserError as of_parser:
                return f"refused: {of_parser}"
        return f"refused: {error}"


def main(folder: str) -> None:
    model = resolve(ModelConfig(source="smollm2"), tuple)
    for path in sorted(Path(folder).glob("*.jinja")):
        for name, tools in ((path.stem, None), ("   with a tool", [TOOL])):
            plain, with_system = (verdict(path, model, tools, system)[:110] for system in ((), SYSTEM))
            print(f"{name:38} {plain}", flush=True)
            if with_system != plain:
                print(f"{'   with a system message':38} {with_system}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
