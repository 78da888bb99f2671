"""These tests play the forms of an episode with a scripted chat."""

import asyncio
import json
import re
import sqlite3
import sys

import numpy as np
import pytest

from grpo.config import LimitsConfig
from grpo.config.errors import UserError
from grpo.episodes.forms import EpisodeOver, form_of, played
from grpo.episodes.messages import messages_of
from grpo.episodes.processes import Processes
from grpo.sandbox.sandbox import unavailable
from grpo.types import Problem

ACTS = "tests.episodes.acts"


class InParts:
    """The environment speaks in parts of messages, as those with pictures do."""

    def reset(self) -> list:
        return [{"type": "text", "text": " Look."}]

    def look(self) -> list:
        """Looks."""
        return [{"type": "text", "text": "dark"}]

    def list_all(self) -> list:
        """Lists."""
        return [1, "é"]


def call(name, **arguments):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def play(act, *answers, row=None, **limits):
    """Plays an episode in which the model gives these answers. Returns its outcome, and what was shown to the model."""
    shown, answers = [], iter(answers)

    async def chat(messages, tools=None):
        shown.append([dict(message) for message in messages])
        if (answer := next(answers, None)) is None:
            raise EpisodeOver
        return answer

    problem = Problem("p", "How many?", "3", messages=({"role": "user", "content": "How many?"},))
    path = act if act.startswith("python") or ":" in act else f"{ACTS}:{act}"
    return asyncio.run(played(form_of(path, LimitsConfig(**limits)), chat, problem, row or {})), shown


def test_the_answers_of_tools_are_messages_until_the_model_calls_none():
    outcome, shown = play("add", call("add", a=2, b=3), {"role": "assistant", "content": "5"})
    assert shown[1][-1] == {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "5"}
    assert (outcome.rewards, outcome.counts) == ({}, {"calls": 1})


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (call("add", a=2), "TypeError"),
        (call("subtract"), "LookupError: there is no tool 'subtract', only add"),
        (call("add", a="x", b=1), "TypeError"),
    ],
)
def test_a_call_that_fails_is_a_message_too(made, error):
    outcome, shown = play("add", made)
    assert json.loads(shown[1][-1]["content"])["error"].startswith(error)
    assert outcome.counts == {"calls": 1, "failed_calls": 1}


def test_several_calls_of_one_message_run_beside_each_other():
    both = call("wait", seconds=0.0)
    both["tool_calls"] *= 2
    outcome, shown = play("wait", both)
    assert [message["content"] for message in shown[1][-2:]] == ["done", "done"]
    assert outcome.counts["calls"] == 2


def test_an_environment_makes_the_moves_of_one_message_one_after_another():
    moves = call("count", step=1)
    moves["tool_calls"] = [call("count", step=step)["tool_calls"][0] for step in (1, 2, 3, 4)]
    outcome, shown = play("SlowCounter", moves)
    assert [message["content"][-3:] for message in shown[1][-4:]] == [" 1.", " 3.", " 6.", "10."]
    assert outcome.rewards == {"reward": 10.0}


@pytest.mark.parametrize(
    ("tool", "error"),
    [("looks", "Unreadable: message 0 has image in its content"), ("raises_oddly", "Odd")],
)
def test_a_picture_and_an_error_without_words_are_failed_calls(tool, error):
    outcome, shown = play(tool, call(tool))
    assert json.loads(shown[1][-1]["content"])["error"].startswith(error)
    assert outcome.counts == {"calls": 1, "failed_calls": 1}


def test_an_environment_is_reset_with_its_row_and_its_methods_are_tools():
    outcome, shown = play("Counter", call("count", step=2), call("count", step=3), row={"start": 4, "other": "x"})
    assert shown[0][-1]["content"] == "How many? It stands at 4."
    assert shown[2][-1]["content"] == "It stands at 9."
    assert outcome.rewards == {"reward": 9.0}


@pytest.mark.parametrize(
    "tool", ["returns_bytes", "returns_iterator", "returns_an_object", "returns_a_method", "returns_a_set"]
)
def test_a_result_that_no_model_reads_is_a_failed_call(tool):
    outcome, shown = play(tool, call(tool))
    assert "which no model reads: return text, or what JSON can hold" in shown[1][-1]["content"]
    assert outcome.counts == {"calls": 1, "failed_calls": 1}


def test_a_tool_that_is_cancelled_or_broken_off_by_itself_is_a_failed_call():
    for tool, error in (
        *(("cancels_itself", "CancelledError"), ("breaks_off", "KeyboardInterrupt"), ("panics", "Panic")),
    ):
        outcome, shown = play(tool, call(tool))
        assert json.loads(shown[1][-1]["content"])["error"].startswith(error)
        assert outcome.counts == {"calls": 1, "failed_calls": 1}


