"""These tests check the settings that the engine in the learner's process gets on GPUs, by vLLM's own functions and by
stand-ins."""

import os
from fnmatch import fnmatch
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from grpo.config import SamplingConfig, TrainConfig, UserError
from grpo.config.parts import SamplerSettings
from grpo.interfaces import Draw
from grpo.rollout.engine_arguments import colocated_arguments
from grpo.types import Problem, Prompt
from grpo.weight_sync.refresh import CheckedSync
from tests.fakes import on_ranks
from tests.learner.models import files_of, tiny_llama

# vLLM takes six seconds to load.
pytestmark = pytest.mark.slow


def place_of_engine(arguments):
    """Returns (rank, index of the GPU) of an engine, as vLLM computes them from its arguments and the environment."""
    from vllm.v1.executor import Executor

    backend = arguments.get("distributed_executor_backend")
    parallel = SimpleNamespace(distributed_executor_backend=backend or "uni")
    device = SimpleNamespace(device=torch.device("cuda"))
    settings = SimpleNamespace(parallel_config=parallel, device_config=device)
    executor = Executor.get_class(settings)
    return executor._distributed_args(SimpleNamespace(vllm_config=settings))[1:]


def test_the_engine_of_each_rank_has_the_gpu_of_its_rank(monkeypatch):
    monkeypatch.setenv("RANK", "11")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert place_of_engine(colocated_arguments(on_gpu=True, num_ranks=16)) == (11, 3)
    assert place_of_engine({}) == (0, 0), "vLLM's own choice knows nothing of ranks"


def test_one_process_without_a_launcher_needs_no_variables_of_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert place_of_engine(colocated_arguments(on_gpu=True, num_ranks=1)) == (0, 0)


def test_ranks_that_are_one_engine_say_so_to_vllm(monkeypatch):
    arguments = colocated_arguments(on_gpu=True, num_ranks=8, tensor_parallel=4)
    assert arguments["tensor_parallel_size"] == 4
    assert "tensor_parallel_size" not in colocated_arguments(on_gpu=True, num_ranks=8)
    monkeypatch.setenv("RANK", "6")
    monkeypatch.setenv("LOCAL_RANK", "6")
    # All ranks join one world, of which vLLM makes engines of four neighbours.
    assert place_of_engine(arguments) == (6, 6)


def test_an_engine_leaves_the_threads_the_gpu_and_the_variables_as_they_were(monkeypatch):
    from grpo.rollout.vllm_sampler import _own_settings

    calls = []
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    monkeypatch.setenv("MASTER_PORT", "1234")
    state, threads, device = torch.get_rng_state(), torch.get_num_threads(), torch.device("cuda", 3)
    with _own_settings(device):
        torch.manual_seed(0)
        os.environ["MASTER_PORT"] = "1"
        assert calls == []
    assert calls == [threads, device]
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


def recorded_llm():
    """Returns a stand-in for `vllm.LLM` that does not tell how many completions its cache holds."""
    llm = Recorded()
    llm.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(cache_config=SimpleNamespace()))
    return llm


def test_an_engine_that_sleeps_keeps_the_weights_of_its_draft_model():
    """vLLM loses all parameters at sleep level 2, except those with these names."""
    speculating = colocated_arguments(on_gpu=True, num_ranks=1, speculates=True)
    assert fnmatch("draft.model.layers.0.mlp.down_proj.weight", *speculating["sleep_preserve_parameter_names"])
    # Older versions of vLLM do not know the argument.
    for others in ({"on_gpu": True}, {"on_gpu": False, "speculates": True}):
        assert "sleep_preserve_parameter_names" not in colocated_arguments(num_ranks=1, **others)


