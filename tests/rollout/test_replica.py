"""These tests check how `grpo serve` keeps servers, and that they answer nothing without their key."""

import asyncio
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoConfig, LlamaConfig

from benchmarks.small_models import config_of
from grpo.config import RolloutConfig, TrainConfig, UserError
from grpo.config.parts import SamplerSettings
from grpo.host.network import free_port
from grpo.rollout.engine_arguments import command_line, engine_arguments, for_cpu, for_device
from grpo.rollout.replica import UNRESPONSIVE_SECONDS, Replica, ServerProcess, keep_alive
from grpo.rollout.server_middleware import KeyMiddleware
from tests.learner.models import files_of
from tests.rollout.test_dispatch import server

ROOT = Path(__file__).resolve().parents[2]


def test_a_server_that_exits_while_starting_shows_the_end_of_its_log(tmp_path):
    process = ServerProcess([], {}, tmp_path / "logs" / "server-0.log")
    process._command = [sys.executable, "-c", "print('there is no such model'); raise SystemExit(3)"]
    process.start()
    replica = Replica(f"http://127.0.0.1:{free_port()}", "", 1.0, process)
    with pytest.raises(UserError, match=r"exited with 3 while starting(.|\n)*there is no such model"):
        asyncio.run(replica.wait(30))


def test_a_server_that_exits_when_it_is_started_again_shows_what_this_start_has_printed(tmp_path):
    process = ServerProcess([], {}, tmp_path / "server-0.log")
    for said in ("the port is taken", "the memory is full"):
        process._command = [sys.executable, "-c", f"print({said!r}); raise SystemExit(3)"]
        process.restart()
        process._process.wait(30)
    with pytest.raises(UserError) as caught:
        process.check()
    assert str(caught.value).splitlines()[1:] == ["the memory is full"]


def test_a_server_that_is_killed_has_ended_with_the_processes_below_it(tmp_path):
    process = ServerProcess([], {}, tmp_path / "logs" / "server-0.log")
    below = ["sh", "-c", "trap '' TERM; sleep 600 & echo $! > child; wait"]
    process._command = ["env", "-C", tmp_path, "PYTHONPATH=" + str(ROOT), sys.executable]
    process._command += ["-m", "grpo.host.tether", "600", "0", *below]
    process.start()
    deadline = time.monotonic() + 30
    while not (pid_file := tmp_path / "child").exists() or not pid_file.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    assert process.ended and not psutil.pid_exists(int(pid_file.read_text()))


def test_a_server_elsewhere_that_never_answers_is_not_waited_for_for_ever():
    replica = Replica(f"http://127.0.0.1:{free_port()}", "", 1.0)
    with pytest.raises(UserError, match="start it there with `grpo serve`, correct rollout.servers.urls"):
        asyncio.run(replica.wait(0.2))


@pytest.mark.parametrize(
    ("name", "state"),
    [("LFM2", True), ("Qwen3.5 (dense text)", True), ("Mamba 2", True), ("Gemma 3", False), ("GPT-2", False)],
)
def test_the_prefixes_of_a_model_with_a_state_are_not_kept_where_prefill_is_not_cut_up(name, state, tmp_path):
    config_of(name).save_pretrained(tmp_path)
    assert files_of(tmp_path).keeps_state == state
    for on_gpu in (False, True):
        own = {} if on_gpu else for_cpu(files_of(tmp_path))
        arguments = engine_arguments(SamplerSettings.of(TrainConfig()), str(tmp_path), on_gpu, own)
        assert arguments["enable_prefix_caching"] == (on_gpu or not state)


def on_gpu(monkeypatch, *capability):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def test_data_centre_blackwell_gets_attention_that_needs_no_compiler_unless_the_user_chose_one(tmp_path, monkeypatch):
    def chosen(capability, width=64, **engine_args):
        on_gpu(monkeypatch, *capability)
        LlamaConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, head_dim=width).save_pretrained(
            tmp_path
        )
        config = TrainConfig(rollout=RolloutConfig(engine_args=engine_args))
        special = for_device(files_of(tmp_path), torch.device("cuda"))
        return engine_arguments(SamplerSettings.of(config), str(tmp_path), True, special).get("attention_backend")

    assert chosen((10, 0)) == chosen((10, 3)) == "FLASH_ATTN"
    assert chosen((9, 0)) is chosen((12, 0)) is chosen((10, 0), width=512) is None
    assert chosen((10, 0), attention_backend="TRITON_ATTN") == "TRITON_ATTN"
    assert chosen((10, 0), attention_config={"backend": "FLASHINFER"}) is None


