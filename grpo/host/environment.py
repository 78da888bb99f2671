"""This module sets the environment variables that torch, vLLM and DeepSpeed read when they are imported.

The command line and the tests call `prepare` before they import anything heavy. It overrides nothing that the user
has set.
"""

import codecs
import ctypes
import locale
import logging
import os
import re
import shutil
import socket
import sys
import warnings
from contextlib import suppress
from pathlib import Path

from grpo.config.errors import require

DEFAULTS = {
    # Two OpenMP threads that spin while waiting slow every matrix product down thirtyfold as soon as
    # anything else runs on a core (measured: 16 against 503 GFLOPS). If they never spin, every operation waits for
    # them to be woken (70 µs on a virtual machine). A thousand turns (26 µs there) bridge the gap to the next one.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "1000",
    # Torch's CPU tensors use huge pages, since otherwise the kernel spends a seventh of a learner step zeroing pages.
    "THP_MEM_ALLOC_ENABLE": "1",
    # The engine runs in this process, so that weights are passed by reference.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # FlashInfer's sampler takes no seeds and gives no log-probabilities after sampling parameters, as a run asks for.
    # vLLM would import it all the same, which takes seconds.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_SILENT": "true",
}

# Options of glibc's mallopt (number, value): how much freed memory at the heap's end is kept, and how many blocks have
# a mapping of their own. Such a block, say a learner's gradients or logits, goes back to the kernel when it is freed.
KEPT_MEMORY = {"M_TRIM_THRESHOLD": (-1, 2**30), "M_MMAP_MAX": (-4, 0)}
SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")

# Where NVIDIA's driver shows GPUs on Linux, and within Windows (WSL2).
GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg")

# Torch's settings for a GPU's memory, by their new name and their old one, which wins.
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

# The PATH of the shell, before `prepare` adds to it.
GIVEN_PATH = os.environ.get("PATH", "")


def hidden_command() -> str:
    """Says how to call grpo where the shell does not find it, or returns "" where it does or where there is no file of
    that name beside this interpreter."""
    own, here = Path(sys.executable).parent, Path.cwd()
    folder = own.relative_to(here) if here in own.parents else own
    if shutil.which("grpo", path=GIVEN_PATH) or not (folder / "grpo").exists():
        return ""
    activate = folder / "activate"
    return f"{folder / 'grpo'}" + (f"  (source {activate} makes it grpo)" if activate.exists() else "")


def prepare() -> None:
    """Sets the defaults above, and adds this interpreter's folder to PATH, where DeepSpeed looks for ninja.

    Called before torch, vLLM or DeepSpeed is imported. Raises `UserError` for a number of threads that is none, and for
    a network card that this machine lacks.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    require(
        bool(re.fullmatch(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*", threads)),
        f"the environment variable OMP_NUM_THREADS={threads!r} is no number of threads: unset or correct it",
    )
    cards, known = os.environ.get("GLOO_SOCKET_IFNAME", ""), [name for _, name in socket.if_nameindex()]
    require(
        not cards or {*cards.split(",")} <= {*known},
        f"the environment variable GLOO_SOCKET_IFNAME={cards!r} names no network card of this machine, which has "
        f"{', '.join(known)}: unset or correct it",
    )
    if os.environ.get("COLUMNS") == "0":
        # Some editors' terminals say so of a width that they do not know, and rich would print nothing.
        del os.environ["COLUMNS"]
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if not any(Path(device).exists() for device in GPU_DEVICES):
        # Otherwise DeepSpeed warns on every start that it found no GPU.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        if not os.environ.get("CXX") and not shutil.which("g++"):
            # vLLM compiles one function, which counts ranks of tokens, and is right without.
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        _keep_memory()
    elif not any(name in os.environ for name in ALLOCATOR):
        # Rows differ in length, so every one asks for blocks of other sizes, and memory would be cut into pieces that
        # none fits. vLLM turns this off around the memory that it puts to sleep.
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"
    # Other packages' sources cause SyntaxWarnings when Python first compiles them, here or in a worker process. And the
    # process that cleans up after multiprocessing warns when a signal has ended this one.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::SyntaxWarning,ignore:resource_tracker:UserWarning")
    for category in (FutureWarning, SyntaxWarning):
        warnings.filterwarnings("ignore", category=category)
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    folder = str(Path(sys.executable).parent)
    if folder not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", "")


def require_usual_python() -> None:
    """Raises `UserError` where an option of Python keeps torch or transformers from working."""
    require(
        codecs.lookup(locale.getpreferredencoding(False)).name != "ascii",
        "Python reads files as ASCII here, and torch's own are UTF-8: unset PYTHONUTF8 and LC_ALL, or set PYTHONUTF8=1",
    )
    require(
        sys.flags.optimize < 2,
        "Python drops docstrings here, which transformers reads: unset PYTHONOPTIMIZE, or leave out -OO",
    )
    require(
        "error" not in sys.warnoptions,
        "Python makes an error of every warning here, and torch warns as it is loaded: unset PYTHONWARNINGS, or leave "
        "out -W error",
    )


def _keep_memory() -> None:
    """Makes glibc keep the memory that torch frees, and return only what is free at the heap's end beyond a gibibyte.

    Otherwise each learner step gets its memory from the kernel anew, page by page. Nothing changes if the user has set
    glibc's own variables.
    """
    if any(name in os.environ for name in SET_BY_USER):
        return
    # Other C libraries have no such function.
    with suppress(AttributeError, OSError, TypeError):
        for option, value in KEPT_MEMORY.values():
            ctypes.CDLL(None).mallopt(option, value)
