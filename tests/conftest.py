"""Environment before any import of torch, and the marks."""

import os

from grpo.host import environment

environment.prepare()
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

# Minutes long, longest first: begun first, so that two files at a time end together.
LONG = (
    "test_servers",
    "test_run",
    "test_partition",
    "test_solve_rates",
    "test_sweep",
    "test_learner",
    "test_samplers",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
