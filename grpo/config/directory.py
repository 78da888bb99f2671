"""This module finds the YAML groups and chat templates that come with grpo."""

from pathlib import Path

from grpo.config.errors import UserError, first_line

PACKAGE = Path(__file__).resolve().parent.parent


def config_directory() -> Path:
    """Returns the folder of YAML groups: inside the package when installed, beside it in a checkout."""
    installed = PACKAGE / "configs"
    return installed if installed.is_dir() else PACKAGE.parent / "configs"


def chat_template_in(name: str) -> str:
    """Reads a chat template: a file, or one of those that come with grpo by its name, such as chatml_tools."""
    shipped = config_directory() / "chat_templates" / f"{name}.jinja"
    path = shipped if "." not in name and shipped.is_file() else Path(name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"task.prompt.chat_template={name} cannot be read ({first_line(error)}): name a file, or chatml_tools"
        ) from error