@pytest.mark.parametrize(("lost", "level"), [([], 2), (["layers.0.attn.alibi_slopes"], 1)])
def test_weights_wait_in_main_memory_where_sleep_would_lose_more_than_a_refresh_brings_back(
    lost, level, tmp_path, monkeypatch
):
    from benchmarks.small_models import tiny_tokenizer
    from grpo.rollout import vllm_sampler

    engine = recorded_llm()
    engine.collective_rpc = lambda name: [lost] if name == "lost_by_sleep" else [None]
    for name in ("empty_cache", "set_device"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: None)
    monkeypatch.setattr(vllm_sampler, "LLM", lambda **arguments: engine)
    value = vllm_sampler.VllmSampler(
        SamplerSettings.of(TrainConfig()), files_of(tiny_llama(tmp_path), tiny_tokenizer()), torch.device("cuda", 0)
    )
    value.sleep()
    value.finish_weights(1)
    value.sleep()
    assert [call for call in engine.calls if call[0] == "sleep"] == [("sleep", 1), ("sleep", level)]


@pytest.mark.parametrize(
    ("device", "said", "expected"),
    [
        ("cuda", "is less than desired GPU memory utilization", "lower rollout.gpu_memory_fraction"),
        ("cuda", "No available memory for the cache blocks", "raise rollout.gpu_memory_fraction"),
        ("cpu", "No available memory for the cache blocks", "raise rollout.kv_cache_gib"),
    ],
)
def test_an_engine_without_memory_to_start_is_one_line_on_each_device(device, said, expected, tmp_path, monkeypatch):
    from benchmarks.small_models import tiny_tokenizer
    from grpo.rollout import vllm_sampler

    def full(**arguments):
        raise ValueError(f"the memory {said}")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(vllm_sampler, "LLM", full)
    with pytest.raises(UserError, match=f"vLLM has too little memory to start: .*{expected}"):
        vllm_sampler.VllmSampler(
            SamplerSettings.of(TrainConfig()), files_of(tiny_llama(tmp_path), tiny_tokenizer()), torch.device(device)
        )


def test_an_engine_starts_once_what_loading_the_learner_took_is_free(tmp_path, monkeypatch):
    from benchmarks.small_models import tiny_tokenizer
    from grpo.rollout import vllm_sampler

    path, calls = tiny_llama(tmp_path), []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("room"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(vllm_sampler, "LLM", lambda **arguments: calls.append("engine") or recorded_llm())
    vllm_sampler.VllmSampler(
        SamplerSettings.of(TrainConfig()), files_of(path, tiny_tokenizer()), torch.device("cuda", 0)
    )
    assert calls == ["room", "engine"]


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
        vllm_sampler.VllmSampler(
            SamplerSettings.of(config), files_of(tiny_llama(tmp_path), tiny_tokenizer()), torch.device("cpu")
        )
    assert "\n" not in str(refused.value)


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
        lambda: request_memory(taken, share): r"cuda:3 \(20.0/80.0 GiB\)",
        lambda: cache(0): r"raise rollout.gpu_memory_fraction\.",
        lambda: cache(gib): r"raise rollout.gpu_memory_fraction, or lower model.max_length\.",
    }
    for fail, expected in failures.items():
        with pytest.raises(UserError, match=expected) as refused, explaining_startup(on_gpu=True):
            fail()
        assert "too little memory" in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(UserError, match=r"raise rollout.kv_cache_gib\."), explaining_startup(on_gpu=False):
        cache(0)
    worker = object.__new__(CPUWorker)
    worker.compilation_config = SimpleNamespace(mode=CompilationMode.NONE)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=2**60)
    with pytest.raises(UserError, match=r"lower rollout.kv_cache_gib\."), explaining_startup(on_gpu=False):
        worker.determine_available_memory()
    too_long = "max_model_len (4096) is greater than the derived max_model_len (max_position_embeddings=2048.0 or x=1)."
    with (
        pytest.raises(UserError, match="model.max_length=4096 is more .* lower model"),
        explaining_startup(on_gpu=True),
    ):
        raise ValueError(too_long)
    with pytest.raises(ValueError, match="something else"), explaining_startup(on_gpu=True):
        raise ValueError("something else")


@pytest.fixture
def pooled():
    """Imports it only where it is used, since every test run collects this file."""
    from grpo.rollout.vllm_sampler import pooled

    return pooled


