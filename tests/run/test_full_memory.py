"""A GPU without memory ends a run in one line that names the keys which need less."""

import pytest
import torch

from grpo.config import TrainConfig, UserError
from grpo.run.clocks import Clocks
from grpo.telemetry import Phases

SAID = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is "
    "free. Including non-PyTorch memory, this process has 77.90 GiB memory in use."
)


class Full:
    """Every method of this part needs more memory than there is."""

    def __getattr__(self, name):
        def out_of_memory(*arguments):
            raise torch.OutOfMemoryError(SAID)

        return out_of_memory


def clocks():
    return Clocks(TrainConfig(), Phases())


@pytest.mark.parametrize(
    ("call", "phase", "key"),
    [
        (lambda: clocks().learner(Full()).step(None), "learn", "learner.micro_batch_tokens"),
        (lambda: clocks().learner(Full()).add_logprobs([]), "logprobs", "learner.micro_batch_tokens"),
        (lambda: clocks().sampler(Full()).generate([], 8), "sample", "rollout.gpu_memory_fraction"),
        (lambda: clocks().resting(Full()).wake(), "sleep", "rollout.gpu_memory_fraction"),
        (lambda: clocks().weight_sync(Full()).refresh(None, None), "sync", "weight_sync.bucket_mib"),
    ],
)
def test_each_phase_names_the_keys_that_need_less_memory(call, phase, key):
    with pytest.raises(UserError) as error:
        call()
    line = str(error.value)
    assert line.startswith(f"the GPU has no memory left ({phase}): lower {key}")
    assert line.endswith("GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is free.")
    assert "\n" not in line


def test_other_errors_stay_what_they_are():
    class Broken:
        def __getattr__(self, name):
            def broken(*arguments):
                raise RuntimeError("an error of another kind")

            return broken

    with pytest.raises(RuntimeError, match="an error of another kind"):
        clocks().learner(Broken()).step(None)