def test_an_environment_that_changes_the_prompt_it_gets_changes_nothing_that_the_model_reads():
    _, shown = play("Rewriting", {"role": "assistant", "content": "5"})
    assert shown[0][-1]["content"] == "How many?"


def test_a_tool_that_changes_its_arguments_changes_nothing_that_the_model_wrote():
    _, shown = play("total", call("total", numbers=[5, 3]), {"role": "assistant", "content": "8"})
    assert shown[1][-1]["content"] == "8"
    assert shown[1][-2]["tool_calls"][0]["function"]["arguments"] == {"numbers": [5, 3]}


@pytest.mark.parametrize(
    ("act", "error"),
    [
        ("BeginsWithBytes", "it returned bytes, which no model reads"),
        ("BeginsWithMessages", "reset returned messages: return text"),
        ("NeedsMore", "reset: missing a required argument: 'level'; the row has start, prompt"),
        ("BrokenReward", "no attribute 'missing'"),
        ("returns_huge", "it returned reward=1e+308: every reward is a number between"),
        ("returns_a_note", "it returned note='hi': every reward is a number"),
    ],
)
def test_an_episode_whose_code_is_wrong_fails_and_says_where(act, error):
    with pytest.raises((TypeError, ValueError, AttributeError), match=re.escape(error)):
        play(act, {"role": "assistant", "content": "5"}, row={"start": 4})


def test_a_tool_that_raises_stop_iteration_fails_as_others_do():
    outcome, shown = play("stops", call("stops", a=2))
    assert "it raised StopIteration" in shown[1][-1]["content"]
    assert outcome.counts == {"calls": 1, "failed_calls": 1}


def test_methods_of_every_kind_are_tools():
    _, shown = play("Decorated", call("cached"), call("of_class"), call("late"))
    assert [messages[-1]["content"] for messages in shown[1:]] == ["cached", "of class", "late"]


class OnDict(dict):
    """This environment is a mapping, so its class has no signature."""

    def reset(self) -> None:
        self["at"] = 0

    def move(self, to: int) -> int:
        """Moves.

        Args:
            to: Where to.
        """
        self["at"] = to
        return to


class Doubling(OnDict):
    def move(self, to: int) -> int:
        return 2 * super().move(to)


def test_a_method_has_the_docstring_of_the_one_that_it_replaces():
    [schema] = form_of(f"{__name__}:Doubling").schemas
    assert schema["function"]["description"] == "Moves."
    assert play(f"{__name__}:Doubling", call("move", to=3))[1][1][-1]["content"] == "6"


def test_parts_of_messages_stay_and_other_values_are_json():
    _, shown = play(f"{__name__}:InParts", call("look"), call("list_all"))
    assert messages_of(shown[0])[-1]["content"] == "How many? Look."
    assert [message["content"] for message in messages_of(shown[2])[2::2]] == ["dark", '[1, "é"]']


def test_an_environment_may_score_itself_and_leaves_what_json_can_hold():
    outcome, _ = play("Scored", call("guess", number=2), call("guess", number=3))
    assert outcome.rewards == {"reward": 1.0}
    assert outcome.state == {"target": 3, "guesses": [2, 3]}
    assert [schema["function"]["name"] for schema in form_of(f"{ACTS}:Scored").schemas] == ["guess"]


def test_a_python_without_verifiers_has_none_of_its_environments():
    with pytest.raises(UserError, match="run bash launch/verifiers.sh, and set task.python="):
        form_of("verifiers:wordle")


def test_types_of_json_describe_a_tool():
    [schema] = form_of(f"{ACTS}:of_many_types").schemas
    assert list(schema["function"]["parameters"]["properties"]) == ["names", "size", "other", "where"]


def test_an_environment_describes_its_methods_without_self():
    [schema] = form_of(f"{ACTS}:Counter").schemas
    assert schema["function"]["name"] == "count"
    assert list(schema["function"]["parameters"]["properties"]) == ["step"]


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox here: {unavailable()}")
def test_the_model_runs_programs_beside_other_tools():
    calls = [
        call("python", code=code)
        for code in ("6 * 7", "print('x' * 9)", "1 / 0", "print(1234)", "import os; os._exit(3)")
    ]
    outcome, shown = play(f"python,{ACTS}:add", *calls, call("add", a=2, b=3), program_characters=5, program_seconds=60)
    assert [messages[-1]["content"].splitlines()[-1] for messages in shown[1:]] == [
        *("42", "… (cut at 5 characters)", "… (cut at 5 characters)", "1234", "The program ended with status 3.", "5")
    ]
    assert outcome.counts == {"calls": 6}


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox here: {unavailable()}")
@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("999999 * 999999", "999998000001"),
        (" 3 * (4 + -5)", "-3"),
        ("7 / 2", "3.5"),
        ("0.1 + 0.2", "0.3"),
        ("6 / 3", "2"),
        ("1 / 3", "0.333333333333"),
        ("1e-12 * 3", "3e-12"),
        ("123456789 * 987654321 / 1", "121932631112635269"),
        ("+5 - 2", "3"),
        ("100000000000000.5 * 1", "100000000000000.5"),
        ("123456789.1234 * 10", "1234567891.234"),
        ("1e20 / 3", "3.33333333333e+19"),
        ("123456789012.123456 - 123456789012", "0.123456"),
        ("(.5 + 2.) * 1_0.0e-1 + 0x10 - 0e999999999", "18.5"),
    ],
)
def test_the_calculator_computes(expression, result):
    [calculator] = form_of("calculator").functions
    assert calculator(expression) == result