def test_latent_attention_is_computed_on_a_cpu_from_weights_as_they_lie(tmp_path, monkeypatch):
    """vLLM's own choice of backend on processors with AMX throws the original weights away."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    for model_type in ("deepseek_v2", "deepseek_v3"):
        AutoConfig.for_model(model_type, **sizes).save_pretrained(tmp_path)
        own = for_cpu(files_of(tmp_path))
        assert (
            engine_arguments(SamplerSettings.of(TrainConfig()), str(tmp_path), False, own)["attention_backend"]
            == "CPU_MLA"
        )
        assert own["compilation_config"] == {"custom_ops": ["-rotary_embedding"]}
        on_gpu(monkeypatch, 10, 0)
        assert for_device(files_of(tmp_path), torch.device("cuda")) == {}
    AutoConfig.for_model("deepseek_v3", kv_lora_rank=256, qk_rope_head_dim=32).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="keeps 288 numbers of a token .* takes 576 only: use rollout.engine=transfor"):
        for_cpu(files_of(tmp_path))


def test_a_variable_by_which_the_cpu_build_would_ignore_the_caches_size_is_refused(tmp_path, monkeypatch):
    config_of("GPT-2").save_pretrained(tmp_path)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    with pytest.raises(UserError, match=r"VLLM_CPU_KVCACHE_SPACE=4 would replace rollout.kv_cache_gib: unset it"):
        for_cpu(files_of(tmp_path))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "")
    assert for_cpu(files_of(tmp_path)) == {}


def test_a_server_gets_the_settings_of_an_engine_in_process():
    config = TrainConfig()
    config.rollout.precision, config.model.max_length = "float32", 64
    words = command_line(engine_arguments(SamplerSettings.of(config), "the/model", on_gpu=False))
    assert words[words.index("--model") + 1] == "the/model"
    assert words[words.index("--max-model-len") + 1] == "64"
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(2**30)
    assert {"--no-enable-chunked-prefill", "--enforce-eager", "--no-trust-remote-code"} <= set(words)
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"


# It notes that it has started, and gives its answers in order, the last one for ever.
SERVER = """
import http.server, sys, time
port, log, *answers = sys.argv[1:]
open(log, "a").write("x")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if answers[0] == "closed":
            # As vLLM: it listens no more, and waits for what its engine will never answer.
            self.server.socket.close()
            time.sleep(600)
        self.send_response(int(answers.pop(0) if len(answers) > 1 else answers[0]))
        self.end_headers()

    def log_message(self, *_):
        pass

http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "starts"), [(["200", "500"], 2), (["200", "closed"], 2), (["200", "500", "500", "200"], 1)]
)
def test_a_server_that_says_that_its_engine_has_died_is_started_again_long_before_one_that_is_silent(
    tmp_path, answers, starts
):
    port, log, stop = free_port(), tmp_path / "starts", threading.Event()
    process = ServerProcess([], {}, tmp_path / "server.log")
    server = [sys.executable, "-c", SERVER, str(port), str(log), *answers]
    process._command = [sys.executable, "-m", "grpo.host.tether", "5", "0", *server]
    replica = Replica(f"http://127.0.0.1:{port}", "", 1.0, process)
    process.start()
    keeping = threading.Thread(target=keep_alive, args=([replica], stop, 60.0))
    began = time.monotonic()
    keeping.start()
    try:
        # For as long as it takes, or eight looks.
        while time.monotonic() < began + (UNRESPONSIVE_SECONDS if starts > 1 else 8):
            if starts > 1 and log.exists() and len(log.read_text()) >= starts:
                break
            time.sleep(0.1)
        took = time.monotonic() - began
        assert log.read_text() == "x" * starts
        assert took < UNRESPONSIVE_SECONDS
    finally:
        stop.set()
        keeping.join(60)
        process.stop()


@pytest.fixture
def guarded(monkeypatch):
    """Returns a function that sends a request to a guarded application and returns the response."""
    monkeypatch.setenv("VLLM_API_KEY", "k3y")

    async def application(scope, receive, send):
        await send("reached")

    def ask(headers, path="/collective_rpc", kind="http"):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": kind, "path": path, "headers": headers}
        asyncio.run(KeyMiddleware(application)(scope, None, send))
        return sent

    return ask


@pytest.mark.parametrize("path", ["/collective_rpc", "/update_weights", "/inference/v1/generate", "/", "/health/x"])
def test_only_who_has_the_key_reaches_a_route(guarded, path):
    assert guarded([(b"authorization", b"Bearer k3y")], path) == ["reached"]
    for headers in ([], [(b"authorization", b"Bearer k3")], [(b"authorization", b"k3y")], [(b"x", b"Bearer k3y")]):
        assert guarded(headers, path)[0]["status"] == 401
    assert guarded([], path, "websocket") == [{"type": "websocket.close", "code": 1008}]


def test_whether_it_lives_may_be_asked_by_everybody_and_the_server_itself_may_start(guarded):
    assert guarded([], "/health") == guarded([], kind="lifespan") == ["reached"]


def test_without_a_key_there_is_no_server(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(KeyError, match="VLLM_API_KEY"):
        KeyMiddleware(None)


def test_a_server_that_wants_another_key_is_not_waited_for():
    async def never(payload, before):
        raise AssertionError

    with server(never, paused=401) as (url, _), pytest.raises(UserError, match="another key: set GRPO_SERVER_KEY"):
        asyncio.run(Replica(url, "k3y", 1.0).wait(30))
