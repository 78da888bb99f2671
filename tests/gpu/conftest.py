"""This module has the fixture that tests on a GPU share."""

import os
from unittest.mock import patch

import pytest


@pytest.fixture
def alone():
    """Makes a process group of one rank on the GPU. Its environment variables are set only while a test runs: otherwise
    processes that later tests start would take themselves for ranks of the group."""
    import torch

    from grpo.learner.engine import init_distributed

    with patch.dict(os.environ):
        init_distributed(torch.device("cuda", 0), 300)
        yield
