"""These tests write files to a disk that is full, or that is pulled away in the middle."""

import errno

import pytest

from grpo.host.disk import replaced, write_whole
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


def test_what_is_interrupted_in_the_middle_leaves_the_old_file(tmp_path):
    file = tmp_path / "curves.png"
    file.write_bytes(b"whole")
    with pytest.raises(KeyboardInterrupt), replaced(file) as new:
        new.write_bytes(b"ha")
        raise KeyboardInterrupt
    assert file.read_bytes() == b"whole" and list(tmp_path.iterdir()) == [file]
