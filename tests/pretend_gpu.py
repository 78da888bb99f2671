"""This module pretends that there is a GPU: its tensors say that they are on cuda:0, and are computed on the CPU.

Values are real, so that whatever a learner does on a device can be compared with a CPU's. Two errors that a CPU cannot
show become visible. An operation that mixes tensors of both devices raises, as on a GPU. And every place where the host
would wait for the device is recorded. Kernels that only a GPU has are stand-ins, see tests/pretend_kernels.py.

The device is torch's backend for extensions (PrivateUse1), whose tensors answer "cuda" to Python. It stays registered
as long as the process lives, so a program imports this module in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import grpo
from grpo.algorithm import fused as compiling
from grpo.learner import fused_layers, rounding
from tests.pretend_kernels import FUSED, STAND_INS, WHOLE


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend("pretend", _Backend())
# Where a device has these kernels, torch calls them, and else other operations. OnGpu computes them below.
FUSED_KERNELS = torch.library.Library("aten", "IMPL")
for fused in FUSED:
    FUSED_KERNELS.impl(fused, lambda *arguments: None, "PrivateUse1")
# Python sees the first, torch's own code the second.
GPU, BEHIND = torch.device("cuda", 0), torch.device("pretend", 0)
CPU = torch.device("cpu")
aten = torch.ops.aten
# DeepSpeed replaces this function while it loads a sharded model.
_empty = torch.empty


class OnGpu(Tensor):
    """This tensor lies in the CPU's memory and says that it is on a GPU."""

    @staticmethod
    def __new__(cls, memory: Tensor) -> OnGpu:
        return Tensor._make_subclass(cls, memory, dispatch_device=True, device_for_backend_keys=BEHIND)

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:
        return f"{memory_of(self)!r} on {GPU}"

    def __reduce_ex__(self, protocol):
        return memory_of(self).__reduce_ex__(protocol)

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), named=None):
        return _compute(operation, arguments, named or {})


def memory_of(tensor: OnGpu) -> Tensor:
    """Returns the CPU tensor that has the same memory."""
    with torch._C._DisableTorchDispatch():
        place = tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        return _empty(0, dtype=tensor.dtype, device=CPU).set_(*place)


# The checkout's own folder may be called grpo, too.
PACKAGE = f"{Path(grpo.__file__).parent}/"
WAITS: list[str] = []
"""Every wait of the host for the device: the operation, and the line of the package that asked for it."""


def _wait(operation: Any) -> None:
    frame = sys._getframe()
    while frame and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    line = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}" if frame else "elsewhere"
    WAITS.append(f"{operation} at {line}")


@contextmanager
def waits() -> Iterator[list[str]]:
    """Yields a list that holds, after the context, the waits within it."""
    first, within = len(WAITS), []
    yield within
    within += WAITS[first:]


def _pinned(tensor: Tensor) -> Tensor:
    """Returns a copy in main memory that counts as pinned, for which a real one would need a GPU's driver."""
    copy = tensor.clone()
    copy.on_pinned_pages = True
    return copy


# These take tensors of both devices, and the host waits: copies, and indices in main memory of a tensor on the GPU.
_COPIES = (aten.copy_.default, aten._to_copy.default)
_INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


def _check_devices(operation: Any, tensors: Sequence[Tensor]) -> None:
    """Raises RuntimeError where an operation would on a GPU. Besides tensors of a GPU, pointwise operations take single
    numbers of the CPU."""
    indexed = operation in _INDEXED and isinstance(tensors[0], OnGpu)
    if indexed:
        # The last argument is what is written there, besides the tensor itself.
        tensors = [tensors[0], *tensors[-1:]] if operation is not aten.index.Tensor else tensors[:1]
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnGpu)]
    if operation in _COPIES or len(elsewhere) in (0, len(tensors)):
        return
    if (indexed or torch.Tag.pointwise in operation.tags) and tensors[0] is not elsewhere[0]:
        elsewhere = [tensor for tensor in elsewhere if tensor.dim()]
    if elsewhere:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {operation} got cuda:0 and cpu")


