"""This module does once, for all programs that are forked (see warm.py), what each would do alike as it starts.

vLLM looks through all modules for functions of Triton's, and puts its own for CPUs in their place. Hydra learns to
parse words, and reads the schema of a configuration.
"""

from vllm.platforms.cpu import CpuPlatform

from grpo.config import start
from grpo.config.hydra import compose_config
from grpo.config.saved import from_dict

compose_config(["experiment=tiny"])
from_dict({})
# Each program has a start of its own, by which folders are named.
start._own_starts.clear()
CpuPlatform.register_triton_kernel_overrides()
CpuPlatform.register_triton_kernel_overrides = lambda _: None
