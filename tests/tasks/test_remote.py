"""These tests use rewards of real HTTP servers on this machine."""

import json
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo.config import RewardConfig, RewardPartConfig, RewardServerConfig, UserError
from grpo.config.hydra import compose_config
from grpo.config.validate import validate
from grpo.tasks import remote
from grpo.tasks.grader_pool import GraderPool
from grpo.tasks.grading import Grading
from grpo.types import Completion, Problem, Prompt, RolloutGroup
from tests.runs import grpo

PROBLEM = Problem("p", "1 + 1?", "2", {"level": 3}, source="sums")


@contextmanager
def served(answer):
    """Starts a server whose `answer` makes (status, text) of a request. Yields its address, and (path, headers, body)
    of every request."""
    requests, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                requests.append((self.path, dict(self.headers), body))
            self.reply(*answer(body))

        def do_GET(self):
            self.reply(200, json.dumps({"data": [{"id": "served-model"}]}))

        def reply(self, status, text):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            # A client whose patience has ended has hung up.
            with suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(text.encode())

        def log_message(self, *arguments):
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # It looks so often, in seconds, whether it is to end; by itself twice a second.
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def group(*texts, truncated=False, problem=PROBLEM):
    completions = tuple(Completion((7,), (-1.0,), text, truncated) for text in texts)
    return RolloutGroup(Prompt(problem, (1,)), completions, 4, 5)


def grades(name, server, *texts, times=1, groups=1, problem=PROBLEM):
    reward = RewardConfig(parts=[RewardPartConfig(name=name, server=RewardServerConfig(retries=0, **server))])
    grading = Grading(GraderPool(reward), reward, 16)
    try:
        for _ in range(times):
            scored = grading.grade([group(*texts, problem=problem)] * groups)
        return [grade for of_group in scored for grade in of_group.grades]
    finally:
        grading.close()


def test_a_service_sees_the_completion_and_what_is_known_of_it():
    with served(lambda body: (200, json.dumps({"score": len(body["completion"]) / 10, "words": 2}))) as (url, requests):
        first, second = grades("http", {"url": f"{url}/score"}, "abc", "abcde")
    assert (first.reward, second.reward) == (0.3, 0.5)
    assert first.parts == {"http": 0.3, "http/words": 2.0} and first.outcome == "graded"
    path, headers, body = next(request for request in requests if request[2]["completion"] == "abc")
    assert path == "/score" and "Authorization" not in headers
    assert body == {
        "completion": "abc", "answer": "2", "metadata": {"level": 3}, "prompt": "1 + 1?", "source": "sums", "step": 5,
        "messages": [{"role": "user", "content": "1 + 1?"}], "truncated": False,
    }  # fmt: skip


def reply(text):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


def test_a_judge_is_asked_over_the_interface_of_openai(monkeypatch, caplog):
    monkeypatch.setenv("JUDGE_KEY", "secret-7")
    server = {"prompt": "{question}|{completion}", "key_variable": "JUDGE_KEY", "options": {"max_tokens": 9}}
    with served(lambda body: reply("Score: 2 would be hard.\n**Score:** 8")) as (url, requests):
        [grade] = grades("judge/style", {"url": f"{url}/v1/", **server}, "It is {question}.")
    assert grade.reward == 0.8 and grade.parts == {"judge/style": 0.8}
    [(path, headers, body)] = requests
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret-7"
    assert body == {
        "model": "served-model",
        "messages": [{"role": "user", "content": "1 + 1?|It is {question}."}],
        "temperature": 0.0,
        "max_tokens": 9,
    }
    assert "secret-7" not in caplog.text


def test_a_text_that_looks_like_a_place_of_the_template_is_left_as_it_is():
    problem = Problem("p", "{answer} {completion}", "{question} {completion}")
    with served(lambda body: reply("Score: 1")) as (url, requests):
        grades("judge", {"url": url, "prompt": "{question}|{answer}|{completion}"}, "{question}", problem=problem)
    [(_, _, body)] = requests
    assert body["messages"][0]["content"] == "{answer} {completion}|{question} {completion}|{question}"


