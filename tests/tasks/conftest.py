import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# ChatML. With default_system, the template writes that text when no system message comes first.
CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and default_system and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\n' + default_system + '<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer(template=CHATML, default_system="", bos="<|im_start|>"):
    """Makes a tokenizer with one token for each byte, and the special tokens of ChatML."""
    special = list(dict.fromkeys([bos, "<|im_start|>", "<|im_end|>"]))
    words = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=bos, eos_token="<|im_end|>", additional_special_tokens=special
    )
    if template is not None:
        tokenizer.chat_template = f"{{% set default_system = '{default_system}' %}}" + template
    return tokenizer


@pytest.fixture
def tokenizer():
    return byte_tokenizer()


@pytest.fixture
def write_rows(tmp_path):
    def write(rows, name="sums.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture(scope="session")
def custom_rewards(tmp_path_factory):
    """Writes a module of reward functions that misbehave, and returns its name. Workers can import it, since they
    inherit sys.path."""
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "misbehaving_rewards.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        "def obey(completion, answer, metadata):\n"
        "    if completion == 'sleep': time.sleep(600)\n"
        "    if completion == 'spin': sum(range(10**12))\n"
        "    if completion == 'raise': raise ValueError('cannot read ' + completion)\n"
        "    if completion == 'hog': bytearray(10 * 2**30)\n"
        "    if completion == 'recurse': obey_again()\n"
        "    if completion == 'die': os._exit(3)\n"
        "    if completion == 'exit': sys.exit('enough')\n"
        "    if completion == 'crash': os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    if completion == 'slow': time.sleep(0.5)\n"
        "    if completion.startswith('kill ') and not os.path.exists(completion[5:]):\n"
        "        open(completion[5:], 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    if completion.startswith('start '): subprocess.Popen(completion.split()[1:])\n"
        "    if completion.endswith(' 600'): time.sleep(600)\n"
        "    if completion == 'nan': return float('nan')\n"
        "    return float(completion == answer) + metadata.get('bonus', 0.0)\n"
        "def obey_again(): return obey_again()\n"
        "not_a_function = 3\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "misbehaving_rewards"