def _waits_for(operation: Any, arguments: Sequence[Any], named: Mapping[str, Any], to_gpu: bool | None) -> bool:
    """Says whether the host waits for the device in an operation. `to_gpu` is the direction of a copy."""
    if operation in _COPIES:
        asked = named.get("non_blocking") or (operation is aten.copy_.default and arguments[2:3] == (True,))
        # From pinned memory a GPU takes while the host goes on. Nothing here is pinned to be filled by it.
        pinned = to_gpu and getattr(arguments[operation is aten.copy_.default], "on_pinned_pages", False)
        return to_gpu is not None and not (pinned and asked)
    if operation in _INDEXED:
        indices = [index for index in arguments[1] if index is not None]
        return any(index.dtype in (torch.bool, torch.uint8) or not isinstance(index, OnGpu) for index in indices)
    if operation is aten.repeat_interleave.Tensor:
        return named.get("output_size") is None
    dynamic = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
    return any(tag in operation.tags for tag in dynamic)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors among arguments. Torch's own walk through a tree takes longer than the operations here."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _mapped(kind: type, function: Callable[[Any], Any], value: Any) -> Any:
    """Returns arguments or results, in which `function` has replaced the tensors of a kind."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)([_mapped(kind, function, part) for part in value])
    return value


def _compute(operation: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Computes an operation on the CPU, as far as a GPU would have computed it."""
    if operation is torch.ops.prim.device.default:
        return BEHIND
    # Main memory is pinned for a GPU, and torch finds none.
    named = {name: value for name, value in named.items() if name != "pin_memory"}
    tensors = [*_tensors((*arguments, *named.values()))]
    device = named.get("device")
    given = any(isinstance(tensor, OnGpu) for tensor in tensors)
    wanted = given if device is None else torch.device(device).type in ("cuda", "pretend")
    if not given and not wanted:
        return operation(*arguments, **named)
    if operation in WHOLE:
        # Within a mode's own function the mode is off.
        with _Everywhere():
            return WHOLE[operation](*arguments, **named)
    _check_devices(operation, tensors)
    if operation is aten.copy_.default:
        wanted, given = (isinstance(tensor, OnGpu) for tensor in arguments[:2])
    if _waits_for(operation, arguments, named, wanted if wanted != given else None):
        _wait(operation)
    inputs: dict[int, OnGpu] = {}

    def lowered(tensor: OnGpu) -> Tensor:
        memory = memory_of(tensor)
        inputs[id(memory)] = tensor
        return memory

    def raised(memory: Tensor) -> Tensor:
        tensor = inputs.get(id(memory))
        if tensor is None:
            return OnGpu(memory) if wanted else memory
        if (tensor.shape, tensor.stride()) != (memory.shape, memory.stride()):
            # The operation has changed the shape of its argument.
            tensor.data = OnGpu(memory)
        return tensor

    below = _mapped(OnGpu, lowered, tuple(arguments))
    below_named = {name: _mapped(OnGpu, lowered, value) for name, value in named.items()}
    if device is not None:
        below_named["device"] = CPU
    return _mapped(Tensor, raised, STAND_INS.get(operation, operation)(*below, **below_named))


class _Everywhere(TorchDispatchMode):
    """Sees what makes tensors on the GPU of none that are there."""

    # Nothing is compiled here, and torch would make sure of that for each operation.
    _should_skip_dynamo = classmethod(lambda cls: False)

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        return _compute(operation, arguments, named or {})


def _indexed(value: Any) -> Any:
    return GPU if isinstance(value, (str, torch.device)) and str(value) == "cuda" else value


class _FromNumbers(TorchFunctionMode):
    """Makes tensors of Python's numbers on the CPU, and copies them, as torch does."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = named or {}
        if function is Tensor.to:
            # Torch would ask its CUDA which device is the current one.
            arguments = (arguments[0], *map(_indexed, arguments[1:]))
            named = {name: _indexed(value) for name, value in named.items()}
        # Random numbers are those of the CPU, too.
        if function in (torch.tensor, torch.as_tensor, torch.randint) and named.get("device") is not None:
            device = named.pop("device")
            return function(*arguments, **named).to(device)
        return function(*arguments, **named)


class _Accelerator(CPU_Accelerator):
    """DeepSpeed keeps its tensors on this device, and exchanges them by gloo."""

    def device_name(self, device_index=None):
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def device(self, device_index=None):
        return GPU

    def current_device(self):
        return GPU.index

    def current_device_name(self):
        return str(GPU)

    def on_accelerator(self, tensor):
        return tensor.is_cuda


_apply = torch.nn.Module._apply


def _moved(module: torch.nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> torch.nn.Module:
    """Moves a module to a device as `Module.to` does: every parameter stays the same object."""
    swap = torch.__future__
    swap.set_swap_module_params_on_conversion(True)
    try:
        # Weak references go on to mean the parameter, which torch could not promise.
        with patch.object(torch.utils, "weakref", SimpleNamespace(getweakrefs=lambda tensor: [])):
            return _apply(module, function, recurse)
    finally:
        swap.set_swap_module_params_on_conversion(False)


@contextmanager
def pretend_gpu() -> Iterator[torch.device]:
    """Yields a device that is a GPU within the context, of the kind of an H100, for this thread."""
    of_cuda = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "get_device_capability": lambda device=None: (9, 0),
        "synchronize": lambda device=None: _wait("synchronize"),
        "empty_cache": lambda: None,
        # A torch that was built for CUDA would ask the driver.
        "is_current_stream_capturing": lambda: False,
    }
    before = get_accelerator()
    set_accelerator(_Accelerator())
    # Torch would make this class of masks of a tensor that a mode has seen.
    bias = patch.object(CausalBias, "__new__", lambda kind, *arguments: Tensor._make_subclass(kind, _empty(0)))
    # vLLM's worker on a CPU replaces this by a function of its own, in a process that has imported it.
    pinned = patch.object(Tensor, "pin_memory", _pinned)
    seeded = rounding.seeded
    drawn = patch.object(rounding, "seeded", lambda device, name: seeded(CPU, name))
    moved = patch.object(torch.nn.Module, "_apply", _moved)
    uncompiled = patch.object(compiling, "compiled", lambda function: function)
    # Torch takes the gradient of silu apart here, and rounds more often.
    coarse = patch.dict(fused_layers.LIMITS, {torch.bfloat16: 2**-5})
    mocks = patch.multiple(torch.cuda, **of_cuda), moved, bias, pinned, drawn, uncompiled, coarse
    # Backward passes run in this thread, where the modes are.
    modes = _FromNumbers(), _Everywhere(), torch.autograd.set_multithreading_enabled(False)
    with ExitStack() as stack:
        stack.callback(set_accelerator, before)
        for context in (*mocks, *modes):
            stack.enter_context(context)
        yield GPU
