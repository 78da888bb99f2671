"""These tests check what is sent to the hub, by a stand-in for its HTTP interface, and whose adapters those are."""

import base64
import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo.config import ModelConfig, UserError
from grpo.models.upload import WeightsIdentity, check_base, check_upload, upload, weights_identity

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


def model_of(folder, content):
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text("{}")
    return folder


def test_the_same_weights_are_the_same_base_wherever_they_are(tmp_path):
    first, copy, other = (model_of(tmp_path / name, text) for name, text in (("a", b"x"), ("b", b"x"), ("c", b"y")))
    saved = weights_identity(ModelConfig(path="a", revision="v1"), first)
    assert saved == WeightsIdentity("a", "v1", {"model.safetensors": hashlib.sha256(b"x").hexdigest()})
    check_base(saved, weights_identity(ModelConfig(path="b"), copy), first)
    with pytest.raises(UserError, match=r"on a at v1, but c now holds other .* set model and model.revision=v1 as"):
        check_base(saved, weights_identity(ModelConfig(path="c"), other), first)


def test_a_file_of_the_hubs_cache_is_known_by_its_name_there(tmp_path):
    (tmp_path / "blobs").mkdir()
    blob = tmp_path / "blobs" / ("a" * 64)
    blob.write_bytes(b"not read")
    snapshot = tmp_path / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(blob)
    identity = weights_identity(ModelConfig(path="some/model"), snapshot)
    assert identity == WeightsIdentity("some/model", "0123abc", {"model.safetensors": "a" * 64})


def test_weights_that_were_replaced_are_another_base_in_the_same_process_too(tmp_path):
    folder = model_of(tmp_path / "a", b"x")
    saved = weights_identity(ModelConfig(path="a"), folder)
    (folder / "model.safetensors").write_bytes(b"y")
    os.utime(folder / "model.safetensors", (1, 1))
    with pytest.raises(UserError, match="but a now holds other weights"):
        check_base(saved, weights_identity(ModelConfig(path="a"), folder), folder)
