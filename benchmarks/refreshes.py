"""This script checks that a refresh leaves vLLM's model as vLLM's own loading of the same weights would.

    python benchmarks/refreshes.py float32|bfloat16 TYPE …
    python benchmarks/refreshes.py float32|bfloat16 all

Prints a row for each model TYPE of transformers; `all` means each type that vLLM has code for. A row says "fine";
"refused" with the message, if the refresh fails or its checksums differ; or "wrong" with the tensors that differ
although the checksums agree. All tensors that vLLM's model holds are compared, also those that it computes from loaded
weights. Then all tensors that an engine on a GPU loses in its sleep are spoiled, and the model is refreshed again. A
row says "stays at level 1" for a type that then lacks tensors, with their names: such an engine does not sleep so deep.
No engine is started: models are made and loaded on a CPU.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.host import environment

environment.prepare()

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from benchmarks.small_models import ARCHITECTURES, EXPERTS, LATENT, ROUTED, SMALL, tiny_tokenizer
from grpo.host.network import free_port
from grpo.learner.policy import DTYPES
from grpo.learner.small_copy import small_config
from grpo.learner.weights import weight_buckets
from grpo.models.files import ModelFiles
from grpo.rollout.engine_arguments import for_cpu
from grpo.rollout.vllm_sampler import ModelClasses
from grpo.rollout.weight_names import FileForm
from grpo.weight_sync.checksum import checksums, differing

SECONDS = 60
"""For one type at most."""
# The ends of the names of attention's scales that vLLM also keeps in main memory.
ON_HOST = ("_k_scale_cpu", "_v_scale_cpu")
WIDE = SMALL | {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}
SPECIAL = {model_type: special for model_type, special, _ in ARCHITECTURES.values()} | {
    # vLLM takes no windows in some layers only.
    "qwen2": {},
    "deepseek_v2": {**LATENT, **ROUTED, "q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3": {**LATENT, **ROUTED, "topk_method": "noaux_tc"},
    "glm4_moe": {**ROUTED, "partial_rotary_factor": 0.5},
    # Two query heads share one of keys; vLLM knows one inner width only.
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 512},
    "glm4_moe_lite": {**LATENT, **ROUTED, "topk_method": "noaux_tc"},
}


def outcome(model_type: str, dtype: torch.dtype) -> tuple[str, str]:
    """Refreshes vLLM's model of this type twice, the second time after a sleep. Returns one of the words above, and the
    evidence."""
    from grpo.weight_sync.vllm_receiver import WeightReceiver

    torch.manual_seed(0)
    ours = AutoModelForCausalLM.from_config(config_of(model_type), dtype=torch.float32)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        changed(ours).to(dtype).save_pretrained(first)
        engine, config = loaded(first, dtype)
        changed(ours).save_pretrained(second)
        expected, _ = loaded(second, dtype)
        form = FileForm(ModelFiles(first))
    receiver = WeightReceiver()
    receiver.model_runner, receiver.model_config = SimpleNamespace(model=engine), config
    receiver.weight_transfer_engine, receiver.parallel_config = None, SimpleNamespace(tensor_parallel_size=1)
    lost = receiver.lost_by_sleep()
    for asleep in (False, True):
        if asleep:
            _spoil(engine)
        sent: Counter[str] = Counter()
        try:
            receiver.begin_refresh()
            for bucket in weight_buckets(SimpleNamespace(language_model=ours), 2**30, dtype):
                receiver.receive_bucket(form.of(bucket))
                sent.update(checksums(bucket))
            receiver.finish_refresh()
        except Exception as error:  # whatever a model's own code raises
            return "refused", f"{type(error).__name__}: {str(error)[:150]}"
        if unlike := differing(sent, receiver.weight_checksums()):
            return "refused", f"checksums of {len(unlike)} differ: {unlike[0]}"
        there, wanted = tensors_of(engine), tensors_of(expected)
        wrong = [name for name, tensor in wanted.items() if not torch.equal(there[name], tensor)]
        if wrong:
            known = asleep and set(wrong) <= set(lost)
            return ("stays at level 1" if known else "wrong"), ", ".join(wrong[:3])
    return "fine", f"{len(wanted)} tensors"


@torch.no_grad()
def _spoil(engine: nn.Module) -> None:
    """Spoils all tensors that a sleep at level 2 loses on a GPU: all but buffers, which vLLM saves, and those that are
    in main memory there too. A norm without a weight has ones that nothing reads."""
    buffers = dict(engine.named_buffers())
    unread = {f"{name}.weight" for name, module in engine.named_modules() if not getattr(module, "has_weight", True)}
    for name, tensor in tensors_of(engine).items():
        if name not in {*buffers, *unread} and not name.endswith(ON_HOST):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 77)


def config_of(model_type: str) -> PretrainedConfig:
    """Returns a small config of this type, or a small copy of the type's default config if the first one makes no
    valid model."""
    settings = WIDE | EXPERTS | {"moe_intermediate_size": 64} | SPECIAL.get(model_type, {})
    computed = [name for name in settings if isinstance(getattr(CONFIG_MAPPING[model_type], name, None), property)]
    try:
        config = AutoConfig.for_model(model_type, **{name: settings[name] for name in settings if name not in computed})
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config)
    except Exception:  # whatever a config or a model's own code says of such numbers
        return small_config(AutoConfig.for_model(model_type), 4)
    return config


@torch.no_grad()
def changed(model: PreTrainedModel) -> PreTrainedModel:
    """Changes all weights of a model at random, and returns the model."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def loaded(folder: str, dtype: torch.dtype) -> tuple[nn.Module, object]:
    """Loads a folder's weights into vLLM's model, prepared as in an engine. Returns the model and its configuration."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model

    tiny_tokenizer().save_pretrained(folder)
    # A CPU with the instructions would pack the weights of convolutions in bfloat16 into another order.
    torch.cpu._is_avx512_bf16_supported = lambda: False
    own = {"dtype": dtype, "enforce_eager": True, "max_model_len": 64, "kv_cache_memory_bytes": 2**26}
    config = EngineArgs(model=folder, **own, **for_cpu(ModelFiles(folder))).create_engine_config()
    config.compilation_config.mode = 0
    # There is no accelerator whose cache could be emptied.
    torch.accelerator.empty_cache = lambda: None
    classes = ModelClasses()
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_port('127.0.0.1')}", 0, "gloo")
            ensure_model_parallel_initialized(1, 1)
        engine = get_model(vllm_config=config)
    classes.part(engine)
    return engine, config.model_config


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns all tensors of a vLLM model, by name: weights, buffers, and other attributes of its modules and their
    kernels."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, module in model.named_modules():
        for place in (module, getattr(module, "impl", None), getattr(module, "quant_method", None)):
            if place is not None and not (isinstance(place, nn.Module) and place is not module):
                own = {f"{name}.{key}": value for key, value in vars(place).items() if isinstance(value, Tensor)}
                tensors |= {key: value for key, value in own.items() if not key.endswith(".kv_cache")}
    return {name: tensor.detach() for name, tensor in tensors.items()}


class TooLong(BaseException):
    """This is raised when a model takes too long. It is no Exception, because an Exception of the model's own code
    counts as an outcome."""


def _too_long(number: int, frame: object) -> None:
    raise TooLong


def main(precision: str, *types: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm.model_executor.models.registry import ModelRegistry

    known = {*ModelRegistry.get_supported_archs()}
    every = [name for name, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if architecture in known]
    counts: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _too_long)
    for model_type in every if types == ("all",) else types:
        signal.alarm(SECONDS)
        try:
            kind, detail = outcome(model_type, DTYPES[precision])
        except TooLong:
            kind, detail = "not asked", f"{SECONDS} s were not enough"
        except Exception as error:  # a config that is no model of vLLM's, or one that this CPU build does not run
            kind, detail = "not asked", f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
        signal.alarm(0)
        counts[kind] += 1
        print(f"| {model_type} | {kind} | {detail} |", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
