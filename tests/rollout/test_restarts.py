"""These tests check how `grpo serve` keeps servers: one that lost its engine restarts at once, a passing error is
ignored."""

import sys
import threading
import time

import pytest

from grpo.host.network import free_port
from grpo.rollout.replica import UNRESPONSIVE_SECONDS, Replica, ServerProcess, keep_alive

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
