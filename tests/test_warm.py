"""Programs that the tests fork say how they ended, also where torchrun or a crash would hide it."""

import pytest

from tests import warm

CRASHED = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_rank_that_crashes_says_where_and_the_others_that_they_were_ended(tmp_path):
    program = tmp_path / "crashes.py"
    program.write_text(CRASHED)
    done = warm.ranks(2, [program], ("json",), timeout=60)
    assert done.returncode == 1
    assert "Fatal Python error: Segmentation fault" in done.stderr and 'crashes.py", line 4 in' in done.stderr
    assert "rank 1, process" in done.stderr and "ended by SIGSEGV at" in done.stderr
    assert "ended by SIGTERM after it was sent SIGTERM" in done.stderr
