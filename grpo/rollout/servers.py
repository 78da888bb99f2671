"""This module starts vLLM servers on this machine, with their settings, devices and key."""

import json
import os
import secrets
from pathlib import Path
from socket import gethostname
from typing import Any

import torch

from grpo.config.engines import ServersConfig
from grpo.config.folder import LOG_FOLDER, server_log_name
from grpo.config.parts import SamplerSettings
from grpo.config.placement import KEY_VARIABLE, server_gpus, server_ports
from grpo.host.network import LOOPBACK, url_of
from grpo.host.ports import require_ports
from grpo.host.tether import PRIVATE
from grpo.models.files import ModelFiles
from grpo.rollout.claims import served
from grpo.rollout.engine_arguments import (
    adapter_arguments,
    cache_key,
    command_line,
    engine_arguments,
    for_device,
    sleep_arguments,
)
from grpo.rollout.known_arguments import known_arguments
from grpo.rollout.replica import ServerProcess
from grpo.rollout.server_middleware import SERVED_VARIABLE
from grpo.rollout.weight_names import FileForm

# Every server knows the policy by this name.
MODEL = "policy"


def start_servers(
    settings: SamplerSettings, files: ModelFiles, device: torch.device, beside: bool = False
) -> dict[str, ServerProcess]:
    """Starts the servers, each on its own devices, with one key for the run. Returns their processes by URL. With
    `beside` learners have the same devices, so that a server has to sleep."""
    servers, on_gpu = settings.rollout.servers, device.type == "cuda"
    ports = require_ports(servers.host, server_ports(servers), "rollout.servers")
    os.environ.setdefault(KEY_VARIABLE, secrets.token_urlsafe(24))
    arguments = engine_arguments(settings, str(files.path), on_gpu, for_device(files, device))
    arguments |= server_arguments(servers, on_gpu)
    if beside and on_gpu and settings.rollout.sleep != "never":
        arguments |= sleep_arguments("speculative_config" in settings.rollout.engine_args)
    if settings.adapters:
        layers = FileForm(files).adapted_layers(settings.model.lora.target_modules)
        arguments |= adapter_arguments(settings.model.lora.rank, layers)
    serves = {SERVED_VARIABLE: json.dumps(served(settings, files.path))}
    # Engines beside the learners of several machines all listen on the loopback interface, and share the run's folder.
    place = gethostname() if servers.host == LOOPBACK else servers.host
    processes = {}
    for index, port in enumerate(ports):
        environment = server_environment(servers, index, on_gpu) | serves
        log = Path(settings.output_dir) / LOG_FOLDER / server_log_name(place, port.port)
        process = ServerProcess(
            command_line(arguments | {"port": port.port}), environment, log, port, cache_key(on_gpu, beside)
        )
        process.start()
        processes[url_of(servers.host, port.port)] = process
    return processes


def server_arguments(servers: ServersConfig, on_gpu: bool) -> dict[str, Any]:
    """Returns a server's further arguments, which override those of `engine_arguments`."""
    memory = {"gpu_memory_utilization": servers.gpu_memory_fraction} if on_gpu else {}
    # This opens the route of token ids, which says which weights wrote them. vLLM 0.26 always opens it.
    route = {"enable_scale_out": True} if "enable_scale_out" in known_arguments(servers=True) else {}
    return (
        memory
        | route
        | {
            "served_model_name": MODEL,
            "host": servers.host,
            "tensor_parallel_size": servers.tensor_parallel,
            "weight_transfer_config": {"backend": "grpo"},
            "disable_uvicorn_access_log": True,
            "middleware": "grpo.rollout.server_middleware.ServerMiddleware",
        }
    )


def server_environment(servers: ServersConfig, index: int, on_gpu: bool) -> dict[str, str]:
    """Returns the environment variables of server `index`: its key, its devices, and what vLLM's weight requests
    need."""
    variables = {
        "VLLM_API_KEY": os.environ[KEY_VARIABLE],
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        # vLLM's processes meet in this folder. They let in everybody who can open the socket files there, so the folder
        # is private.
        "VLLM_RPC_BASE_PATH": PRIVATE,
    }
    if not on_gpu:
        return variables | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    # GPUs are numbered as this process sees them. It may itself be shown only some of them, by number or by name.
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = [
        devices[gpu].strip() if gpu < len(devices) and devices[gpu] else str(gpu) for gpu in server_gpus(servers, index)
    ]
    return variables | {"CUDA_VISIBLE_DEVICES": ",".join(names)}
