"""Lengths that are not given come from the data and the model."""

import json
from dataclasses import asdict, replace

import pytest
from transformers import AutoTokenizer

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.config.saved import described
from grpo.models.resolve import resolve
from grpo.run.parts import warm_start_examples
from grpo.run.preparing import fit_lengths
from grpo.tasks.task import loaded_task


@pytest.fixture(scope="module")
def tiny():
    config = compose_config(["experiment=tiny"])
    path = resolve(config.model, lambda: warm_start_examples(config))
    return path, AutoTokenizer.from_pretrained(path)


def fitted(tiny, problems, *words):
    settings = ["experiment=tiny", "task=file", f"task.data.path={problems}", "task.prompt.template='{question}'"]
    config = compose_config([*settings, "model.max_length=0", "rollout.sampling.max_tokens=6", *words])
    path, tokenizer = tiny
    longer, [task] = fit_lengths(config, [loaded_task(config.task, tokenizer)], path)
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
    with pytest.raises(UserError, match="no room for a prompt, since the model has 2048 positions"):
        fitted(tiny, problems, "rollout.sampling.max_tokens=2048")
    with pytest.raises(UserError, match=r"evaluation.max_tokens=2048 leaves no room for a prompt, since"):
        fitted(tiny, problems, "evaluation.max_tokens=2048")
    with pytest.raises(UserError, match="=2000 plus rollout.sampling.max_tokens=60 is more than the 2048 positions"):
        fitted(tiny, problems, "rollout.sampling.max_tokens=60", "task.prompt.max_tokens=2000")
    with pytest.raises(UserError, match="there is no file"):
        fitted(tiny, tmp_path / "nowhere.jsonl", "rollout.sampling.max_tokens=2048")


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
