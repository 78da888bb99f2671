import pytest

from grpo.tasks.grading import overlong_penalty


@pytest.mark.parametrize(
    ("length", "penalty"), [(1, 0.0), (16384, 0.0), (17408, -0.25), (18432, -0.5), (20480, -1.0), (20481, -1.0)]
)
def test_the_penalty_of_the_dapo_paper_with_16384_tokens_and_a_buffer_of_4096(length, penalty):
    assert overlong_penalty(length, 20480, 4096) == penalty
