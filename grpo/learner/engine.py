"""This module configures and starts DeepSpeed, which itself checks the settings that `learner.deepspeed` passes on."""

import io
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from inspect import signature
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.linear import zero3_linear_wrap
from deepspeed.utils import groups, safe_get_local_fp32_param, safe_set_full_fp32_param, safe_set_local_fp32_param
from torch import nn
from torch.distributed import distributed_c10d
from transformers.integrations import HfDeepSpeedConfig

from grpo.config import LearnerConfig
from grpo.config.errors import UserError, first_line, require
from grpo.config.optimizer import chosen_optimizer
from grpo.config.pass_through import passing_on
from grpo.host import ranks
from grpo.host.alive import working
from grpo.host.network import interface_of, own_address
from grpo.learner.rounding import dithered

# On another number of ranks every loaded checkpoint warns of missing tensor parallelism, which the learner never has.
# The other warning is of optimizers besides Adam. Those that can be chosen are exact, see `grpo.config.optimizer`.
PASSED_OVER = ("MPU is not provided", "**** You are using ZeRO with an untested optimizer")


def concerns_a_run(record: logging.LogRecord) -> bool:
    """Says whether a warning of DeepSpeed's means anything here."""
    return not record.getMessage().startswith(PASSED_OVER)


def init_distributed(device: torch.device, deadline_seconds: float) -> bool:
    """Joins the ranks that torchrun or the deepspeed launcher started. Without a launcher this rank is the only one.

    A rank that waits for the others for more than `deadline_seconds` fails, in collectives of DeepSpeed and vLLM too.
    With NCCL its watchdog then ends the process, whatever longer deadline a phase has. Returns whether this rank is the
    only one: `end_distributed` then undoes this, so that the process can train once more.
    """
    deepspeed_log = logging.getLogger("DeepSpeed")
    deepspeed_log.setLevel(logging.WARNING)
    deepspeed_log.addFilter(concerns_a_run)
    # A rank that is alone meets nobody, so nothing has to listen: torch's usual store takes whoever reaches its port.
    alone = ranks.set_alone()
    own_store: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}
    # By default gloo listens at the address of this machine's own name. On Debian that is 127.0.1.1, which no other
    # machine reaches.
    with suppress(OSError):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(own_address(os.environ["MASTER_ADDR"])))
    if device.type == "cpu":
        # DeepSpeed would compile this optional reduction in shared memory for half a minute, and needs g++ and ninja
        # for it. gloo does the same work.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "gloo" if device.type == "cpu" else "nccl"
    deadline = timedelta(seconds=deadline_seconds)
    # Groups that DeepSpeed and vLLM make get torch's default, which is ten minutes with NCCL.
    distributed_c10d.default_pg_timeout = distributed_c10d.default_pg_nccl_timeout = deadline
    if not dist.is_initialized():
        # vLLM's engine may have ended the groups of an earlier run. DeepSpeed would use them in this one.
        groups._release_process_group_references(group=None)
        address = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        try:
            with working(f"waiting for the other ranks at {address}", seldom=True, everywhere=not alone):
                dist.init_process_group(backend, timeout=deadline, **own_store)
        except dist.DistNetworkError as error:
            raise UserError(
                f"the ranks cannot meet at {address} (MASTER_ADDR and MASTER_PORT): {first_line(error)}"
            ) from error
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False)
    return alone


def end_distributed() -> None:
    """Ends torch.distributed on a rank that is alone. Called when the sampler has ended, whose engine may have done so
    already."""
    if dist.is_initialized():
        dist.destroy_process_group()
    ranks.unset_alone()


def deepspeed_config(learner: LearnerConfig) -> dict[str, Any]:
    """Returns DeepSpeed's configuration. Its batch sizes are nominal: the size of a micro-batch depends on how many
    tokens fit, and `managed_gradient_accumulation: false` lets each step have its own number of micro-batches."""
    stage = max(1, learner.zero_stage)
    zero: dict[str, Any] = {
        "stage": stage,
        # GPUs exchange weights and gradients in a stream of their own, where DeepSpeed allows it: from stage 2 on.
        "overlap_comm": torch.cuda.is_available() and stage >= 2,
        # This prevents fragmentation of a GPU's memory. On a CPU it would only copy every gradient.
        "contiguous_gradients": torch.cuda.is_available(),
    }
    if stage < 3 and not torch.cuda.is_available():
        # Copies of so few gradients stay in a processor's cache. Larger ones get new memory in every step.
        zero["reduce_bucket_size"] = 1_000_000
    if learner.hpz_partition_size:
        zero["zero_hpz_partition_size"] = learner.hpz_partition_size
    if learner.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    own_settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "zero_optimization": zero,
        # Stage 1 then adds each bfloat16 gradient to its float32 sum at once, instead of all after a backward pass.
        "bf16": {"enabled": learner.precision == "bfloat16", "immediate_grad_update": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "gradient_clipping": learner.max_gradient_norm,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000_000,
    }
    # DeepSpeed is given the optimizer itself.
    passed_settings = {name: value for name, value in learner.deepspeed.items() if name != "optimizer"}
    return own_settings | passed_settings | {"zero_optimization": zero | passed_settings.get("zero_optimization", {})}


