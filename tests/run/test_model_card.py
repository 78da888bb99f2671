"""A model card tells how the model was trained, so that it can be trained again."""

import re
from dataclasses import replace

import pytest

from grpo.config.hydra import compose_config
from grpo.run.model_card import card


@pytest.mark.parametrize("experiment", ["tiny", "quickstart", "gsm8k_qwen2_5_7b", "bigmath_llama3_1_8b_two_nodes"])
def test_the_configuration_in_a_card_trains_the_same_again(experiment, tmp_path):
    config = compose_config([f"experiment={experiment}", "learner.learning_rate=3e-6"])
    resumed = replace(config, checkpoint=replace(config.checkpoint, resume=True))
    saved = re.search(r"```json\n(.*?)\n```", card(resumed, 7, [], {}), re.DOTALL)[1]
    (tmp_path / "again.yaml").write_text(saved)
    assert compose_config([f"{tmp_path}/again.yaml"]) == config


def evaluation(step, value, **others):
    rate = {"value": value, "low": value / 2, "high": 1.0}
    return {"step": step, "problems": 8, "samples_per_problem": 4, "temperature": 1.0, "pass@1": rate, **others}


def test_the_card_says_what_training_brought_and_where_it_was_not_measured():
    suite = {"math500": {"problems": 500, "pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}}}
    evaluations = [evaluation(0, 0.25), evaluation(4, 0.5, suite=suite), evaluation(9, 0.75)]
    text = card(compose_config([]), 6, evaluations, {})
    assert "pass@1 on 8 held-out problems was 25.0% before training and 50.0% after step 4. It was not" in text
    assert "| math500 | 4 | 50.0% | [40.0%, 60.0%] | 500 |" in text and "75.0%" not in text
    assert "It was not evaluated on held-out problems" in card(compose_config([]), 6, [], {})


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["task.prompt.chat=false", "task.prompt.template='{question} ='"], "text = question"),
        (["task.prompt.system=Be brief"], 'messages = [{"role": "system", "content": "Be brief"}, {"role"'),
        (["+task.prompt.chat_template_kwargs.enable_thinking=false"], "tokenize=False, enable_thinking=False)"),
    ],
)
def test_the_card_asks_as_in_training_in_python_that_can_be_read(words, asked):
    text = card(compose_config(words), 6, [], {}, "peft")
    program = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)[1]
    compile(program, "card", "exec")
    assert asked in program and "AutoPeftModelForCausalLM" in program


def test_a_bar_in_a_template_does_not_end_its_cell():
    config = compose_config(["task.prompt.template='<|user|>{question}'"])
    [line] = [line for line in card(config, 7, [], {}).splitlines() if line.startswith("| prompt ")]
    assert line == r'| prompt | `"<\|user\|>{question}"` |'


def test_the_card_tells_maxrl_from_dr_grpo():
    config = compose_config([])
    config.normalization.exponent, config.normalization.mean_exponent = 0.0, 1.0
    assert "| normalization | dial, exponents 0 of σ and 1 of the mean |" in card(config, 3, [], {})
