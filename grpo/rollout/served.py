"""This module says what a vLLM server runs, and whether that is what a run needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpo
from grpo.config import TrainConfig
from grpo.config.errors import require
from grpo.rollout.vllm_version import vllm_version

# These entries of a model's config.json say nothing of what it computes.
UNIMPORTANT = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
VERSION, ENGINE, LENGTH = "the version of grpo", "the version of vLLM", "model.max_length"
# What "auto" stands for depends on the machine.
BY_MACHINE = ("rollout.precision", "model.head_precision")
# These arguments of vLLM may differ between machines. They choose how memory and time are spent, how a server is
# reached and what it may download, but not what is computed. All others have to be those of the run.
OWN_TO_A_MACHINE = {
    *("max_num_batched_tokens", "num_gpu_blocks_override", "cpu_offload_gb", "kv_offloading_size"),
    *("cudagraph_capture_sizes", "max_cudagraph_capture_size", "async_scheduling", "stream_interval"),
    *("numa_bind", "numa_bind_cpus", "numa_bind_nodes", "disable_custom_all_reduce", "distributed_timeout_seconds"),
    *("api_server_count", "uvicorn_log_level", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"),
    *("download_dir", "hf_token", "max_parallel_loading_workers", "otlp_traces_endpoint"),
}


def served(config: TrainConfig, model_path: str | Path) -> dict[str, Any]:
    """Returns what a server of this configuration runs: what it has in common with the run that may use it."""
    described = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    model = {f"{name} of the model": value for name, value in described.items() if name not in UNIMPORTANT}
    # Servers take names with hyphens too, as flags.
    passed_on = {name.replace("-", "_"): value for name, value in config.rollout.engine_args.items()}
    return (
        model
        | {
            VERSION: grpo.__version__,
            ENGINE: vllm_version(),
            LENGTH: config.model.max_length,
            "model.head_precision": config.model.head_precision,
            "rollout.precision": config.rollout.precision,
            "rollout.servers.tensor_parallel": config.rollout.servers.tensor_parallel,
        }
        | {f"rollout.engine_args.{name}": passed_on[name] for name in sorted({*passed_on} - OWN_TO_A_MACHINE)}
    )


def require_same(url: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises UserError when the server at `url` runs another model or version of grpo than this run, in another
    precision or with other arguments of vLLM, or takes shorter sequences.

    Another vLLM is no reason (see `told_versions`).
    """
    names = [name for name in dict.fromkeys([*ours, *theirs]) if theirs.get(name) != ours.get(name) and name != ENGINE]
    if theirs.get(LENGTH, 0) >= ours[LENGTH]:
        names = [name for name in names if name != LENGTH]
    differences = ", ".join(f"{name} is {theirs.get(name)!r} there and {ours.get(name)!r} here" for name in names[:3])
    chosen = [name for name in names if name in BY_MACHINE]
    also = f", and name {' and '.join(chosen)} there and here, since auto depends on the machine" if chosen else ""
    require(
        not names,
        f"the vLLM server at {url} does not run what this run needs: {differences}: start `grpo serve` there with the "
        f"words of this run{also}, or correct rollout.servers.urls",
    )


def told_versions(ours: Mapping[str, Any], theirs: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a remark where the servers, whose answers are given by URL, and this run have several versions of vLLM,
    or else "".

    They are not refused. `grpo serve` starts no vLLM that is too old, a learner with running servers uses no vLLM, and
    whatever they compute differently shows where sampler and learner are compared.
    """
    versions = {url: answer.get(ENGINE) for url, answer in theirs.items()} | {"this machine": ours[ENGINE]}
    known = {place: version for place, version in versions.items() if version}
    if len(set(known.values())) < 2:
        return ""
    places = ", ".join(f"{version} at {place}" for place, version in known.items())
    return (
        f"the versions of vLLM differ ({places}): if sampler and learner disagree, install the same one on all machines"
    )
