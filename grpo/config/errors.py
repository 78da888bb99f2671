"""UserError and its kinds tell a person what can be mended."""


class UserError(Exception):
    """A UserError is a mistake that the person at the keyboard can mend. Its one line says what, and how.

    `grpo.cli` prints it without a traceback and exits with 2.
    """


class SamplerLost(UserError):
    """No server is left that could sample: the run ends with a checkpoint of its last round."""


class EndedElsewhere(UserError):
    """Another rank has failed and says why, so this rank ends in silence."""


NOBODY_LEFT = "no vLLM server is left: see logs/ in the run's folder, and continue with checkpoint.resume=true"


def require(condition: bool, message: str) -> None:
    """Raises UserError with `message` where `condition` does not hold."""
    if not condition:
        raise UserError(message)
