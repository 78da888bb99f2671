"""These tests strike episodes and the processes around them, while nothing but a script stands for the model."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from unittest.mock import AsyncMock
from urllib.parse import urlsplit

import psutil
import pytest
from aiohttp import ClientConnectionResetError
from aiohttp.test_utils import make_mocked_request

from grpo.config import LimitsConfig, UserError
from grpo.episodes.gateway import Gateway, _check, _completion, _read, _streamed
from grpo.episodes.messages import Unreadable
from grpo.episodes.processes import Answer, Processes
from grpo.run.scripted_episodes import Script
from grpo.types import Completion, Problem


@pytest.fixture(scope="module")
def strike():
    """Returns a function that plays one episode, which is struck as the word says. All are forked from one process."""
    limits = LimitsConfig(seconds=60.0, memory_gib=1.0)
    processes = Processes("tests.episodes.struck:struck", limits)
    yield lambda *words: asyncio.run(together(played(processes, word) for word in words))
    processes.close()


async def together(episodes):
    return await asyncio.gather(*episodes)


def begin(link, answer=""):
    message = {"role": "user", "content": "Well?"}
    link.begin(Problem("p", "Well?", answer, messages=(message,)), ("problem", "answer"), 0, "")


async def played(processes, answer="", seconds=60.0):
    """Plays one episode, in which a script stands for the model."""
    async with processes.episode() as link:
        begin(link, answer)
        return await Script("Well.", most_turns=8).played(link, seconds)


def test_an_agent_that_waits_no_more_for_a_turn_says_so_before_it_asks_again():
    processes = Processes("tests.episodes.acts:loses_patience", LimitsConfig())

    async def asked():
        async with processes.episode() as link:
            begin(link)
            return [await link.said((), 60.0) for _ in range(2)]

    first, second = asyncio.run(asked())
    processes.close()
    assert (len(first.messages), first.gone()) == (1, True)
    assert (len(second.messages), second.gone()) == (2, False)


AGENT = """
import sys

def add(a: int, b: int) -> int:
    \"\"\"Adds two numbers.

    Args:
        a: The first one.
        b: The second one.
    \"\"\"
    return a + b

async def solve(chat, problem):
    ahead = "transformers.utils.chat_template_utils" in sys.modules
    await chat(list(problem.messages), tools=[add])
    return {"reward": 1.0, "ahead": float(ahead), "torch": float("torch" in sys.modules)}