@pytest.mark.parametrize(
    "expression", ["2 ** 9", "open('x')", "True + 1", "1 / 0", "1 +", "9" * 300, "1e308 * 10", "x"]
)
def test_the_calculator_refuses_whatever_is_no_sum(expression):
    [calculator] = form_of("calculator").functions
    with pytest.raises((ValueError, ArithmeticError, SyntaxError)):
        calculator(expression)


@pytest.mark.parametrize("expression", ["1e200 * 1e200", "1e999", "1e308 * 1e308 / 3"])
def test_the_calculator_says_that_numbers_are_too_large(expression):
    [calculator] = form_of("calculator").functions
    with pytest.raises(ValueError, match="the numbers are too large"):
        calculator(expression)


def test_the_model_reads_that_its_program_was_stopped():
    _, shown = play("python", call("python", code="while True: pass"), program_seconds=0.5)
    assert shown[1][-1]["content"] == "The program was stopped: it takes longer than 0.5 s."


def test_a_function_leads_its_own_conversation():
    answers = [{"role": "assistant", "content": str(number)} for number in range(3)]
    outcome, shown = play("three_turns", *answers)
    assert (outcome.rewards, len(shown)) == ({"reward": 3.0, "questions": 3.0}, 3)


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        (f"{ACTS}:NoEnvironment", "without a method reset"),
        (f"{ACTS}:blocking", "write it as async def"),
        (
            f"{ACTS}:undescribed",
            "the tool undescribed has no docstring, .* under Args: .an environment is named by its class",
        ),
        (f"{ACTS}:add,undescribed", "the tool undescribed has no docstring"),
        (f"{ACTS}:add,add", "more than one has the name add: rename it"),
        (f"{ACTS}:SlowCounter,Counter", "SlowCounter is one of several environments, and so stands alone: leave out"),
        (f"{ACTS}:three_turns,Counter", "three_turns leads a conversation, and so stands alone"),
        (f"{ACTS}:three_turns,add", "three_turns leads a conversation, and so stands alone"),
        (f"{ACTS}:add,NoEnvironment", "add,NoEnvironment is a class without a method reset"),
        (f"{ACTS}:gives_rewards", "gives_rewards yields: write return, with the reward"),
        (f"{ACTS}:add_two", "the tool partial is no function: write def NAME"),
        (f"{ACTS}:yielding", "the tool yielding yields: write return"),
        (f"{ACTS}:placed", "the tool placed takes where of type Place, and a model gives values of JSON"),
        (f"{ACTS}:gathered", "the tool gathered takes numbers of type set, and a model gives values of JSON"),
        (f"{ACTS}:streamed", "the type that the tool streamed returns, Iterator, cannot be described: leave it out"),
        (
            f"{ACTS}:Closing",
            "the tool close has no docstring, .* under Args:, or begin its name with _ if it is no tool",
        ),
        (f"{ACTS}:BeginsByYielding", "BeginsByYielding yields: write return, with what the model reads"),
        (f"{ACTS}:summing", r"the tool summing takes \*numbers: int, and a model gives each argument by its name"),
        (f"{ACTS}:Sized", r"its __init__ takes no argument but self \(missing a required argument: 'size'\)"),
        (f"{ACTS}:without_problem", r"write async def NAME\(chat, problem\) \(too many positional arguments\)"),
        (f"{ACTS}:swapped", r"first parameter is not named chat: to lead a conversation write async def swapped\(chat"),
        (f"{ACTS}:without_chat", "is read as a tool, since its first parameter is not named chat"),
        (f"{ACTS}:unnamed", "the tool <lambda> is no function: write def NAME"),
        (f"{ACTS}:an_object", "is of type Odd, and no function or class"),
        (f"[{ACTS}:add]", "is a list: write the names as one text"),
        ("nothing", "must be written as file.py:name"),
        ("program: cat | sort", r"no shell reads \|: write program: bash -c 'COMMAND'"),
        ("node agent.js", 'and a program is written "program: COMMAND"'),
        ("nothing,tools.py:search", "python and calculator come with grpo, and may stand alone or before them"),
        (f"{ACTS}:nobody", "cannot be imported"),
        ("nowhere.py:solve", "cannot be imported"),
    ],
)
def test_processes_refuse_whatever_is_no_episode(path, complaint):
    with pytest.raises(UserError, match=complaint):
        Processes(path, LimitsConfig())


