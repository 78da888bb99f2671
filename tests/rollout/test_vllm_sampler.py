"""These tests check how the engine in the learner's process starts, answers and takes weights.

Its place is taken by stand-ins, and errors are those of vLLM's own functions."""

import os
import re
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from grpo.config import SamplingConfig, TrainConfig, UserError
from grpo.config.parts import SamplerSettings
from grpo.interfaces import Draw
from grpo.rollout.engine_arguments import cache_key, start_problem
from grpo.types import Problem, Prompt
from tests.learner.models import files_of, tiny_llama

# vLLM takes six seconds to load.
pytestmark = pytest.mark.slow


def test_an_engine_leaves_the_variables_and_the_random_numbers_as_they_were(monkeypatch):
    from grpo.rollout.vllm_sampler import _own_settings

    monkeypatch.setenv("MASTER_PORT", "1234")
    state = torch.get_rng_state()
    with _own_settings():
        torch.manual_seed(0)
        os.environ["MASTER_PORT"] = "1"
    assert torch.equal(torch.get_rng_state(), state)
    assert os.environ["MASTER_PORT"] == "1234"


class Recorded:
    """This stand-in for `vllm.LLM` records the calls of its methods in order."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, *arguments, *named.values()))
            return [{}]

        return call


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ({"engine_args": {"max_seqs": 3}}, r"rollout.engine_args={'max_seqs': 3} is refused: no such argument"),
        (
            {"sampling": SamplingConfig(extra={"min_pea": 0.1})},
            r"rollout.sampling.extra={'min_pea': 0.1} is refused: .*pea",
        ),
        ({"sampling": SamplingConfig(extra={"min_p": 2.0})}, r"min_p must be in \[0, 1\]"),
    ],
)
def test_settings_that_vllm_refuses_are_one_line(passed, expected, tmp_path, monkeypatch):
    from benchmarks.small_models import tiny_tokenizer
    from grpo.rollout import vllm_sampler

    def refuses(**arguments):
        raise TypeError("no such\nargument")

    monkeypatch.setattr(vllm_sampler, "LLM", refuses)
    config = TrainConfig()
    for name, value in passed.items():
        setattr(config.rollout, name, value)
    with pytest.raises(UserError, match=expected) as refused:
        vllm_sampler.VllmSampler(SamplerSettings.of(config), files_of(tiny_llama(tmp_path), tiny_tokenizer()))
    assert "\n" not in str(refused.value)


def said(call):
    """Returns the text of the ValueError that a call raises."""
    with pytest.raises(ValueError) as error:
        call()
    return str(error.value)


def test_an_engine_that_lacks_memory_names_the_keys_of_a_run():
    """The errors are those of vLLM's own functions."""
    from vllm.config import CompilationMode
    from vllm.v1.core.kv_cache_utils import _check_enough_kv_cache_memory
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.utils import request_memory

    from grpo.rollout.vllm_sampler import explaining_startup

    gib = 2**30
    taken = SimpleNamespace(total_memory=80 * gib, free_memory=20 * gib, device_="cuda:3")
    share = SimpleNamespace(gpu_memory_utilization=0.4)

    def cache(available):
        _check_enough_kv_cache_memory(available, lambda: 9 * gib, 4096, lambda memory: 9)

    failures = {
        said(lambda: request_memory(taken, share)): "end other programs on the GPU, lower {cache}, or set learner.off",
        said(lambda: cache(0)): "raise {cache}.",
        said(lambda: cache(gib)): "raise {cache}, or lower model.max_length.",
    }
    keys = [cache_key(on_gpu, beside) for on_gpu, beside in ((True, True), (True, False), (False, True))]
    assert keys == ["rollout.gpu_memory_fraction", "rollout.servers.gpu_memory_fraction", "rollout.kv_cache_gib"]
    for text, expected in failures.items():
        for key in keys:
            # A server's log has other lines around it.
            line = start_problem(f"(Worker pid=3)\nValueError: {text}\n(APIServer pid=1)", key)
            assert line.startswith(f"vLLM has too little memory to start: {expected.format(cache=key)}")
            assert "\n" not in line
    with pytest.raises(UserError, match=r"raise rollout.kv_cache_gib\."), explaining_startup():
        cache(0)
    worker = object.__new__(CPUWorker)
    worker.compilation_config = SimpleNamespace(mode=CompilationMode.NONE)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=2**60)
    with pytest.raises(UserError, match=r"lower rollout.kv_cache_gib\."), explaining_startup():
        worker.determine_available_memory()
    too_long = "max_model_len (4096) is greater than the derived max_model_len (max_position_embeddings=2048.0 or x=1)."
    assert re.fullmatch("model.max_length=4096 is more .* lower model.*", start_problem(too_long, ""))
    assert start_problem("something else", "") == ""
    with pytest.raises(ValueError, match="something else"), explaining_startup():
        raise ValueError("something else")


