"""This module holds the measured speeds of a machine, from which a run is planned and priced."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class MachineConstants:
    """The constants say how fast one device samples and learns, as `grpo prove` has measured it.

    device                      the device's name, e.g. "NVIDIA H200" or "CPU"
    parameters                  parameters of the model that was measured; speeds hold for this size
    sampling_tokens_per_second  pairs (completions at once, completion tokens/s of all of them), by rising number
    learning_tokens_per_second  packed tokens, prompts and completions alike, per second of an optimizer step
    refresh_seconds             seconds until the sampler holds the learner's weights, compared by checksum
    round_overhead_seconds      seconds of a round that are neither sampling nor learning nor refresh

    >>> constants = MachineConstants("CPU", 1_000_000, ((4, 100.0), (16, 220.0)), 500.0, 0.1, 0.2)
    >>> [constants.sampling_speed(at_once) for at_once in (2, 4, 10, 16, 64)]
    [50.0, 100.0, 160.0, 220.0, 220.0]
    """

    device: str
    parameters: int
    sampling_tokens_per_second: tuple[tuple[int, float], ...]
    learning_tokens_per_second: float
    refresh_seconds: float
    round_overhead_seconds: float

    def sampling_speed(self, at_once: float) -> float:
        """Returns the completion tokens per second of `at_once` completions that are sampled together.

        Between two measurements the speed is interpolated linearly. Below the smallest it is proportional to `at_once`,
        because a decoding step takes as long for fewer completions. Above the largest it is taken to be constant.
        """
        speeds = ((0, 0.0), *self.sampling_tokens_per_second)
        for (fewer, slow), (more, fast) in pairwise(speeds):
            if at_once <= more:
                return slow + (fast - slow) * (at_once - fewer) / (more - fewer)
        return speeds[-1][1]
