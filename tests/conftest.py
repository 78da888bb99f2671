"""This module sets the environment before torch is imported, starts the process that test programs fork from, and
orders test files."""

import gc
import os
import sys

from grpo.host import environment

environment.prepare()
# One for each file that runs; several threads of one file would take turns with the other's.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
# Commands that run in this process set this for those that they start; tests start some that need the working folder.
os.environ.setdefault("PYTHONSAFEPATH", "")

from tests import warm

# Nothing that collection imports and makes is garbage. Looking for some took a tenth of the quick tests' time.
gc.disable()


def pytest_configure(config):
    """Starts the process that programs are forked from; all test workers share it."""
    if warm.SOCKET not in os.environ:
        config.warm = warm.start_server()


def pytest_unconfigure(config):
    if server := getattr(config, "warm", None):
        server.stdin.close()
        server.wait()


# Dearest first, so that the files that run side by side end together.
LONG = (
    *("test_lost_servers", "test_run", "test_servers", "test_prove", "test_learner", "test_runs", "test_resume"),
    *("test_pretended", "test_partition", "test_reference", "test_architectures", "test_sampler"),
    *("test_family_partition", "test_model_classes", "test_contrast", "test_trainer", "test_diagnostics"),
    *("test_solve_rates", "test_remote", "test_loop_by_hand", "test_sweep", "test_versions", "test_dispatch"),
    *("test_replica", "test_grader_pool", "test_vllm_sampler", "test_samplers", "test_refusals", "test_hydra"),
    *("test_dynamics", "test_forecast", "test_whatif", "test_adaptive", "test_launch", "test_identify"),
    *("test_unread", "test_run_page", "test_verdicts", "test_papers", "test_stability", "test_english"),
    *("test_habits", "test_step_products", "test_server_sampler", "test_trackers", "test_package"),
)


def pytest_collection_modifyitems(items):
    assert "vllm" not in sys.modules, "a test file imports vLLM when it is collected, which takes each worker seconds"
    gc.freeze()
    gc.enable()
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
