"""What tests on a GPU share."""

import os
from unittest.mock import patch

import pytest


@pytest.fixture
def alone():
    """A group of one rank on the GPU. It is announced in the environment only while a test runs: later ones start
    processes, which would take themselves for its ranks."""
    import torch

    from grpo.learner.engine import init_distributed

    with patch.dict(os.environ):
        init_distributed(torch.device("cuda", 0), 300)
        yield