def test_many_are_asked_at_once_and_the_same_completion_once():
    busy, most, lock, four = [], [], threading.Lock(), threading.Barrier(4)

    def answer(body):
        with lock:
            busy.append(body)
            most.append(len(busy))
        four.wait(60)
        with lock:
            busy.pop()
        return 200, "1.0"

    with served(answer) as (url, requests):
        graded = grades("http", {"url": url, "at_once": 4}, *map(str, range(8)), times=2)
    assert [grade.reward for grade in graded] == [1.0] * 8
    assert max(most) == 4 and len(requests) == 8


def test_the_parts_of_a_reward_are_asked_at_the_same_time():
    two = threading.Barrier(2)

    def answer(body):
        two.wait(60)
        return 200, "1.0"

    with served(answer) as (url, _):
        server = RewardServerConfig(url=url, retries=0)
        reward = RewardConfig(parts=[RewardPartConfig(name=f"http/{name}", server=server) for name in "ab"])
        grading = Grading(GraderPool(reward), reward, 16)
        [scored] = grading.grade([group("x")])
        grading.close()
    assert scored.grades[0].reward == 2.0


def test_a_group_that_was_given_up_is_shown_to_no_grader():
    with served(lambda body: (200, "1.0")) as (url, requests):
        reward = RewardConfig(parts=[RewardPartConfig(name="http", server=RewardServerConfig(url=url, retries=0))])
        grading = Grading(GraderPool(reward), reward, 16)
        late = group("half")
        late = replace(late, completions=(*late.completions, Completion.given_up(4)))
        scored = grading.grade([late, group("whole"), late])
        only_late = grading.grade([late])
        grading.close()
    assert [grade.outcome for of in scored for grade in of.grades] == ["late"] * 2 + ["graded"] + ["late"] * 2
    assert [of.included for of in (*scored, *only_late)] == [(False, False), (True,), *[(False, False)] * 2]
    assert len(requests) == 1


@pytest.mark.parametrize(("cache", "asked"), [(True, 2), (False, 6)])
def test_completions_of_one_group_that_are_the_same_are_asked_about_once_if_answers_are_kept(cache, asked):
    with served(lambda body: (200, str(len(body["completion"])))) as (url, requests):
        given = grades("http", {"url": url, "cache": cache}, "a", "bb", "a", times=2)
    assert [grade.reward for grade in given] == [1.0, 2.0, 1.0]
    assert len(requests) == asked


def test_a_request_that_fails_is_repeated_and_a_group_with_one_that_never_succeeds_is_not_learned_from(
    monkeypatch, caplog
):
    monkeypatch.setattr("grpo.tasks.remote.FIRST_PAUSE_SECONDS", 0.01)
    tries = {}

    def answer(body):
        text = body["completion"]
        tries[text] = tries.get(text, 0) + 1
        return (200, "1") if text == "good" or (text == "later" and tries[text] == 3) else (503, "too busy\nnow")

    with served(answer) as (url, _):
        server = RewardServerConfig(url=url, retries=2)
        reward = RewardConfig(parts=[RewardPartConfig(name="http", server=server)])
        grading = Grading(GraderPool(reward), reward, 16)
        answered, spoilt = grading.grade([group("good", "later"), group("good", "never")])
        grading.close()
    assert [(grade.reward, grade.outcome) for grade in answered.grades] == [(1.0, "graded")] * 2
    assert answered.included == (True, True)
    assert [(grade.reward, grade.outcome) for grade in spoilt.grades] == [(0.0, "unanswered")] * 2
    assert spoilt.included == (False, False) and spoilt.silent
    assert tries == {"good": 1, "later": 3, "never": 3}
    assert f"'http': {url} answered 503: 'too busy now'; 1 of 4 completions get no reward" in caplog.text


