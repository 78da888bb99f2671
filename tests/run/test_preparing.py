"""A run compares the problems that it will evaluate with those that it will learn from before its engines start."""

import pytest

from grpo.config import DataConfig, TaskConfig, UserError
from grpo.run.preparing import _refuse_trained_on
from grpo.tasks.task import LoadedTask
from grpo.types import Problem


def loaded(name, numbers):
    problems = [Problem(f"{name}-{number}", f"What is {number}?", str(number)) for number in numbers]
    return LoadedTask(TaskConfig(name=name, data=DataConfig(held_out_fraction=0.2)), {"": problems}, {})


def test_a_set_of_the_suite_that_is_trained_on_is_refused(capsys):
    own = loaded("sums", range(100))
    with pytest.raises(UserError, match="78 of the 100 problems of sums in evaluation.suite are trained on, so"):
        _refuse_trained_on(own, [own])
    with pytest.raises(UserError, match="of the 150 problems of more in evaluation.suite are trained on"):
        _refuse_trained_on(own, [loaded("more", range(150))])
    _refuse_trained_on(own, [loaded("others", range(100, 200))])
    assert capsys.readouterr().err == ""


def test_a_few_problems_of_the_suite_that_are_trained_on_are_reported(capsys):
    _refuse_trained_on(loaded("sums", range(1, 100)), [loaded("exam", range(99, 120))])
    assert capsys.readouterr().err == (
        "grpo: 1 of the 21 problems of exam in evaluation.suite are trained on: take them out of training with "
        "task.data.selection.evaluation_sets=[FILE]\n"
    )
