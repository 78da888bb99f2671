"""The placement says which GPUs of a node learn and which serve."""

from grpo.config.engines import ModelConfig, RolloutConfig, ServersConfig
from grpo.config.errors import UserError, require
from grpo.config.run import TrainConfig

# This environment variable holds the servers' API key, which learner and servers share.
KEY_VARIABLE = "GRPO_SERVER_KEY"


def require_length(model: ModelConfig) -> None:
    """Raises UserError where model.max_length=0 leaves the length to the problems, which no serving machine reads."""
    require(
        model.max_length > 0,
        "servers on other machines do not read the problems, so they need model.max_length: set it to the longest "
        "prompt plus rollout.sampling.max_tokens",
    )


def server_ports(servers: ServersConfig) -> list[int]:
    """Returns the ports of the servers on one machine. Port 0 stands for one that is free.

    >>> server_ports(ServersConfig(replicas=2)), server_ports(ServersConfig(replicas=2, port=8000))
    ([0, 0], [8000, 8001])
    """
    return [servers.port + index if servers.port else 0 for index in range(servers.replicas)]


def starts_servers(rollout: RolloutConfig) -> bool:
    """Tells whether a run starts vLLM servers of its own, beside its first rank."""
    return rollout.engine == "vllm_server" and not rollout.servers.urls


def beside_learner(rollout: RolloutConfig, on_gpu: bool) -> bool:
    """Tells whether engines run in processes of their own beside the learner ranks, on the same devices."""
    return rollout.engine == "vllm" and (on_gpu or rollout.own_process or rollout.tensor_parallel > 1)


def uses_running_servers(rollout: RolloutConfig) -> bool:
    """Tells whether a run samples from vLLM servers that run already, often on machines of another kind."""
    return rollout.engine == "vllm_server" and bool(rollout.servers.urls)


def server_gpus(servers: ServersConfig, index: int) -> range:
    """Returns the GPUs of server `index`.

    >>> list(server_gpus(ServersConfig(first_gpu=4, tensor_parallel=2), 1))
    [6, 7]
    """
    first = servers.first_gpu + index * servers.tensor_parallel
    return range(first, first + servers.tensor_parallel)


def num_serving(config: TrainConfig) -> int:
    """Returns the number of devices of a run's servers on all machines, and 0 for an engine in the learner's process.
    Servers that run already count as one device each, since their own number is not known."""
    servers = config.rollout.servers
    if config.rollout.engine != "vllm_server":
        return 0
    return len(servers.urls) or max(1, config.hardware.server_nodes) * servers.replicas * servers.tensor_parallel


def gpus_wanted(config: TrainConfig) -> int:
    """Returns the number of GPUs that a node needs for the servers which a run starts beside its ranks."""
    has_servers_here = starts_servers(config.rollout) and not config.hardware.server_nodes
    return server_gpus(config.rollout.servers, config.rollout.servers.replicas - 1).stop if has_servers_here else 0


def placement_table(config: TrainConfig, local_ranks: int, num_gpus: int) -> list[tuple[str, str]]:
    """Returns rows (process, device) that place ranks and servers on a node with `num_gpus` GPUs (0: a CPU machine).

    Raises UserError when learner and servers do not fit onto the node.
    """
    servers, elsewhere = config.rollout.servers, config.hardware.server_nodes
    count = servers.replicas if starts_servers(config.rollout) and not elsewhere else 0
    if not num_gpus:
        rows = [("learner ranks", f"{local_ranks} × CPU")]
        return rows + ([("vLLM servers", f"{count} × CPU")] if count else [])
    require(
        local_ranks <= num_gpus,
        f"{local_ranks} learner ranks on this machine want a GPU each, and there are {num_gpus}: set "
        f"hardware.ranks_per_node={num_gpus}, or what torchrun calls --nproc-per-node",
    )
    gpus_used = [gpu for index in range(count) for gpu in server_gpus(servers, index)]
    if gpus_used and max(gpus_used) >= num_gpus:
        raise UserError(
            f"{count} servers × rollout.servers.tensor_parallel={servers.tensor_parallel} from "
            f"rollout.servers.first_gpu={servers.first_gpu} on need GPUs up to {max(gpus_used)}, and there are "
            f"{num_gpus} (0 to {num_gpus - 1}): lower one of these numbers"
        )
    if gpus_used and min(gpus_used) < local_ranks:
        raise UserError(
            f"rollout.servers.first_gpu={servers.first_gpu} puts a server on a GPU of the {local_ranks} learner ranks "
            f"(0 to {local_ranks - 1}): set it to {local_ranks}"
        )
    rows = [(f"learner rank {rank}", f"GPU {rank}") for rank in range(local_ranks)]
    for index in range(count):
        rows.append((f"vLLM server {index}", "GPU " + ", ".join(map(str, server_gpus(servers, index)))))
    if elsewhere:
        rows.append((f"vLLM servers, {elsewhere} × {servers.replicas}", "on machines of their own"))
    return rows