def test_a_completion_that_got_no_reward_is_asked_about_again_when_it_comes_again():
    answers = {"a": [(200, "1"), (200, "1")], "b": [(404, "gone"), (200, "0.5")]}
    with served(lambda body: answers[body["completion"]].pop(0)) as (url, requests):
        again = grades("http", {"url": url}, "a", "b", times=2)
    assert [(grade.reward, grade.outcome) for grade in again] == [(1.0, "graded"), (0.5, "graded")]
    assert sorted(body["completion"] for _, _, body in requests) == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        ("http", (404, "no such page"), "answered 404: 'no such page'; correct its server in task.reward.parts"),
        ("http", (200, "<html>"), "answered '<html>', which is not JSON"),
        ("http", (200, '{"reward": 1}'), "holds no reward .it returned a mapping without 'score', but with reward"),
        ("http", (200, "NaN"), "holds no reward .the reward is nan"),
        ("http", (200, "1" + "0" * 400), "holds no reward .int too large to convert to float"),
        ("http", (200, "[" * 100_000), "which is not JSON"),
        ("judge", reply("I cannot say"), "holds no reward .no '.*' in the reply 'I cannot say'"),
        ("judge", reply("Score: 1000"), "the score 1000 in the reply 'Score: 1000' is beyond 10"),
        ("judge", (200, '{"error": "x"}'), "answered \"{'error': 'x'}\", which holds no reward"),
    ],
)
def test_a_server_that_gives_no_reward_is_one_line_with_its_address_and_what_came_back(name, answer, message):
    with served(lambda body: answer) as (url, _), pytest.raises(UserError, match=message) as error:
        grades(name, {"url": url}, "a", "b")
    assert str(error.value).startswith(f"reward part {name!r}: {url}") and "\n" not in str(error.value)


def test_a_server_that_is_not_there_or_too_slow_is_one_line():
    with pytest.raises(UserError, match="'http': http://127.0.0.1:9: ClientConnectorError"):
        grades("http", {"url": "http://127.0.0.1:9"}, "a")
    with pytest.raises(UserError, match="'judge': http://127.0.0.1:9/models: ClientConnectorError.*; start the serv"):
        grades("judge", {"url": "http://127.0.0.1:9"}, "a")
    slow = served(lambda body: (time.sleep(1), (200, "1"))[1])
    with slow as (url, _), pytest.raises(UserError, match="no answer within 0.1 s"):
        grades("http", {"url": url, "seconds": 0.1}, "a")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("{name: http}", "'http' needs server.url, an address that begins with http:// or https://; it is ''"),
        ("{name: judge, server: {url: notaurl}}", "it is 'notaurl'"),
        ("{name: http, server: {url: 'http://'}}", "it is 'http://'"),
        ("{name: http, server: {url: 'http://a:99999'}}", "it is 'http://a:99999'"),
        ("{name: judge, server: {url: 'http://a/v1?version=2'}}", "must be the address before /chat/completions"),
        (
            "{name: judge, server: {url: 'http://a/v1/chat/completions'}}",
            "must be the address before /chat/completions",
        ),
        ("{name: math, server: {url: 'http://a'}}", "'math' asks no server: name the part http or judge"),
        ("{name: http, server: {url: 'http://me@a/'}}", "server.url holds a key or a password"),
        ("{name: http, server: {url: 'http://a/?code={key}'}}", r"server.url holds {key}: name the environment"),
        ("{name: http, server: {url: 'http://a', at_once: 0}}", "server.at_once=0 must be above 0"),
        ("{name: judge, server: {url: 'http://a', prompt: hello}}", "server.prompt lacks {completion}"),
        ("{name: judge, server: {url: 'http://a', retries: -1}}", r"server.retries=-1 must not be negative"),
    ],
)
def test_a_server_is_checked_before_anything_starts(part, message):
    with pytest.raises(UserError, match=message):
        validate(compose_config([f"task.reward.parts=[{part}]"]))


