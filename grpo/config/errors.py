"""The one exception for what a person can mend."""


class UserError(Exception):
    """Something that the person at the keyboard can mend. Its text is one line: what, and how to mend it.

    `grpo.cli` prints it without a traceback and exits with 2.
    """


class SamplerLost(UserError):
    """Nobody is left to sample: the run ends with a checkpoint of its last round."""


class EndedElsewhere(UserError):
    """Another rank has failed and tells why: this one ends without a word."""


NOBODY_LEFT = "no vLLM server is left: see logs/ in the run's folder, and continue with checkpoint.resume=true"


def require(condition: bool, message: str) -> None:
    """Raises UserError with `message` where `condition` does not hold."""
    if not condition:
        raise UserError(message)
