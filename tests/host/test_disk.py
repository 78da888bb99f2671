"""These tests write files to a disk that is full, or that is pulled away in the middle, and into a folder that a
stranger has filled with links."""

import errno
import os
import subprocess
import sys

import pytest

from grpo.config import UserError
from grpo.host.disk import open_own, remove, replaced, write_whole
from tests.full_disk import files_up_to


def test_a_file_that_cannot_be_written_to_its_end_leaves_the_old_one(tmp_path):
    file = tmp_path / "config.json"
    write_whole(file, "old")
    with pytest.raises(OSError) as raised, files_up_to(4096):
        write_whole(file, "new " * 4096)
    assert raised.value.errno == errno.EFBIG
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]
    write_whole(file, "\ud800 new", "backslashreplace")
    assert file.read_text() == "\\ud800 new"


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "curves.png"
    file.write_bytes(b"whole")
    with pytest.raises(KeyboardInterrupt), replaced(file) as new:
        new.write_bytes(b"ha")
        raise KeyboardInterrupt
    assert file.read_bytes() == b"whole" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["report.md", ".new-report.md"])
def test_a_file_is_replaced_and_what_a_link_leads_to_stays(tmp_path, name):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("mine")
    (folder / name).symlink_to(victim)
    write_whole(folder / "report.md", "the report")
    assert victim.read_text() == "mine"
    [file] = folder.iterdir()
    assert file.read_text() == "the report" and not file.is_symlink()


def test_a_file_that_a_kill_left_half_is_written_anew_with_the_rights_of_a_usual_file(tmp_path):
    (tmp_path / ".new-report.md").write_text("half of a long report")
    (tmp_path / "usual").write_text("")
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "report.md", "whole")
        (tmp_path / "usual").unlink()
        (tmp_path / "usual").write_text("")
    finally:
        os.umask(before)
    assert (tmp_path / "report.md").read_text() == "whole"
    assert (tmp_path / "report.md").stat().st_mode & 0o777 == (tmp_path / "usual").stat().st_mode & 0o777 == 0o640
    assert not (tmp_path / ".new-report.md").exists()


@pytest.mark.parametrize("mode", ["w", "a", "a+", "ab"])
def test_no_file_behind_a_link_is_opened_to_be_written(tmp_path, mode):
    victim, log = tmp_path / "victim", tmp_path / "log.txt"
    victim.write_text("mine")
    log.symlink_to(victim)
    with pytest.raises(
        UserError, match=r"log.txt is a link, and nothing is written through links: put the file itself"
    ):
        open_own(log, mode)
    assert victim.read_text() == "mine"
    # A folder may be reached through a link.
    (tmp_path / "through").symlink_to(tmp_path, target_is_directory=True)
    with open_own(tmp_path / "through" / "new.txt", mode):
        assert (tmp_path / "new.txt").exists()


def test_removing_a_link_leaves_the_folder_that_it_leads_to(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (tmp_path / "link", folder / "link"):
        path.symlink_to(kept, target_is_directory=True)
    for path in (tmp_path / "link", folder, tmp_path / "nothing"):
        remove(path)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_a_limit_of_the_size_of_files_is_said_beside_the_free_space(tmp_path):
    program = (
        "import resource, sys, pathlib; from grpo.host.disk import room; folder = pathlib.Path(sys.argv[1]); "
        "print(room(folder)); resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999)); print(room(folder))"
    )
    said = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True).stdout
    unlimited, limited = said.splitlines()
    assert unlimited.endswith("GiB are free") and "ulimit" not in unlimited
    assert limited.startswith("a file may have at most 9,999 bytes here (ulimit -f) and ")
