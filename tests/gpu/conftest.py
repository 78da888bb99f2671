"""This module has the fixture that tests on a GPU share."""

import os
from unittest.mock import patch

import pytest


@pytest.fixture
def alone():
    """Makes a group of one rank on the GPU. The environment announces it only while a test runs. Processes that later
    tests start would otherwise take themselves for its ranks."""
    import torch

    from grpo.learner.engine import init_distributed

    with patch.dict(os.environ):
        init_distributed(torch.device("cuda", 0), 300)
        yield
