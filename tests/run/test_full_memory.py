"""A GPU without memory ends a run in one line that names the keys which need less."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from grpo.config import TrainConfig, UserError
from grpo.interfaces import Collector, Draw, Learner, Sampler, WeightSync
from grpo.learner.offloading import LearnerStates
from grpo.run import session
from grpo.run.clocks import Clocks, TimedSampler
from grpo.telemetry.phases import Phases
from tests.fakes import SingleRank
from tests.learner.models import files_of

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


def built(**engines):
    """Builds the engines of a run, by the functions in `engines` where one is given."""
    ready = SimpleNamespace(
        config=TrainConfig(device="cpu"),
        files=files_of("", "a tokenizer"),
        suite=(),
        task=SimpleNamespace(identity=None),
    )
    with pytest.MonkeyPatch.context() as patch:
        a_learner = SimpleNamespace(collective=SingleRank())
        patch.setattr(session, "DeepSpeedLearner", engines.get("learner", lambda *arguments: a_learner))
        patch.setattr(session, "sampler_in_turn", engines.get("sampler"))
        patch.setattr(session, "base_of", lambda *arguments: None)
        session.Session(ready, None, None, None, ExitStack())


@pytest.mark.parametrize(
    ("call", "phase", "key"),
    [
        (lambda: clocks().timed(Full(), Learner).step(None), "learn", "learner.micro_batch_tokens"),
        (lambda: clocks().timed(Full(), Learner).add_logprobs([]), "logprobs", "learner.micro_batch_tokens"),
        (lambda: TimedSampler(Full(), clocks()).generate(Draw([], 8)), "sample", "rollout.gpu_memory_fraction"),
        (lambda: clocks().timed(Full(), Sampler, "sleep", "wake").wake(), "sleep", "rollout.gpu_memory_fraction"),
        (lambda: clocks().timed(Full(), WeightSync).refresh(None, None), "sync", "weight_sync.bucket_mib"),
        (lambda: clocks().timed(Full(), LearnerStates).reload(), "offload", "learner.micro_batch_tokens"),
        (lambda: clocks().between("evaluation", Full().evaluate)(), "evaluation", "rollout.gpu_memory_fraction"),
        (lambda: clocks().timed(Full(), Collector).collect(None, 1), "wait", "rollout.gpu_memory_fraction"),
        (lambda: built(learner=Full().load), "loading the model", "learner.micro_batch_tokens"),
        (lambda: built(sampler=Full().start), "starting the sampler", "rollout.gpu_memory_fraction"),
    ],
)
def test_each_phase_names_the_keys_that_need_less_memory(call, phase, key):
    with pytest.raises(UserError) as error:
        call()
    line = str(error.value)
    assert line.startswith(f"the GPU has no memory left ({phase}): lower {key}")
    assert line.endswith("GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is free.")
    assert "\n" not in line


@pytest.mark.parametrize(("method", "phase"), [("wake", "sleep"), ("refresh", "sync")])
def test_an_engine_that_finds_no_room_when_it_wakes_is_reported_too(method, phase):
    """vLLM (0.32, csrc/cumem_allocator.cpp) maps memory by itself, and raises no error of torch's."""

    class Waking:
        def __getattr__(self, name):
            def out_of_memory(*arguments):
                raise RuntimeError("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:139")

            return out_of_memory

    part = (
        clocks().timed(Waking(), Sampler, "sleep", "wake") if method == "wake" else clocks().timed(Waking(), WeightSync)
    )
    with pytest.raises(UserError, match=rf"^the GPU has no memory left \({phase}\): .*rollout.gpu_memory_fraction"):
        getattr(part, method)(*(() if method == "wake" else (None, None)))


def test_other_errors_stay_what_they_are():
    class Broken:
        def __getattr__(self, name):
            def broken(*arguments):
                raise RuntimeError("an error of another kind")

            return broken

    with pytest.raises(RuntimeError, match="an error of another kind"):
        clocks().timed(Broken(), Learner).step(None)
