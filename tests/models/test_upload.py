"""These tests check what is sent to the hub, by a stand-in for its HTTP interface on this machine."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo.config import UserError
from grpo.models.upload import check_upload, upload

CARD = "---\nlibrary_name: transformers\n---\n# A model\n"
TOKEN = "hf_of_this_test"


class Hub:
    """This stands in for those parts of the hub that an upload uses. It keeps repositories and their commits' files."""

    def __init__(self):
        self.requests, self.private, self.files, self.commits, self.refused = [], {}, {}, [], {}
        self.objects, self.lock, self.token = {}, threading.Lock(), {"accessToken": {"role": "write"}}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                with hub.lock:
                    hub.requests.append((self.command, path, self.headers.get("Authorization")))
                    status, value = hub.answer(self.command, path, body)
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_HEAD = answer

            def log_message(self, *arguments):
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, method, path, body):
        if path in self.refused:
            return self.refused[path], {"error": "refused by the test"}
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": "me", "orgs": [{"name": "team"}], "auth": self.token}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name in self.private:
                return 409, {"error": "exists", "url": f"{self.address}/{name}"}
            # Versions of huggingface_hub say it differently.
            self.private[name] = asked.get("private", asked.get("visibility") == "private")
            return 200, {"url": f"{self.address}/{name}", "name": name}
        if path == "/api/validate-yaml":
            return 200, {"warnings": [], "errors": []}
        if path.endswith("/preupload/main"):
            kinds = {True: "lfs", False: "regular"}
            wanted = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": kinds[name.endswith(".safetensors")]} for name in wanted]
            return 200, {"files": [mode | {"shouldIgnore": False} for mode in modes]}
        if path.endswith(".git/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            actions = [{"upload": {"href": f"{self.address}/objects/{one['oid']}"}} for one in wanted]
            return 200, {
                "transfer": "basic",
                "objects": [one | {"actions": action} for one, action in zip(wanted, actions, strict=True)],
            }
        if method == "PUT" and path.startswith("/objects/"):
            self.objects[path.removeprefix("/objects/")] = body
            return 200, {}
        if "/commit/" in path:
            return self.commit(path, [json.loads(line) for line in body.splitlines()])
        return 404, {"error": f"the test knows no {path}"}

    def commit(self, path, lines):
        name, _, revision = path.removeprefix("/api/models/").partition("/commit/")
        values = {line["key"]: line["value"] for line in lines}
        self.commits.append((name, revision, values["header"]["summary"]))
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                self.files[value["path"]] = self.objects[value["oid"]]
        return 200, {"success": True, "commitOid": "a" * 40, "commitUrl": f"{self.address}/{name}/commit/{'a' * 40}"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    stand_in = Hub()
    for name, value in {"ENDPOINT": stand_in.address, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", f"{tmp_path}/no-token")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield stand_in
    stand_in.server.shutdown()
    stand_in.server.server_close()


@pytest.fixture
def folder(tmp_path):
    written = tmp_path / "model"
    written.mkdir()
    (written / "README.md").write_text(CARD)
    (written / "config.json").write_text('{"model_type": "llama"}')
    (written / "model.safetensors").write_bytes(bytes(range(256)) * 9)
    return written


@pytest.mark.parametrize("public", [False, True])
def test_a_folder_becomes_one_commit_of_all_its_files_private_unless_asked(hub, folder, public):
    check_upload("me/mine")
    assert hub.requests == [("GET", "/api/whoami-v2", f"Bearer {TOKEN}")]
    assert upload(folder, "me/mine", public) == f"{hub.address}/me/mine"
    assert hub.private == {"me/mine": not public}
    assert hub.commits == [("me/mine", "main", "A model trained by grpo")]
    assert hub.files == {file.name: file.read_bytes() for file in folder.iterdir()}
    assert hub.files["README.md"].decode() == CARD
    assert {key for _, path, key in hub.requests if path.startswith("/api/")} == {f"Bearer {TOKEN}"}


def test_a_model_that_is_there_gets_another_commit_and_stays_as_visible_as_it_was(hub, folder):
    upload(folder, "me/mine", public=True)
    (folder / "model.safetensors").write_bytes(b"other weights")
    upload(folder, "me/mine")
    assert hub.private == {"me/mine": False} and len(hub.commits) == 2
    assert hub.files["model.safetensors"] == b"other weights"


def test_nobody_logged_in_a_wrong_token_and_a_refusal_are_one_line(hub, folder, monkeypatch):
    hub.refused = {"/api/whoami-v2": 401}
    with pytest.raises(UserError, match=r"^upload=me/mine: the hub refuses it \(.*\): check the name, and the rights"):
        check_upload("me/mine")
    hub.refused = {"/api/repos/create": 403}
    with pytest.raises(UserError, match="^upload=them/theirs: the hub refuses it") as raised:
        upload(folder, "them/theirs")
    assert "\n" not in str(raised.value) and TOKEN not in str(raised.value) and not hub.commits
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="nobody is logged in on this machine: run `hf auth login`, or set HF_TOKEN"):
        check_upload("me/mine")


def test_a_name_of_somebody_else_and_a_token_that_only_reads_are_reported_before_any_work(hub):
    check_upload("team/ours")
    with pytest.raises(UserError, match="upload=them/theirs: the token on this machine may write to me or team only"):
        check_upload("them/theirs")
    hub.token = {"accessToken": {"role": "read"}}
    with pytest.raises(UserError, match="upload=me/mine: the token on this machine may only read"):
        check_upload("me/mine")


def test_a_hub_that_is_not_there_is_one_line(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"upload=me/mine: the hub is not reachable \(.*\): leave out upload="):
        check_upload("me/mine")
