"""These tests train from Python: the README's example, and mistakes of users."""

import functools
import json
import multiprocessing
import re
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pandas
import pyarrow
import pytest
import torch

import grpo
from grpo import Result, Trainer, UserError
from grpo.cli import main
from grpo.config import RewardPartConfig
from grpo.types.imported import import_path
from tests import warm

README = Path(__file__).resolve().parent.parent / "README.md"


def reward(completion, answer, metadata):
    return 1.0


class Capital:
    def __repr__(self):
        return "<Picture at 0x7F16271D94D0>"


async def print_later(step, numbers):
    print(step)


def print_in_turn(step, numbers):
    yield step


def example() -> str:
    section = README.read_text().partition("## From Python")[2]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


@pytest.mark.slow
def test_the_example_of_the_readme_trains(tmp_path):
    quick = "num_steps=2", "rollout=transformers", "evaluation.num_problems=4", f"output_dir={tmp_path}/run"
    script = example().replace('"num_steps=60"', ", ".join(map(repr, quick)))
    script = script.replace("reward=close)", "reward=close, after_round=lambda step, numbers: print('round', step))")
    (tmp_path / "mine.py").write_text(script)
    done = warm.run([str(tmp_path / "mine.py")], timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "round 1" in done.stdout and "round 2" in done.stdout and "reward/mean" in done.stdout
    result = Result(tmp_path / "run")
    assert list(result.metrics.index) == [1, 2]
    assert list(result.evaluations.index) == [0, 2]
    assert set(result.samples["question"]) <= {f"{a} + {b} =" for a in range(30) for b in range(30)}
    assert result.model == tmp_path / "run" / "model"
    assert f"reward/part/{tmp_path}/mine.py:close" in result.metrics


TRAINING_AGAIN = """
import gc
import sys
import threading
import psutil
from grpo import Trainer
from tests.forked_servers import fork_servers

def started():
    return [child.cmdline() for child in psutil.Process().children()]

def failing(step, numbers):
    print("servers", sum("grpo.host.tether" in words for words in started()))
    raise ValueError("the user's function fails")

if __name__ == "__main__":
    fork_servers(sys.argv[1])
    words = "experiment=tiny", "num_steps=1", "seed=3", "evaluation.num_problems=0"
    try:
        Trainer(*words, "rollout=vllm_server", f"output_dir={sys.argv[2]}/failed", after_round=failing).train()
    except ValueError:
        print("left over", [words for words in map(str, started()) if "resource_tracker" not in words])
    for run in ("first", "second"):
        print(run, *Trainer(*words, "rollout=vllm", f"output_dir={sys.argv[2]}/{run}").train().metrics["reward/mean"])
    Trainer(*words, "rollout.engine=transformers", f"output_dir={sys.argv[2]}/third").train()
    print("learners", sum(type(thing).__name__ == "DeepSpeedEngine" for thing in gc.get_objects()))
    names = [thread.name for thread in threading.enumerate()]
    print("threads", [name for name in names if name == "grading" or "_end_after_the_last" in name])
"""


@pytest.mark.slow
def test_engines_and_servers_end_with_their_run_and_the_process_trains_again(tmp_path):
    (tmp_path / "again.py").write_text(TRAINING_AGAIN)
    done = warm.run([tmp_path / "again.py", warm.interpreter(tmp_path, warm.SERVE), tmp_path], timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    words = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    said = {line[0]: line[1] for line in words if len(line) == 2}
    assert said["servers"] == "1" and "\nleft over []\n" in done.stdout
    # The second run of a process is that of a fresh one, and its engine has other weights than the first one's last.
    assert said["first"] == said["second"]
    assert said["learners"] == "0" and said["threads"] == "[]"


def test_a_trainer_has_the_configuration_of_its_words():
    trainer = Trainer("experiment=tiny", "seed=3", reward=[reward])
    assert (trainer.config.model.source, trainer.config.seed) == ("tiny", 3)
    assert trainer.config.task.reward.parts == [RewardPartConfig(name=f"{__name__}:reward")]
    with pytest.raises(UserError, match="here it is dynamics.group_size"):
        Trainer("num_generations=4")


def test_two_trainers_of_a_process_name_two_folders(monkeypatch):
    monkeypatch.delenv("GRPO_START", raising=False)
    first, second = Trainer("experiment=tiny"), Trainer("experiment=tiny")
    assert first.config.output_dir != second.config.output_dir


@pytest.mark.usefixtures("fresh_process")
def test_a_file_that_was_changed_since_the_last_run_is_imported_again(tmp_path):
    rewards = tmp_path / "rewards.py"
    words = "experiment=tiny", f"task.reward.parts=[{{name: '{rewards}:mine'}}]", f"output_dir={tmp_path}/run"
    for parameters in ("completion, wrong", "completion, another"):
        rewards.write_text(f"def mine({parameters}):\n    return 1.0\n")
        with pytest.raises(UserError, match=re.escape(f"takes ({parameters})")):
            Trainer(*words).train()


def test_messages_in_a_data_frame_stay_messages(tmp_path):
    asked = numpy.array([{"role": "user", "content": "1?"}])
    frame = pandas.DataFrame({"prompt": [asked], "solution": ["1"]})
    path = Trainer("experiment=tiny", f"output_dir={tmp_path}", dataset=frame)._write_data()
    assert json.loads(path.read_text()) == {"prompt": asked.tolist(), "solution": "1"}


@pytest.mark.parametrize(
    "rows", [[{"problem": "1?", "answer": 1}], pandas.DataFrame({"problem": ["1?"], "answer": [1]})]
)
def test_a_dataset_is_written_where_every_rank_reads_it(rows, tmp_path):
    trainer = Trainer("experiment=tiny", f"output_dir={tmp_path}/run", dataset=rows)
    path = trainer._write_data()
    assert path.read_text() == '{"problem": "1?", "answer": 1}\n'
    assert [file.name for file in path.parent.iterdir()] == ["data.jsonl"]


@pytest.fixture
def fresh_process(monkeypatch):
    """Makes torch forget process groups that earlier tests of this process have started."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize("rows", [[{"problem": "1?", "answer": 1}, ("1?", 1)], {"train": [], "test": []}])
def test_rows_that_have_no_columns_are_refused_before_anything_is_written(rows, tmp_path):
    with pytest.raises(UserError, match=r"dataset: row \d is .*, not a mapping from columns to values"):
        Trainer("experiment=tiny", f"output_dir={tmp_path}/run", dataset=rows).train()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (3, r"dataset=3 has no rows: give a list of them"),
        ("openai/gsm8k", r"dataset='openai/gsm8k' is a text: give rows, or 'task.data.source=file' \(or hub\) and"),
        (
            [{"problem": "1?", "answer": 1}, {("a", "problem"): "1?"}],
            r"row 1, .* cannot be written as JSON \(keys must",
        ),
        ([{"problem": "a", "tags": {1, 2}}], r"cannot be written as JSON \(a set has no order: make it a list\)"),
        ([{"problem": "a", "image": Capital()}], r"cannot be written as JSON \(type Capital has no text\)"),
        ([{"problem": threading.Lock(), "answer": 1}], r"row 0, .* written as JSON \(type lock has no text\)"),
        (pandas.DataFrame({("a", "problem"): ["1?"]}), r"row 0, .* columns need names that are texts"),
        (pandas.DataFrame([["1?", 1, 2]], columns=["problem", "answer", "answer"]), r"the column 'answer' twice"),
        ([pandas.DataFrame({"problem": ["1?", "2?"]})], r"row 0 is problem 0 1\? 1 2\?, not a mapping"),
    ],
)
def test_a_dataset_that_is_no_table_is_one_line(dataset, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        Trainer("experiment=tiny", f"output_dir={tmp_path}/run", dataset=dataset)._write_data()
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_half_a_character_is_written_and_read_again(tmp_path):
    rows = [{"problem": "1 \ud800?", "answer": "ünï\x00"}]
    path = Trainer("experiment=tiny", f"output_dir={tmp_path}/run", dataset=rows)._write_data()
    assert json.loads(path.read_text()) == rows[0]


@pytest.mark.usefixtures("fresh_process")
def test_the_data_of_a_run_are_not_replaced_by_those_of_another(tmp_path):
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "data.jsonl").write_text("the run's")
    with pytest.raises(UserError, match="already holds a run"):
        Trainer("experiment=tiny", f"output_dir={tmp_path}", dataset=[{"problem": "1?", "answer": 1}]).train()
    assert (tmp_path / "data.jsonl").read_text() == "the run's"


@pytest.mark.usefixtures("fresh_process")
def test_a_run_in_another_thread_than_the_main_one_is_one_line(tmp_path):
    trainer = Trainer("experiment=tiny", f"output_dir={tmp_path}/run")
    with ThreadPoolExecutor() as threads, pytest.raises(UserError, match="in a process's main thread only"):
        threads.submit(trainer.train).result()


def test_a_script_without_a_main_guard_is_refused(monkeypatch, tmp_path):
    (script := tmp_path / "script.py").write_text('Trainer("experiment=tiny").train()')
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    with pytest.raises(UserError, match='has to call train.. below `if __name__ == "__main__":`'):
        Trainer("experiment=tiny").train()


def test_a_grading_process_that_imports_an_unguarded_script_ends(monkeypatch):
    trainer = Trainer("experiment=tiny")
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SystemExit, match='has to call train.. below `if __name__ == "__main__":`'):
        trainer.train()


def test_the_names_of_trls_classes_lead_to_ours():
    for name, ours in (("GRPOTrainer", "grpo.Trainer"), ("GRPOConfig", "settings as words")):
        with pytest.raises(ImportError, match=ours):
            getattr(grpo, name)


def test_a_dataset_without_rows_is_refused(tmp_path):
    for dataset in ([], pandas.DataFrame({"problem": [], "answer": []}), pyarrow.table({"problem": []})):
        with pytest.raises(UserError, match="^dataset= has no rows: give some$"):
            Trainer("experiment=tiny", f"output_dir={tmp_path}/run", dataset=dataset).train()


@pytest.mark.parametrize("callback", [lambda step: None, lambda *, step: None, Result, print_later, print_in_turn])
def test_a_callback_that_does_not_fit_is_refused_when_it_is_given(callback):
    with pytest.raises(UserError, match="is no function of two arguments"):
        Trainer("experiment=tiny", after_round=callback)


def test_rows_of_other_kinds_are_read_and_a_generator_is_read_once(tmp_path):
    class Rows:
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return {"problem": f"{index} + 1 =", "answer": index + 1}

    class AsOfPolars(dict):
        def to_dicts(self):
            return [dict(zip(self, values, strict=True)) for values in zip(*self.values(), strict=True)]

    plain = [dict(Rows()[index]) for index in range(2)]
    columns = AsOfPolars(problem=["0 + 1 =", "1 + 1 ="], answer=[1, 2])
    in_bytes = [{**row, "problem": row["problem"].encode()} for row in plain]
    for dataset in (Rows(), columns, pyarrow.Table.from_pylist(plain), (row for row in plain), in_bytes):
        trainer = Trainer("experiment=tiny", f"output_dir={tmp_path}", dataset=dataset)
        for _ in range(2):
            assert [json.loads(line) for line in trainer._write_data().read_text().splitlines()] == plain


def test_words_that_reward_or_dataset_replace_are_refused():
    for words, named in (
        (["task.reward.parts=[{name: math}]"], {"reward": max}),
        (["task.reward.by_source={a: {parts: [{name: math}]}}"], {"reward": max}),
        (["task.data.path=x.jsonl"], {"dataset": [{"problem": "1 + 1 =", "answer": 2}]}),
        (["task.episode=python"], {"episode": max}),
    ):
        with pytest.raises(UserError, match=r"reward=, dataset= or episode= say the same: leave one of both out"):
            Trainer("experiment=tiny", *words, **named)


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("environment_factory", Result, "give episode=$"),
        ("reward_funcs", [], "give reward="),
        ("model", "Qwen/Qwen3-0.6B", "give the words 'model=huggingface' and 'model.path=NAME'"),
        ("num_steps", 3, "give the word 'num_steps=VALUE'$"),
        ("args", 1, "give words"),
    ],
)
def test_an_argument_of_another_framework_leads_to_what_is_meant(name, value, instead):
    with pytest.raises(UserError, match=f"Trainer has no argument {name}=: {instead}"):
        Trainer("experiment=tiny", **{name: value})


def test_a_flag_of_the_command_line_is_refused():
    with pytest.raises(UserError, match="--help is a flag of the command line"):
        Trainer("experiment=tiny", "--help")


def test_a_method_of_another_trainer_leads_to_what_is_meant():
    trainer = Trainer("experiment=tiny")
    with pytest.raises(AttributeError, match=r"^grpo's Trainer has no evaluate: .* `grpo eval` evaluates a model$"):
        trainer.evaluate()
    assert not hasattr(trainer, "callback_handler")
    with pytest.raises(
        UserError,
        match=r"^train\(\) has no argument resume_from_checkpoint=: give the word 'checkpoint.resume=true' to Trainer",
    ):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: setattr(config, "num_stepz", 3), "config.num_stepz is no key"),
        (lambda config: setattr(config.dynamics, "size", 3), "config.dynamics.size is no key"),
        (lambda config: setattr(config, "num_steps", 2.5), "num_steps"),
        (lambda config: setattr(config, "task", "gsm8k"), "^config.task='gsm8k' takes the place of a whole section"),
        (lambda config: setattr(config.dynamics, "group_size", "four"), "group_size"),
    ],
)
def test_a_configuration_that_was_changed_wrongly_is_one_line(change, message):
    trainer = Trainer("experiment=tiny")
    change(trainer.config)
    with pytest.raises(UserError, match=message):
        trainer.train()


@pytest.mark.parametrize("config", [{"num_steps": 2}, None])
def test_a_configuration_in_place_of_the_trainers_own_is_refused(config):
    trainer = Trainer("experiment=tiny")
    trainer.config = config
    with pytest.raises(UserError, match=r"is no configuration: change the values of the one that the trainer has"):
        trainer.train()


def test_a_path_beside_a_dataset_is_refused_in_the_configuration_too():
    trainer = Trainer("experiment=tiny", dataset=[{"problem": "1?", "answer": "1"}])
    trainer.config.task.data.path = "other.jsonl"
    with pytest.raises(UserError, match=r"config.task.data.path and dataset= say the same"):
        trainer.train()


def test_an_empty_list_of_rewards_is_refused():
    with pytest.raises(UserError, match=r"reward=\[\] has no function"):
        Trainer("experiment=tiny", reward=[])


def test_a_result_of_another_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="is the folder of no run: it has no config.json"):
        _ = Result(tmp_path).metrics


def test_a_default_device_that_is_not_here_is_one_line(fresh_process, monkeypatch):
    def lacking():
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch, "get_default_device", lacking)
    with pytest.raises(UserError, match=r"set_default_device\(\) names a device that is not here \(Torch not compiled"):
        Trainer("experiment=tiny").train()


def test_a_context_that_changes_a_step_is_refused(fresh_process):
    for context, name in ((torch.no_grad(), "no_grad"), (torch.autocast("cpu"), "autocast")):
        with context, pytest.raises(UserError, match=f"called within torch.{name}"):
            Trainer("experiment=tiny").train()


def test_an_import_that_was_interrupted_is_not_tried_again(monkeypatch):
    class Interrupting:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "grpo.run.session":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "grpo.run.session", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    monkeypatch.setattr(Trainer, "_broken_off", False)
    with pytest.raises(KeyboardInterrupt):
        Trainer("experiment=tiny").train()
    with pytest.raises(UserError, match="loading torch was interrupted in this process: start another one"):
        Trainer("experiment=tiny").train()


def test_a_rank_of_a_launcher_trains_once(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(UserError, match="start other processes for the next run"):
        Trainer("experiment=tiny").train()


def test_a_result_is_read_while_its_run_writes_a_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "pass_rate": 0.5}\n{"step": 2, "pass_')
    assert Result(str(tmp_path)).metrics["pass_rate"].to_dict() == {1: 0.5}
    assert Result(tmp_path).evaluations.empty and Result(tmp_path).model is None
    with pytest.raises(UserError, match="there is no folder .*nowhere: give the output_dir of a run"):
        _ = Result(tmp_path / "nowhere").metrics


def typed(text):
    """Returns the function f of a text that was typed into a notebook's cell."""
    namespace = {"__name__": "__main__"}
    exec(compile(text, "/tmp/ipykernel_7/1.py", "exec"), namespace)
    return namespace["f"]


def halved(function):
    @functools.wraps(function)
    def half(*arguments, **named):
        return function(*arguments, **named) / 2

    return half


def test_a_reward_that_a_decorator_has_made_is_not_the_one_of_its_name():
    parts = Trainer("experiment=tiny", reward=halved(reward)).config.task.reward.parts
    assert [part.name for part in parts] == ["given:reward"]


def test_rewards_that_no_other_process_can_import_have_names_of_their_own():
    def inner(completion, answer, metadata):
        return 1.0

    rewards = [inner, lambda completion: 1.0, lambda completion: 2.0, typed("def f(completion): return 1.0"), reward]
    parts = Trainer("experiment=tiny", reward=rewards).config.task.reward.parts
    assert [part.name for part in parts] == [
        *("given:inner", "given:lambda", "given:lambda-2", "given:f"),
        f"{__name__}:reward",
    ]


CELLS = """
import os
import sys
from grpo import Trainer
from tests.test_trainer import typed

if __name__ == "__main__":
    cell = typed("bonus = 0.25\\ndef more(): return bonus\\ndef f(completion): return more()\\n")
    pid = typed("import os\\ndef f(completions, **columns): return [float(os.getpid())] * len(completions)\\n")
    words = "experiment=tiny", "rollout=transformers", "num_steps=1", "evaluation.num_problems=0"
    metrics = Trainer(
        *words,
        "checkpoint.export=false",
        f"output_dir={sys.argv[1]}/run",
        dataset=[{"problem": f"{number} + 1 =", "answer": number + 1} for number in range(20)],
        reward=[lambda completion, answer: float(answer in completion), cell, pid],
    ).train().metrics
    print(os.getpid(), *(metrics[f"reward/part/given:{name}"].item() for name in ("lambda", "f", "f-2")))
    lead = "async def f(chat, problem):\\n await chat(problem.messages)\\n"
    lead += " return {'bonus': bonus, 'pid': os.getpid()}\\n"
    played = Trainer(
        *words,
        f"output_dir={sys.argv[1]}/played",
        "tracking.completions=all",
        "task.reward.parts=[{name: episode/bonus}, {name: episode/pid}]",
        episode=typed("import os\\nbonus = 0.25\\n" + lead),
    ).train().metrics
    print(os.getpid(), *(played[f"reward/part/episode/{name}"].item() for name in ("bonus", "pid")))
"""


def test_tools_of_one_file_are_named_there_and_those_of_several_are_given():
    def word(*tools):
        return Trainer("experiment=tiny", episode=[*tools]).config.task.episode

    assert word(reward, halved) == f"{__name__}:reward,halved"
    assert word(reward, textwrap.dedent) == "given:reward,dedent"
    assert word(reward, reward) == f"{__name__}:reward,reward"
    assert Trainer("experiment=tiny", episode=Result).config.task.episode == "grpo.trainer:Result"


@pytest.mark.parametrize("reward", [3, "math", [len, None]])
def test_a_reward_that_is_no_function_is_refused_when_it_is_given(reward):
    with pytest.raises(UserError, match="^reward=(3|'math'|None) is no function: give one or a list of them"):
        Trainer("experiment=tiny", reward=reward)


@pytest.mark.parametrize("words", [(["experiment=tiny"],), ("experiment=tiny", 3)])
def test_a_word_that_is_no_text_is_refused_when_it_is_given(words):
    with pytest.raises(UserError, match="is no word: give each as a text of its own, such as 'experiment=tiny'$"):
        Trainer(*words)


def test_a_callback_that_is_no_function_is_refused_when_it_is_given():
    with pytest.raises(UserError, match="^after_round=3 is no function of two arguments: give one that takes the step"):
        Trainer("experiment=tiny", after_round=3)


@pytest.mark.parametrize(
    ("text", "ending"), [("def f(): pass\n", "script.py:f"), ("if True:\n    def f(): pass\n", "")]
)
def test_a_function_below_the_main_guard_of_a_script_is_imported_by_no_other_process(
    tmp_path, monkeypatch, text, ending
):
    script, names = tmp_path / "script.py", {"__name__": "__main__"}
    script.write_text(text)
    exec(compile(text, str(script), "exec"), names)
    monkeypatch.setattr(sys.modules["__main__"], "f", names["f"], raising=False)
    assert import_path(names["f"]) == (ending and f"{tmp_path}/{ending}")


@pytest.mark.slow
def test_a_reward_and_an_episode_of_a_notebooks_cell_run_in_other_processes(tmp_path):
    """The second reward uses what another cell has defined. The third one's pid is that of a grading process."""
    (tmp_path / "cells.py").write_text(CELLS)
    done = warm.run([tmp_path / "cells.py", tmp_path], timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    graded, played = (line.split() for line in done.stdout.splitlines() if line[:1].isdigit())
    own, right, bonus, grader = map(float, graded)
    assert 0 <= right <= 1 and bonus == 0.25
    assert grader not in (own, 0)
    own, bonus, episode = map(float, played)
    assert bonus == 0.25 and episode not in (own, 0)


@pytest.mark.usefixtures("fresh_process")
def test_a_reward_that_cannot_be_sent_to_another_process_is_one_line(tmp_path):
    lock = threading.Lock()

    def waiting(completion):
        return float(lock.locked())

    with pytest.raises(UserError, match="the reward given:waiting cannot be sent to the grading processes .*lock.*"):
        Trainer("experiment=tiny", f"output_dir={tmp_path}/run", reward=waiting).train()


@pytest.mark.usefixtures("fresh_process")
def test_an_episode_that_cannot_be_sent_to_another_process_is_one_line(tmp_path):
    lock = threading.Lock()

    async def waiting(chat, problem):
        return float(lock.locked())

    words = (
        "experiment=tiny",
        "rollout=transformers",
        "task.reward.parts=[{name: episode}]",
        f"output_dir={tmp_path}/run",
    )
    with pytest.raises(
        UserError, match=r"^episode= cannot be sent to another process \(.*lock.*\): what it uses must be"
    ):
        Trainer(*words, episode=waiting).train()


def test_another_process_says_that_it_lacks_a_reward_which_was_given_in_python(capsys):
    assert main(["train", "experiment=tiny", "task.reward.parts=[{name: 'given:mine'}]"]) == 2
    assert "it was given in Python, as an object that this process lacks: give it to Trainer again" in (
        capsys.readouterr().err
    )


def test_the_package_says_what_it_has():
    assert grpo.__all__ == ["Result", "Trainer", "UserError"]
    with pytest.raises(AttributeError, match="module 'grpo' has no attribute 'Trianer'"):
        grpo.Trianer()


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=huggingface", "model.path="], "model.path is empty: set it to a model's directory"),
        (["task=file", "task.data.path=no.jsonl"], "task.data.path: there is no file 'no.jsonl'"),
        (["task.reward.workers=100000"], "asks for as many processes, and this machine has"),
        (["output_dir=/dev/null/x"], "output_dir=/dev/null/x cannot be written to, since /dev/null is no folder"),
        (["model.lora.alpha=16"], "model.lora.alpha=16.0 has no effect here: set model.lora.rank, or leave"),
        (["rollout=vllm_server", "rollout.servers.host=no.such"], "rollout.servers.host=no.such is no address of this"),
    ],
)
def test_a_trainer_refuses_in_the_words_of_the_command_line(words, message, capsys):
    with pytest.raises(UserError) as caught:
        Trainer("experiment=tiny", *words).train()
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert main(["train", "experiment=tiny", *words]) == 2
    assert capsys.readouterr().err == f"grpo: {caught.value}\n"


@pytest.mark.usefixtures("fresh_process")
def test_a_dataset_that_cannot_be_written_names_the_folder():
    trainer = Trainer("experiment=tiny", "output_dir=/proc/none", dataset=[{"problem": "1?", "answer": 1}])
    with pytest.raises(
        UserError, match="output_dir=/proc/none cannot be written to, since /proc is no place for a new folder"
    ):
        trainer.train()
