"""This module finds the YAML groups that come with grpo."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def config_directory() -> Path:
    """Returns the folder of YAML groups: inside the package when installed, beside it in a checkout."""
    installed = PACKAGE / "configs"
    return installed if installed.is_dir() else PACKAGE.parent / "configs"