def test_processes_refuse_a_limit_on_memory_that_the_file_exceeds_already():
    with pytest.raises(UserError, match=r"memory_gib=0.001 is less than the 0\.\d+ GiB that .*:add has taken"):
        Processes(f"{ACTS}:add", LimitsConfig(memory_gib=0.001))


def test_a_program_that_may_not_be_executed_is_refused_with_the_way_out(tmp_path):
    program = tmp_path / "agent.sh"
    program.write_text("echo 1")
    with pytest.raises(UserError, match=rf"{program} may not be executed: chmod \+x {program}"):
        form_of(f"program: {program}")


def test_a_program_in_the_working_folder_is_named_with_its_folder(tmp_path, monkeypatch):
    (tmp_path / "agent.js").write_text("echo 1")
    (tmp_path / "agent.js").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"write ./agent.js, or what runs it before it, such as node agent.js"):
        form_of("program: agent.js")


def test_the_error_of_a_program_is_shown_and_not_what_it_writes_behind():
    program = "import sys; sys.exit('Error: Cannot find module\\n  code: 1\\n}\\n\\nNode.js v20')"
    with pytest.raises(RuntimeError, match=r"ended with exit code 1: Error: Cannot find module$"):
        play(f'program: {sys.executable} -c "{program}"')


def test_a_tool_that_ends_its_process_is_read_as_a_failure():
    outcome, shown = play("exits", call("exits"))
    assert shown[1][-1]["content"] == '{"error": "SystemExit: no key"}' and outcome.counts["failed_calls"] == 1


class OfDatabase:
    """This environment holds a connection that belongs to the thread that has made it."""

    def __init__(self):
        self._database = sqlite3.connect(":memory:")

    def reset(self) -> None:
        self._database.execute("create table seen (word)")

    def add(self, word: str) -> int:
        """Adds a word.

        Args:
            word: The word.
        """
        return self._database.execute("insert into seen values (?)", [word]).rowcount

    @property
    def count(self) -> int:
        return self._database.execute("select count(*) from seen").fetchone()[0]

    def get_reward(self) -> float:
        return float(self.count)


def test_all_that_an_environment_does_runs_in_one_thread():
    outcome, shown = play("tests.episodes.test_forms:OfDatabase", call("add", word="a"), call("add", word="b"))
    assert [message[-1]["content"] for message in shown[1:]] == ["1", "1"]
    assert (outcome.rewards, outcome.state) == ({"reward": 2.0}, {"count": 2})


class WithHelpers:
    """This environment has functions that are no methods."""

    def reset(self) -> str:
        return self.drawn(3)

    @staticmethod
    def drawn(number):
        return "*" * number

    @classmethod
    def look(cls) -> str:
        """Looks."""
        return cls.drawn(2)


def test_methods_of_objects_and_classes_are_tools_and_static_methods_are_none():
    form = form_of("tests.episodes.test_forms:WithHelpers")
    assert [schema["function"]["name"] for schema in form.schemas] == ["look"]
    _, shown = play("tests.episodes.test_forms:WithHelpers", call("look"))
    assert [shown[0][-1]["content"], shown[1][-1]["content"]] == ["How many?***", "**"]


class OfNumpy:
    """This environment keeps its numbers as numpy gives them."""

    def reset(self) -> None:
        self.reward, self.places = np.float32(0.5), [np.arange(2)]

    def look(self) -> list:
        """Looks."""
        return {"at": self.places[0], "of": np.int64(4)}


def test_numbers_and_arrays_of_numpy_are_read_and_kept_as_pythons_own():
    outcome, shown = play("tests.episodes.test_forms:OfNumpy", call("look"), {"role": "assistant", "content": "5"})
    assert json.loads(shown[1][-1]["content"]) == {"at": [0, 1], "of": 4}
    assert outcome.state == {"reward": 0.5, "places": [[0, 1]]}


def test_functions_may_be_tools_beside_an_environment():
    moves = (call("calculator", expression="2 + 3"), call("add", a=1, b=2), call("count", step=1))
    outcome, shown = play(f"calculator,{ACTS}:add,Counter", *moves, row={"start": 4})
    assert [messages[-1]["content"] for messages in shown[1:]] == ["5", "3", "It stands at 5."]
    assert outcome.rewards == {"reward": 5.0}
