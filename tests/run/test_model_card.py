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
    settings = {"problems": 8, "samples_per_problem": 4, "temperature": 1.0}
    return {"step": step, **settings, "per_problem": [{"problem_id": "p"}], "pass@1": rate, **others}


def test_the_card_says_what_training_brought_and_where_it_was_not_measured():
    suite = {"math500": {"problems": 500, "pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}}}
    evaluations = [evaluation(0, 0.25), evaluation(4, 0.5, suite=suite), evaluation(9, 0.75)]
    text = card(compose_config([]), 6, evaluations, {})
    assert "pass@1 on 8 held-out problems was 25.0% before training and 50.0% after step 4. It was not" in text
    assert "| math500 | 4 | pass@1 | 50.0% | [40.0%, 60.0%] | 500 |" in text and "75.0%" not in text
    assert "It was not evaluated on held-out problems" in card(compose_config([]), 6, [], {})
    # A resumed run may ask other problems, or more of them, of which nothing was known before.
    others = [evaluation(0, 0.25), evaluation(4, 0.5, problems=16), evaluation(6, 0.75, problems=16)]
    text = card(compose_config([]), 6, others, {})
    assert "pass@1 on 16 held-out problems was 50.0% after step 4 and 75.0% after step 6" in text
    assert "1 earlier evaluation is left out, since the evaluations differ in problems (8 and 16)." in text
    assert "before training" not in text


def test_the_card_of_a_run_without_answers_tells_the_mean_reward():
    rows = [{"problem_id": "p", "answer": "", "correct": 4, "total": 4, "reward": 3.5}]
    evaluations = [
        evaluation(step, 1.0, per_problem=rows, mean_reward=reward) for step, reward in ((0, 3.5), (4, 4.25))
    ]
    text = card(compose_config([]), 4, evaluations, {})
    assert "Its mean reward on 8 held-out problems was 3.5 before training and 4.25 after step 4." in text
    assert "| held-out problems | 4 | mean reward | 4.25 | – | 8 |" in text
    assert "Completions were 4 of each problem, drawn at temperature 1. Held-out" in text and "pass@1" not in text


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


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (
            ["task.prompt.system=null"],
            '[{"role": "system", "content": "Add."}, {"role": "assistant", "content": "Well?"}, {"role": "user", ',
        ),
        (["task.prompt.system=Be brief"], '[{"role": "system", "content": "Be brief"}, {"role": "assistant", '),
        (["task.prompt.system=''"], '[{"role": "assistant", "content": "Well?"}, {"role": "user", '),
    ],
)
def test_the_card_asks_with_the_messages_that_come_before_the_question_in_the_data(words, asked):
    opening = [{"role": "system", "content": "Add."}, {"role": "assistant", "content": "Well?"}]
    rows = [{"problem_id": "p", "question": "1 + 1", "opening": opening, "correct": 1, "total": 1}]
    assert f"messages = {asked}" in card(compose_config(words), 4, [evaluation(4, 0.5, per_problem=rows)], {})


@pytest.mark.parametrize(
    ("word", "note"),
    [
        ("task.prompt.system=''", "a system text that the chat template writes by itself was left out."),
        (r"task.prompt.template='{c} {question} \\frac{a}{b}'", "the text of a problem's column replaced {c}."),
        (r"task.prompt.template='{question} \\boxed{}'", ""),
    ],
)
def test_the_card_says_how_the_code_asks_otherwise_than_training_did(word, note):
    text = card(compose_config([word]), 4, [], {})
    assert re.findall(r"^In training (.*)", text, re.MULTILINE) == [note] * bool(note)


def test_the_card_names_the_file_the_base_and_its_license_and_asks_a_problem_of_the_data(tmp_path):
    words = ["model=smollm2_135m", "task=file", f"task.data.path={tmp_path}/sums.jsonl"]
    questions = ("x" * 1001, 'How "many"?')
    problems = [{"problem_id": str(number), "question": text} for number, text in enumerate(questions)]
    text = card(compose_config(words), 6, [evaluation(4, 0.5, per_problem=problems)], {})
    assert "\nbase_model: HuggingFaceTB/SmolLM2-135M-Instruct\nlicense: apache-2.0\n" in text
    assert "# smollm2, trained with GRPO on sums.jsonl\n" in text
    assert "Its base is HuggingFaceTB/SmolLM2-135M-Instruct. The base's license, apache-2.0, applies." in text
    program = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)[1]
    assert r'question = "How \"many\"?' in program and "3 + 4" not in text


def test_the_base_in_a_folder_of_the_hubs_cache_has_its_name_on_the_hub(tmp_path):
    folder = tmp_path / "models--owner--Some-Model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# A model\n")
    text = card(compose_config(["model=huggingface", f"model.path={folder}", "task=gsm8k"]), 6, [], {})
    assert "\nbase_model: owner/Some-Model\nlicense: mit\n" in text and "on the problems of gsm8k." in text
    (folder / "README.md").write_text("no header\nlicense: mit\n")
    text = card(compose_config(["model=huggingface", f"model.path={folder}"]), 6, [], {})
    assert "\nlicense: " not in text and "The base's license applies." in text


def test_several_sets_are_named_together():
    words = ["task=mixed", "+task@task.sets.a=arithmetic", "+task@task.sets.b=trl", "task.sets.b.data.path=x/p.jsonl"]
    assert "trained with GRPO on arithmetic, p.jsonl\n" in card(compose_config(words), 6, [], {})


def test_a_card_says_what_training_has_cost_in_hours_and_energy_and_by_the_point():
    evaluations = [evaluation(0, 0.2), evaluation(6, 0.45)]
    rounds = [{"step": step, "time/round_seconds": 600.0, "energy/round_joules": 900_000.0} for step in range(1, 7)]
    text = card(compose_config([]), 6, evaluations, {}, rounds=rounds)
    assert "| time of all rounds | 60 min |" in text
    each = "1.5 kWh by the counters of GPUs and processors, 0.06 kWh for each point of pass@1 gained"
    assert f"| energy of all rounds | {each} |" in text
    rounds[0].pop("energy/round_joules")
    text = card(compose_config([]), 6, evaluations, {}, rounds=rounds)
    assert "| energy of 5 of 6 rounds | 1.25 kWh by the counters of GPUs and processors |" in text
    uncounted = [{"step": 1, "time/round_seconds": 1800.0}]
    text = card(compose_config([]), 6, evaluations[:1], {}, rounds=uncounted)
    assert "| time of all rounds | 30 min |" in text and "energy" not in text
    assert "time of all rounds" not in card(compose_config([]), 6, evaluations, {})
