import errno
import logging
import multiprocessing
import os
from pathlib import Path

import pytest

from grpo.config import UserError
from grpo.models import cache
from grpo.models.cache import build_once, cache_root


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    forget_hashes()
    return tmp_path / "cache"


def forget_hashes():
    """Forgets all hashes, as a new process would start."""
    cache._hashed.clear()


def write_greeting(directory: Path):
    (directory / "part").mkdir()
    (directory / "part" / "greeting.txt").write_text("hello")


def test_root_is_the_first_one_set_of_own_variable_xdg_and_home(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("GRPO_CACHE", "/own")
    assert cache_root() == Path("/own")
    monkeypatch.delenv("GRPO_CACHE")
    assert cache_root() == Path("/xdg/grpo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path("/home/ann/.cache/grpo")


def test_a_user_without_a_home_is_one_line(monkeypatch):
    for name in ("GRPO_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    with pytest.raises(UserError, match="this user has no home folder: set HOME, or GRPO_CACHE to a folder"):
        cache_root()


def test_an_entry_is_built_once_and_then_used(own_cache):
    built = []

    def build(directory):
        built.append(directory)
        write_greeting(directory)

    assert build_once("entry", build) == own_cache / "entry"
    forget_hashes()
    assert build_once("entry", build) == own_cache / "entry"
    assert (own_cache / "entry/part/greeting.txt").read_text() == "hello"
    assert len(built) == 1


def test_the_entry_is_not_there_before_it_is_complete(own_cache):
    seen = []

    def build(directory):
        write_greeting(directory)
        seen.append((own_cache / "entry").exists())

    build_once("entry", build)
    assert seen == [False]


def test_a_failed_build_leaves_nothing_and_the_next_one_succeeds(own_cache):
    def fail(directory):
        write_greeting(directory)
        raise RuntimeError("no power")

    with pytest.raises(RuntimeError, match="no power"):
        build_once("entry", fail)
    assert [path.name for path in own_cache.iterdir() if path.is_dir()] == []
    build_once("entry", write_greeting)
    assert (own_cache / "entry/part/greeting.txt").read_text() == "hello"


def test_a_disk_that_is_full_while_an_entry_is_built_is_one_line(own_cache):
    def build(directory):
        raise OSError(errno.ENOSPC, "No space left on device")

    refusal = r"cannot write to the cache .*\(No space left on device\): set GRPO_CACHE to a writable directory"
    with pytest.raises(UserError, match=refusal):
        build_once("entry", build)


def test_the_rest_of_a_killed_build_is_not_taken_over(own_cache):
    (own_cache / "entry.building").mkdir(parents=True)
    (own_cache / "entry.building/half.txt").write_text("half")
    build_once("entry", write_greeting)
    assert sorted(path.name for path in (own_cache / "entry").iterdir()) == ["manifest.json", "part"]
    assert not (own_cache / "entry.building").exists()


@pytest.mark.parametrize(
    ("damage", "described"),
    [
        (lambda entry: (entry / "part/greeting.txt").unlink(), "part/greeting.txt is missing"),
        (lambda entry: (entry / "part/greeting.txt").write_text("hell"), "has 4 bytes instead of 5"),
        (lambda entry: (entry / "part/greeting.txt").write_text("jello"), "has another SHA-256"),
        (lambda entry: (entry / "manifest.json").unlink(), "no readable manifest.json"),
        (lambda entry: (entry / "manifest.json").write_text("{"), "no readable manifest.json"),
        (lambda entry: (entry / "manifest.json").write_text('{"part/greeting.txt": 5}'), "no readable manifest.json"),
        (lambda entry: (entry / "manifest.json").write_text("[]"), "no readable manifest.json"),
    ],
)
def test_a_damaged_entry_is_built_again_with_one_log_line(own_cache, caplog, damage, described):
    entry = build_once("entry", write_greeting)
    damage(entry)
    forget_hashes()
    with caplog.at_level(logging.WARNING):
        build_once("entry", write_greeting)
    assert (entry / "part/greeting.txt").read_text() == "hello"
    assert len(caplog.messages) == 1
    assert described in caplog.messages[0]


def test_a_changed_size_is_noticed_within_the_process_that_built(own_cache):
    entry = build_once("entry", write_greeting)
    (entry / "part/greeting.txt").write_text("")
    build_once("entry", write_greeting)
    assert (entry / "part/greeting.txt").read_text() == "hello"


def write_with_witness(directory: Path):
    with (cache_root() / "witnesses").open("a") as file:
        file.write("built\n")
    write_greeting(directory)


def build_when_all_are_here(barrier):
    barrier.wait()
    build_once("entry", write_with_witness)


def test_processes_that_start_together_build_one_entry_once(own_cache):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    processes = [context.Process(target=build_when_all_are_here, args=(barrier,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (own_cache / "witnesses").read_text() == "built\n"


def test_a_root_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "file"))
    refusal = "cannot write to the cache .*: set GRPO_CACHE to a writable directory"
    with pytest.raises(UserError, match=refusal) as caught:
        build_once("entry", write_greeting)
    assert "\n" not in str(caught.value)


def test_an_entry_that_is_whole_is_used_by_those_to_whom_the_lock_is_not_given(own_cache, monkeypatch):
    from filelock import FileLock

    def write_for_the_owner(directory):
        os.close(os.open(directory / "weights", os.O_CREAT, 0o600))

    entry = build_once("entry", write_for_the_owner)
    assert (entry / "weights").stat().st_mode == (entry / "manifest.json").stat().st_mode
    forget_hashes()
    monkeypatch.setattr(cache, "DEADLINE_SECONDS", 0.01)
    with FileLock(own_cache / "entry.lock", is_singleton=False):
        assert build_once("entry", write_greeting) == entry


def test_waiting_for_another_process_has_an_end(own_cache, monkeypatch):
    from filelock import FileLock

    own_cache.mkdir()
    monkeypatch.setattr(cache, "DEADLINE_SECONDS", 0.01)
    lock = FileLock(own_cache / "entry.lock", is_singleton=False)
    with lock, pytest.raises(UserError, match="another process has held the lock .*entry.lock"):
        build_once("entry", write_greeting)
