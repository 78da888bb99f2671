"""These tests check the lengths, number formats and problems that a run finds out before its engines start."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from transformers import AutoTokenizer

from grpo.config import DataConfig, TaskConfig, TrainConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.saved import described
from grpo.models.resolve import resolve, with_config
from grpo.run.parts import warm_start_examples
from grpo.run.preparing import _refuse_trained_on, fit_lengths, with_precision
from grpo.tasks.task import LoadedTask, loaded_task
from grpo.types import Problem
from tests.learner.models import files_of


@pytest.fixture(scope="module")
def tiny():
    config = compose_config(["experiment=tiny"])
    path = resolve(config.model, lambda: warm_start_examples(config))
    return path, AutoTokenizer.from_pretrained(path)


def fitted(tiny, problems, *words):
    settings = ["experiment=tiny", "task=file", f"task.data.path={problems}", "task.prompt.template='{question}'"]
    config = compose_config([*settings, "model.max_length=0", "rollout.sampling.max_tokens=6", *words])
    path, tokenizer = tiny
    longer, [task] = fit_lengths(config, [loaded_task(config.task, tokenizer)], files_of(path))
    return task.config.prompt.max_tokens, longer.model.max_length


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text('{"problem": "1 + 2 =", "answer": "3"}\n{"problem": "1 + 2 + 3 + 4 =", "answer": "10"}\n')
    return path


def test_lengths_fit_the_longest_prompt_in_whole_blocks(tiny, problems):
    longest = len(tiny[1].apply_chat_template([{"role": "user", "content": "1 + 2 + 3 + 4 ="}], tokenize=True,
                                              add_generation_prompt=True)["input_ids"])  # fmt: skip
    assert fitted(tiny, problems) == (longest, 32)
    assert fitted(tiny, problems, "rollout.sampling.max_tokens=33") == (longest, 64)
    assert fitted(tiny, problems, "task.prompt.max_tokens=40") == (40, 64)
    assert fitted(tiny, problems, "model.max_length=11") == (5, 11)
    # An evaluation may write longer completions than training does.
    assert fitted(tiny, problems, "evaluation.max_tokens=33") == (longest, 64)


def test_lengths_without_room_are_refused_after_the_data_are_read(tiny, problems, tmp_path):
    with pytest.raises(
        UserError, match="no room is left for a prompt beside rollout.sampling.max_tokens=2048, since the model"
    ):
        fitted(tiny, problems, "rollout.sampling.max_tokens=2048")
    with pytest.raises(UserError, match=r"no room is left for a prompt beside evaluation.max_tokens=2048, since"):
        fitted(tiny, problems, "evaluation.max_tokens=2048")
    with pytest.raises(UserError, match="=2000 plus rollout.sampling.max_tokens=60 is more than the 2048 positions"):
        fitted(tiny, problems, "rollout.sampling.max_tokens=60", "task.prompt.max_tokens=2000")
    with pytest.raises(UserError, match="model.max_length=2049 is more than the 2048 positions of the model in .*: lo"):
        fitted(tiny, problems, "model.max_length=2049")


def test_scaled_positions_leave_room_for_a_longer_model(tiny, problems):
    scaled = with_config(tiny[0], {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}})
    assert fitted((scaled, tiny[1]), problems, "model.max_length=4096")[1] == 4096
    with pytest.raises(UserError, match="model.max_length=4097 is more than the 4096"):
        fitted((scaled, tiny[1]), problems, "model.max_length=4097")


def test_problems_longer_than_the_model_teach_a_tiny_one_nothing(tmp_path):
    file = tmp_path / "rows.jsonl"
    long = "9 + " * 400
    file.write_text("".join(json.dumps({"problem": asked, "answer": "1"}) + "\n" for asked in ("1 =", long, "0 + 1 =")))
    words = ["experiment=tiny", "task=file", f"task.data.path={file}", "task.prompt.template='{question}'"]
    config = compose_config([*words, "task.data.held_out_fraction=0"])
    assert warm_start_examples(config) == [("1 =", "1"), ("0 + 1 =", "1")]
    file.write_text(json.dumps({"problem": long, "answer": "1"}))
    with pytest.raises(
        UserError,
        match="=64, since the tiny model reads each character as a token: the shortest has a question of 1599, an "
        "answer of 1 and 0 of task.prompt.template; for such problems leave out experiment=tiny",
    ):
        warm_start_examples(config)


def test_a_tiny_model_that_learns_from_the_problems_tells_nothing_of_them_a_second_time(tiny, problems, caplog):
    problems.write_text(problems.read_text() + '{"problem": "5 ="}\n')
    words = ["experiment=tiny", "task=file", f"task.data.path={problems}", "task.prompt.template='{question}'"]
    config = compose_config(words)
    warm_start_examples(config)
    assert caplog.messages == []
    loaded_task(config.task, tiny[1])
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("task file: left out of")


@pytest.mark.parametrize(("rank", "examples"), [(0, [("1 + 1 =", "2")]), (4, [("1 =", "1")])])
def test_the_tiny_base_of_a_checkpoint_is_not_made_from_the_problems_of_another_task(tmp_path, rank, examples):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"problem": "1 =", "answer": "1"}))
    words = ["experiment=tiny", "task=file", f"task.data.path={file}", "task.prompt.template='{question}'"]
    saved = compose_config([*words, "task.data.held_out_fraction=0", f"model.lora.rank={rank}"])
    (tmp_path / "state.json").write_text(json.dumps({"config": asdict(saved)}))
    config = compose_config(["experiment=tiny", f"model.path={tmp_path}"])
    config = replace(config, model=described(config.model))
    assert warm_start_examples(config) == examples


@pytest.fixture
def old_gpu(monkeypatch):
    """Makes torch see a GPU without bfloat16, such as a T4 or a V100, which emulates it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)