@contextmanager
def sharded_loading(learner: LearnerConfig, precision: str) -> Iterator[None]:
    """Lets transformers load a model in shards under ZeRO-3, one for each rank, layer by layer.

    Otherwise every rank would load the whole model and move it to its GPU, before DeepSpeed shards it. DeepSpeed also
    replaces torch's function of linear layers, which a sampler in this process calls too. It gets the original back.
    """
    if learner.zero_stage < 3:
        yield
        return
    # transformers looks whether such an object exists, and then loads a model in shards.
    config = HfDeepSpeedConfig(deepspeed_config(replace(learner, precision=precision)))
    original_init, original_linear = deepspeed.zero.Init, nn.functional.linear
    # By default `Init` rounds everything that a model makes while it is built to bfloat16, tables of positions too.
    rounding = {"tensor_overrides": [deepspeed.zero.DeepSpeedTensorOverride.device]}
    # It would also make the group of a second copy anew, which a process can do only once.
    copies = groups._get_zero_param_intra_parallel_group() if learner.hpz_partition_size else None
    deepspeed.zero.Init = partial(original_init, zero_param_parallel_group=copies, **rounding)
    try:
        yield
    finally:
        deepspeed.zero.Init, nn.functional.linear = original_init, original_linear
        del config


class _ShardedLinear(nn.Linear):
    """This linear layer does not keep its gathered weight from the forward pass for the backward pass, which gathers it
    again. Torch's function keeps the transposed weight, and so ZeRO-3 would hold the whole model by the last layer."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return zero3_linear_wrap(input, self.weight, self.bias)


def start_engine(policy: nn.Module, learner: LearnerConfig) -> deepspeed.DeepSpeedEngine:
    """Starts the training engine: ZeRO, with an optimizer on float32 master weights. The learner sets the learning rate
    of every step. Raises UserError where DeepSpeed refuses settings that are passed on to it."""
    if learner.offload_optimizer and torch.cuda.is_available():
        # The optimizer then runs on the CPU, where torchrun leaves each rank one thread.
        torch.set_num_threads(ranks.own_cores())
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    kind = getattr(torch.optim, chosen_optimizer(learner).name)
    fused = {"fused": True} if "fused" in signature(kind).parameters else {}
    optimizer = kind(parameters, lr=learner.learning_rate, **optimizer_settings(learner), **fused)
    with passing_on("learner.deepspeed", learner.deepspeed):
        return _initialized(model=policy, optimizer=optimizer, config=deepspeed_config(learner))


def dither(engine: deepspeed.DeepSpeedEngine, seed: int) -> None:
    """Moves the float32 masters of bfloat16 weights to random places that round to the same weights.

    Models' files mostly hold bfloat16 numbers, so all masters would begin where the nearest rounding takes every small
    step back. At a rate of 1e-6 a weight of .02 would first change when its steps have come to 6e-5 one way.
    """
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad or parameter.dtype != torch.bfloat16:
            continue
        if hasattr(parameter, "ds_id"):
            own_shard = safe_get_local_fp32_param(parameter)
            place = f"{seed} {name} {ranks.rank()}"
            safe_set_local_fp32_param(parameter, dithered(own_shard, torch.bfloat16, place))
        else:
            whole = parameter.detach().float()
            safe_set_full_fp32_param(parameter, dithered(whole, torch.bfloat16, f"{seed} {name}"))


def optimizer_settings(learner: LearnerConfig) -> dict[str, Any]:
    """Returns the settings of the optimizer besides its learning rate, by torch's names."""
    adams = {"betas": tuple(learner.betas), "eps": learner.adam_epsilon, "weight_decay": learner.weight_decay}
    return adams | dict(chosen_optimizer(learner).settings)


def start_frozen_engine(policy: nn.Module, learner: LearnerConfig) -> deepspeed.DeepSpeedEngine:
    """Starts a ZeRO-3 engine without an optimizer: a sharded model that only runs forward, in the precision of its
    weights."""
    config = deepspeed_config(learner)
    config["zero_optimization"] = {"stage": 3}
    config["bf16"] = {"enabled": next(policy.parameters()).dtype == torch.bfloat16}
    return _initialized(model=policy, config=config)


def _initialized(model: nn.Module, config: dict[str, Any], **arguments: Any) -> deepspeed.DeepSpeedEngine:
    zero = config["zero_optimization"]
    if zero["stage"] == 3 and zero.get("memory_efficient_linear", True):
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = _ShardedLinear
    with quiet():
        return deepspeed.initialize(model=model, config=config, **arguments)[0]


def quiet() -> AbstractContextManager:
    """Hides what DeepSpeed prints within a context: its optimizer for bfloat16 prints the free memory four times."""
    return redirect_stdout(io.StringIO())


def check_passed_on(learner: LearnerConfig) -> None:
    """Raises UserError for a setting with a value that DeepSpeed refuses, or that DeepSpeed does not know.

    DeepSpeed ignores settings that it does not know, and has no list of the others. So it is watched while it reads.
    """
    watched_config = _Watched(deepspeed_config(learner))
    with passing_on("learner.deepspeed", learner.deepspeed), quiet():
        DeepSpeedConfig(watched_config)
    for name in learner.deepspeed:
        require(
            name in watched_config.read or name == "optimizer",
            f"learner.deepspeed.{name} is no setting of DeepSpeed: leave it out, or correct its name",
        )


class _Watched(dict):
    """This dictionary records the keys that are asked for. Copies of it record theirs in the same set."""

    def __init__(self, *values: Any):
        super().__init__(*values)
        self.read: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        return self