@pytest.fixture
def sampler():
    """Makes a sampler whose engine is `Recorded`."""
    from grpo.rollout.vllm_sampler import VllmSampler

    value = object.__new__(VllmSampler)
    value._llm, value._settings = Recorded(), SamplerSettings.of(TrainConfig())
    value._file_form = SimpleNamespace(of=lambda bucket: bucket)
    value._adapters, value._adapted = False, {}
    return value


def test_an_engine_answers_once_with_the_whole_completion(sampler):
    """Otherwise it would make an answer, and objects of log-probabilities, for every token in the learner's process."""
    from vllm.sampling_params import RequestOutputKind

    engine = sampler._llm.llm_engine = Recorded()
    sampler._stop_token_ids, sampler.policy_version = [2], 5
    sampler._submit("0/3", 3, Prompt(Problem("p", "q", "a"), (3, 4)), sampler._settings.rollout.sampling)
    [(asked, number, prompt, parameters)] = engine.calls
    assert (asked, number, prompt) == ("add_request", "0/3", {"prompt_token_ids": [3, 4]})
    assert parameters.output_kind == RequestOutputKind.FINAL_ONLY and parameters.flat_logprobs


class InTurn:
    """This engine writes two completions of one token at a time, in the order in which they were asked."""

    def __init__(self):
        self.waiting, self.num_steps = [], 0

    def add_request(self, name, prompt, parameters):
        self.waiting.append(name)

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        self.num_steps += 1
        names, self.waiting = self.waiting[:2], self.waiting[2:]
        written = SimpleNamespace(token_ids=[2], logprobs=SimpleNamespace(logprobs=[-0.5]), finish_reason="stop")
        return [SimpleNamespace(request_id=name, finished=True, outputs=[written]) for name in names]


@pytest.mark.parametrize("num_prompts", [2, 9, 60])
def test_an_engine_completes_groups_all_along_however_many_prompts_it_is_asked(num_prompts, sampler):
    """The deadline of an evaluation begins anew with each completed group."""
    sampler._stop_token_ids, sampler.policy_version = [2], 5
    sampler._tokenizer = SimpleNamespace(decode=lambda tokens, skip_special_tokens: "")
    sampler._settings.rollout.max_concurrent = 2
    engine = sampler._llm.llm_engine = InTurn()
    prompts, ends = [Prompt(Problem(f"p{place}", "q", "a"), (3, 4)) for place in range(num_prompts)], [0]
    groups = sampler.generate(Draw(prompts, 4), on_group=lambda place, group: ends.append(engine.num_steps))
    assert [group.prompt for group in groups] == prompts
    assert {len(group.completions) for group in groups} == {4}
    # Two prompts have eight completions, which are four steps.
    assert max(after - before for before, after in pairwise(ends)) <= 4
    assert engine.num_steps == 2 * num_prompts


def test_a_model_of_vllm_that_takes_no_such_weights_is_one_line(sampler):
    def refused(name, args):
        raise KeyError("layers.1.mlp.experts.gate_up_proj")

    sampler._llm.collective_rpc = refused
    with pytest.raises(UserError, match=r"\(KeyError: 'layers.1.mlp.experts.gate_up_proj'\): use rollout.engi"):
        sampler.load_weights([])


def test_a_cache_that_keeps_what_older_weights_have_computed_ends_the_run(sampler):
    sampler._llm.reset_prefix_cache = lambda reset_connector: False
    with pytest.raises(RuntimeError, match="did not empty its prefix cache"):
        sampler.finish_weights(4)


def test_turns_of_episodes_that_were_given_up_are_dropped_when_all_others_have_ended():
    from grpo.rollout.turns import Turn, Turns
    from grpo.rollout.vllm_sampler import VllmSampler

    class Endless(Recorded):
        """No turn comes to an end."""

        def step(self):
            self.calls.append(("step",))
            if len(self.calls) == 3:
                turns.close()
            return []

    turns, engine, sampler = Turns(), Endless(), object.__new__(VllmSampler)
    sampler._llm, sampler._submit = SimpleNamespace(llm_engine=engine), lambda *what: None
    turns.put(Turn(Prompt(Problem("p", "q", "a"), (1,)), 0, SamplingConfig()))
    sampler.serve(turns)
    assert engine.calls == [("step",)] * 3 + [("abort_request", ["turn-0"], False)]