def test_a_gpu_that_only_emulates_bfloat16_computes_in_float32(old_gpu):
    config = with_precision(TrainConfig(device="cuda"))
    assert (config.learner.precision, config.rollout.precision) == ("float32", "float32")
    assert config.model.head_precision == "float32"


def test_a_bfloat16_sampler_is_refused_on_such_a_gpu(old_gpu):
    config = TrainConfig(device="cuda")
    config.rollout.precision = "bfloat16"
    with pytest.raises(UserError, match=r"compute capability 8.0 or newer: set rollout.precision=float32$"):
        with_precision(config)


def test_a_learner_on_such_a_gpu_may_have_bfloat16_servers_elsewhere_and_export_what_they_sampled_for(old_gpu):
    config = TrainConfig(device="cuda")
    config.rollout.precision = "bfloat16"
    exported = with_precision(config, samples=False)
    assert (exported.learner.precision, exported.rollout.precision) == ("float32", "bfloat16")
    config.rollout.engine = "vllm_server"
    with pytest.raises(UserError, match=r"compute capability 8.0 or newer"):
        with_precision(config)
    config.rollout.servers.urls = ["http://10.0.0.5:8000"]
    assert (with_precision(config).learner.precision, with_precision(config).rollout.precision) == (
        "float32",
        "bfloat16",
    )


def test_a_gpu_that_is_not_here_is_taken_for_a_new_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = with_precision(TrainConfig(device="cuda"))
    assert (config.learner.precision, config.rollout.precision) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("instructions", "chosen"), [((True, False), "bfloat16"), ((False, True), "bfloat16"), ((False, False), "float32")]
)
def test_a_cpu_computes_in_bfloat16_where_it_has_instructions_for_it(monkeypatch, instructions, chosen):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions[0])
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: instructions[1])
    config = with_precision(TrainConfig(device="cpu"))
    assert (config.learner.precision, config.rollout.precision, config.model.head_precision) == (
        chosen,
        chosen,
        "model",
    )


def loaded(name, numbers):
    problems = [Problem(f"{name}-{number}", f"What is {number}?", str(number)) for number in numbers]
    return LoadedTask(TaskConfig(name=name, data=DataConfig(held_out_fraction=0.2)), {"": problems}, {})


def test_a_set_of_the_suite_that_is_trained_on_is_refused(capsys):
    own = loaded("sums", range(100))
    with pytest.raises(UserError, match="78 of the 100 problems of sums in evaluation.suite are trained on, so"):
        _refuse_trained_on(own, [own])
    with pytest.raises(UserError, match="of the 150 problems of more in evaluation.suite are trained on"):
        _refuse_trained_on(own, [loaded("more", range(150))])
    # A system message is no question.
    own.problems[""] = [
        replace(
            problem, messages=({"role": "system", "content": "Add."}, {"role": "user", "content": problem.question})
        )
        for problem in own.problems[""]
    ]
    with pytest.raises(UserError, match="78 of the 100 problems of sums in evaluation.suite are trained on, so"):
        _refuse_trained_on(own, [own])
    _refuse_trained_on(own, [loaded("others", range(100, 200))])
    assert capsys.readouterr().err == ""


def test_a_few_problems_of_the_suite_that_are_trained_on_are_reported(capsys):
    _refuse_trained_on(loaded("sums", range(1, 100)), [loaded("exam", range(99, 120))])
    assert capsys.readouterr().err == (
        "grpo: 1 of the 21 problems of exam in evaluation.suite are trained on: take them out of training with "
        "task.data.selection.evaluation_sets=[FILE]\n"
    )