"""


def test_episodes_describe_tools_by_what_is_imported_once_for_all_and_without_torch(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    processes = Processes(f"{tmp_path}/agent.py:solve", LimitsConfig())
    facts = asyncio.run(played(processes))
    processes.close()
    assert facts.rewards == {"reward": 1.0, "ahead": 1.0, "torch": 0.0}, facts


def test_reset_gets_the_columns_of_the_question_and_the_answer():
    processes = Processes("tests.episodes.acts:WantsTheRow", LimitsConfig())

    async def played():
        async with processes.episode() as link:
            link.begin(Problem("p", "2 + 3?", "5", messages=({"role": "user", "content": "?"},)), ("q", "a"), 0, "")
            return await Script("Well.", most_turns=8).played(link, 60.0)

    facts = asyncio.run(played())
    processes.close()
    assert (facts.error, facts.state) == ("", {"reward": 1.0, "question": "2 + 3?", "answer": "5"})


def left_of(started):
    """Returns those of the processes that still run half a minute later. They are not waited for longer than needed."""
    running = [psutil.Process(process) for process in started if psutil.pid_exists(process)]
    return psutil.wait_procs(running, timeout=30)[1]


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("itself", "its process ended"),
        ("group", "its process ended"),
        ("memory", "it needs more memory than task.limits.memory_gib"),
        ("mother", "its process ended"),
    ],
)
def test_an_episode_that_is_struck_says_how_and_the_next_one_is_played(strike, word, error):
    [facts] = strike(word)
    assert facts.error == error
    # After a call that finds out, where the process that forks was killed.
    [facts] = strike("nothing")
    assert (facts.error, facts.rewards) == ("", {"reward": 1.0})


def test_an_episode_may_reserve_more_addresses_than_it_may_take_memory(strike):
    """Node does so for its fetch."""
    [facts] = strike("reserves")
    assert (facts.error, facts.rewards) == ("", {"reward": 1.0})


def test_an_episode_keeps_to_a_lower_limit_of_memory_that_holds_already():
    processes = Processes("tests.episodes.struck:struck", LimitsConfig())
    resource.prlimit(processes._process.pid, resource.RLIMIT_DATA, (2**31, 2**31))
    facts = asyncio.run(played(processes, "limits"))
    processes.close()
    assert (facts.error, facts.rewards) == ("", {"reward": 1.0, "gib": 2.0})


def test_all_that_an_episode_has_started_ends_with_it(strike):
    started = [int(facts.rewards["started"]) for facts in strike("leaves", "leaves")]
    assert left_of(started) == []


def test_a_program_that_goes_on_by_itself_stays_as_long_as_its_episode(strike):
    [facts] = strike("daemon")
    assert (facts.error, facts.rewards["lived"]) == ("", 1.0)
    assert left_of([int(facts.rewards["started"])]) == []


def test_a_program_whose_episode_and_its_parent_were_killed_ends_with_the_next_one(strike):
    [facts] = strike("orphan")
    assert facts.error == "its process ended"
    strike("nothing")
    # A zombie has ended, and has no command line.
    marked = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "611"]]
    assert left_of([process.pid for process in marked]) == []


def test_a_module_in_the_working_folder_is_found_and_replaces_none_of_pythons_own(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise ImportError('this is no random')")
    (tmp_path / "helper.py").write_text("value = 1")
    (tmp_path / "own.py").write_text(
        "import helper, os\nassert 'PYTHONSAFEPATH' not in os.environ\n"
        "def look() -> str:\n    'Looks.'\n    return ''\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    processes = Processes("own.py:look", LimitsConfig())
    processes.close()
    assert processes.kind == "tools"


def test_a_file_that_was_changed_is_not_taken_in_the_middle_of_a_run(tmp_path):
    """The process that had imported it is killed, as the kernel does where memory is short."""
    file = tmp_path / "own.py"
    file.write_text("async def solve(chat, problem):\n    await chat(problem.messages)\n    return 1.0\n")
    processes = Processes(f"{file}:solve", LimitsConfig())

    def killed():
        processes._process.kill()
        processes._process.wait()
        return asyncio.run(played(processes))

    assert killed().rewards == {"reward": 1.0}
    file.write_text(file.read_text().replace("1.0", "7.0"))
    with pytest.raises(UserError, match="was changed while the run went on"):
        killed()
    processes.close()


def test_an_episode_whose_process_does_not_begin_is_no_fault_of_its_code():
    processes = Processes("tests.episodes.struck:struck", LimitsConfig(seconds=0.5))
    os.kill(processes._process.pid, signal.SIGSTOP)
    facts = asyncio.run(played(processes, "nothing", 0.5))
    assert facts.error == "its process took longer to begin than task.limits.seconds=0.5"
    os.kill(processes._process.pid, signal.SIGCONT)
    processes.close()


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}, ""),
        ({"tool_choice": "none"}, ""),
        ({"tool_choice": "none", "tools": []}, ""),
        ({"tool_choice": "none", "tools": [TOOL]}, "tool_choice='none' is for the run to say"),
        ({"tool_choice": "required"}, "tool_choice='required' is for the run to say"),
        ({"stream_options": ["include_usage"]}, "must be a JSON object"),
    ],
)
def test_a_request_may_name_whatever_changes_no_token(body, refused):
    with pytest.raises(Unreadable, match=refused) if refused else nullcontext():
        _check(body)


@pytest.mark.parametrize("body", [b"{'messages': []}", b"", b"[" * 10**5])
def test_a_request_that_is_no_json_is_answered_so(body):
    request = AsyncMock(headers={}, **{"read.return_value": body})
    with pytest.raises(Unreadable, match=r"the request cannot be read \(.*\): send JSON$"):
        asyncio.run(_read(request))


def test_a_request_that_comes_as_its_episode_ends_is_answered_that_it_is_over():
    body = b'{"messages": [{"role": "user", "content": "?"}]}'

    async def answered():
        gateway = Gateway("127.0.0.1")
        await gateway.start()
        with gateway.address(object()) as address:
            place = urlsplit(address)
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            head = f"POST {place.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode())
            await writer.drain()
            # The gateway has looked the episode up once nothing else is left to do.
            await asyncio.sleep(0.2)
        writer.write(body)
        line = await reader.readline()
        writer.close()
        await gateway.stop()
        return line

    assert b"404" in asyncio.run(answered())


def test_a_client_that_hangs_up_in_the_middle_of_a_stream_is_no_error_of_the_gateway():
    answer = Answer({"role": "assistant", "content": "Well."}, Completion((1,), (0.0,), "Well.", truncated=False), 1)
    writer = AsyncMock(**{"write.side_effect": ClientConnectionResetError("Cannot write to closing transport")})
    asyncio.run(_streamed(make_mocked_request("POST", "/", writer=writer), _completion(answer, "policy"), True))
    writer.write.assert_awaited_once()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_the_process_that_forks_ends_with_its_trainer_though_the_file_hangs_as_it_is_imported(end, tmp_path):
    (tmp_path / "hanging.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    # A shell lets what it starts in the background ignore Ctrl-C.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from grpo.config import LimitsConfig; from grpo.episodes.processes import Processes; "
        f"Processes('{tmp_path}/hanging.py:solve', LimitsConfig())"
    )
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as trainer:
        until = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
        trainer.send_signal(end)
    assert left_of([int((tmp_path / "pid").read_text())]) == []


def test_the_process_that_forks_ends_with_its_trainer_though_it_was_stopped():
    script = (
        "import sys; from grpo.config import LimitsConfig; from grpo.episodes.processes import Processes; "
        "print(Processes('tests.episodes.struck:struck', LimitsConfig())._process.pid, flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        forks = int(trainer.stdout.readline())
        os.kill(forks, signal.SIGSTOP)
        trainer.kill()
    assert left_of([forks]) == []