@pytest.fixture
def sampler():
    """Makes a sampler on a GPU whose engine is `Recorded`."""
    from grpo.rollout.vllm_sampler import VllmSampler

    value = object.__new__(VllmSampler)
    value._llm, value._on_gpu, value._settings = Recorded(), True, SamplerSettings.of(TrainConfig())
    value._file_form = SimpleNamespace(of=lambda bucket: bucket)
    value._sleep_level, value._deepest_level = 1, 2
    value._adapters, value._adapted, value._alone = False, {}, False
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
def test_an_engine_completes_groups_all_along_however_many_prompts_it_is_asked(num_prompts, sampler, pooled):
    """The deadline of an evaluation begins anew with each completed group."""
    sampler._pool, sampler._stop_token_ids, sampler.policy_version = partial(pooled, None, 1), [2], 5
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


def test_an_engine_on_a_gpu_stays_until_its_process_ends(sampler, monkeypatch):
    """One that sleeps would end with an error that vLLM remembers, and no later engine would get memory."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    sampler.close()
    assert sampler._llm.calls == []


def test_a_cache_that_keeps_what_older_weights_have_computed_ends_the_run(sampler, monkeypatch):
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    sampler._llm.reset_prefix_cache = lambda: False
    with pytest.raises(RuntimeError, match="did not empty its prefix cache"):
        sampler.finish_weights(4)


def test_the_cache_gets_its_memory_after_the_weights_have_come(sampler):
    learner = SimpleNamespace(weight_buckets=lambda form: [["first"], ["second"]], num_steps=4)
    sync = CheckedSync(0.5)
    sampler.sleep()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo.weight_sync.refresh.checksums", lambda bucket: {})
        patch.setattr("torch.cuda.empty_cache", lambda: sampler._llm.calls.append(("the learner's room is free",)))
        sync.refresh(learner, sampler)
    sampler.sleep()
    assert sampler._llm.calls == [
        # Before the first refresh it is not known which weights no learner sends: vLLM keeps all.
        ("sleep", 1),
        ("the learner's room is free",),
        ("wake_up", ["weights"]),
        ("collective_rpc", "begin_refresh"),
        ("collective_rpc", "receive_bucket", (["first"],)),
        ("collective_rpc", "receive_bucket", (["second"],)),
        ("collective_rpc", "finish_refresh"),
        ("the learner's room is free",),
        ("wake_up", ["kv_cache"]),
        ("reset_prefix_cache",),
        ("collective_rpc", "weight_checksums"),
        # Weights are sent anew, so that no copy of them is kept in main memory.
        ("sleep", 2),
    ]
    assert sampler.policy_version == 4


# Ranks do not have equally many prompts.
ITEMS = [["a", "b"], [], ["c"], ["d", "e", "f"]]


def test_the_ranks_of_an_engine_have_the_same_list_in_the_same_order_and_know_their_place(pooled):
    answers = on_ranks(4, lambda ranks: pooled(ranks, 2, ITEMS[ranks.rank]))
    # Ranks take turns. Otherwise the last one's groups would all come last, and an evaluation's deadline might end it.
    assert [items for items, _ in answers] == [["a", "b"], ["a", "b"], [*"cdef"], [*"cdef"]]
    assert [[items[place] for place in own] for items, own in answers] == ITEMS
    both = on_ranks(2, lambda ranks: pooled(ranks, 2, [["a", "b", "c"], ["d", "e"]][ranks.rank]))
    assert both == [([*"adbec"], [0, 2, 4]), ([*"adbec"], [1, 3])]


@pytest.mark.parametrize(("together", "expected"), [(4, ITEMS), (1, ITEMS)])
def test_one_engine_may_have_all_ranks_or_one(together, expected, pooled):
    answers = on_ranks(4, lambda ranks: pooled(ranks, together, ITEMS[ranks.rank]))
    assert [[items[place] for place in own] for items, own in answers] == expected


def test_a_rank_with_an_engine_of_its_own_asks_nobody(pooled):
    assert pooled(None, 1, ["a"]) == (["a"], [0])
