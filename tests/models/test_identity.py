"""Checksums of the base's files distinguish its adapters from those of another base."""

import hashlib
import os

import pytest

from grpo.config import ModelConfig, UserError
from grpo.models.upload import WeightsIdentity, check_base, weights_identity


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
    check_base(None, weights_identity(ModelConfig(path="c"), other), first)
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