def test_a_key_that_is_not_set_and_a_pattern_that_is_none_are_refused_before_the_first_request(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UserError, match="takes its key from NO_SUCH_KEY, which is not set"):
        grades("http", {"url": "http://a", "key_variable": "NO_SUCH_KEY"}, "a")
    with pytest.raises(UserError, match="is no name of an environment variable: export the key in one") as error:
        grades("http", {"url": "http://a", "key_variable": "sk-abc123"}, "a")
    assert "abc123" not in str(error.value)
    with pytest.raises(UserError, match="server.pattern '.' is not a valid regular expression"):
        grades("judge", {"url": "http://a", "pattern": "("}, "a")
    with pytest.raises(UserError, match="server.pattern 'x' has 0 groups"):
        grades("judge", {"url": "http://a", "pattern": "x"}, "a")


def test_a_key_is_put_into_the_address_and_no_message_tells_it(monkeypatch):
    monkeypatch.setenv("SCORE_KEY", "se=cret&7")
    server = {"key_variable": "SCORE_KEY"}
    with served(lambda body: (200, "1")) as (url, requests):
        [grade] = grades("http", {"url": f"{url}/score?v=2&code={{key}}", **server}, "a")
    [(path, headers, _)] = requests
    assert grade.reward == 1.0 and path == "/score?v=2&code=se%3Dcret%267" and "Authorization" not in headers
    for answer in [(401, "no such key: se=cret&7"), (200, '"se=cret&7"'), (200, "se%3Dcret%267"), (200, "se=cret%267")]:
        with served(lambda body, answer=answer: answer) as (url, _), pytest.raises(UserError) as raised:
            grades("http", {"url": f"{url}/score?code={{key}}", **server}, "a")
        assert "score?code={key} answered" in str(raised.value) and "cret" not in str(raised.value)
    with pytest.raises(UserError) as raised:
        grades("judge", {"url": "http://127.0.0.1:9/{key}/v1", **server}, "a")
    assert "http://127.0.0.1:9/{key}/v1/models" in str(raised.value) and "cret" not in str(raised.value)


@pytest.mark.slow
def test_a_key_stands_in_no_file_of_a_run_which_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setenv("SCORE_KEY", "kept-to-itself-7")
    with served(lambda body: (200, str(len(body["completion"]) % 2))) as (url, requests):
        server = f'{{url: "{url}/score?code={{key}}", key_variable: SCORE_KEY}}'
        words = [
            *("train", "experiment=tiny", "rollout=transformers", f"output_dir={tmp_path}", "tracking=wandb_offline"),
            *("dynamics.prompts_per_step=2", "dynamics.group_size=4", "evaluation.num_problems=2"),
            *("tracking.tensorboard=true", "tracking.completions=all", "checkpoint.export=true"),
            f"task.reward.parts=[{{name: http, server: {server}}}]",
        ]
        first = grpo(*words, "num_steps=1")
        second = grpo(*words, "num_steps=2", "checkpoint.resume=true")
    assert first.returncode == second.returncode == 0, second.stderr[-3000:]
    assert {path for path, _, _ in requests} == {"/score?code=kept-to-itself-7"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.json", "report.html", "README.md", "state.json", "metrics.jsonl"} <= {path.name for path in files}
    assert [path for path in files if b"kept-to-itself" in path.read_bytes()] == []
    printed = first.stdout + first.stderr + second.stdout + second.stderr
    assert "kept-to-itself" not in printed and "score?code={key}" in (tmp_path / "config.json").read_text()
    assert "resuming from step-00000001" in printed


def test_no_more_of_an_answer_is_read_than_a_reward_can_need(monkeypatch):
    monkeypatch.setattr(remote, "LARGEST_ANSWER", 3 * 2**20)
    with served(lambda body: (200, "1" + " " * (3 * 2**20 - 1))) as (url, _):
        [grade] = grades("http", {"url": url}, "a")
    assert grade.reward == 1.0
    message = "ClientPayloadError: its answer has more than 3 MiB; correct its server"
    with served(lambda body: (200, "1" + " " * 3 * 2**20)) as (url, _), pytest.raises(UserError, match=message):
        grades("http", {"url": url}, "a")
