"""These tests check what becomes of a process whose standard streams are closed, full, or read by nobody."""

import subprocess
import sys

import pytest

from grpo.host.output import outlasting

PRINTING = """
import os, sys
from grpo.host.output import outlasting, unread
from grpo.host.terminal import Terminal, say
{before}
with outlasting():
    before = unread()
    print("a" * 100_000)
    Terminal().print("a line")
    say("a message")
    print("more", flush=True)
    after = unread()
print("printed as before", file=sys.stderr)
os.write({report}, f"{{before}} {{after}}".encode())
"""
ON_BROKEN = "reader, writer = os.pipe(); os.close(reader); kept = os.dup(1); os.dup2(writer, 1)"
ON_FULL = "full = os.open('/dev/full', os.O_WRONLY); kept = os.dup(1); os.dup2(full, 1)"


@pytest.mark.parametrize(
    ("before", "report", "unread"), [(ON_BROKEN, "kept", "True"), (ON_FULL, "kept", "False"), ("", "1", "False")]
)
@pytest.mark.parametrize("options", [[], ["-u"]])
def test_a_run_goes_on_when_its_output_cannot_be_written(options, before, report, unread):
    code = PRINTING.format(before=before, report=report)
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)
    printed = "" if before else "a" * 100_000 + "\na line\nmore\n"
    assert (done.returncode, done.stdout) == (0, f"{printed}False {unread}")
    assert done.stderr == "a message\nprinted as before\n"


def test_output_that_a_full_disk_did_not_take_is_reported_once_there_is_space(tmp_path):
    code = (
        "import resource, signal\nfrom grpo.host.output import outlasting\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nwhole = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "with outlasting():\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (10, whole[1]))\n    print('x' * 20, flush=True)\n"
        "    print('lost', flush=True)\n    resource.setrlimit(resource.RLIMIT_FSIZE, whole)\n    print('again')\n"
    )
    with (tmp_path / "log").open("w") as log:
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=log)
    assert (tmp_path / "log").read_text() == (
        "xxxxxxxxxx\ngrpo: 16 bytes of output are missing here, since the disk was full\nagain\n"
    )


def test_streams_that_someone_has_put_in_place_are_left_alone(capsys):
    with outlasting():
        print("a cell of a notebook")
    assert capsys.readouterr().out == "a cell of a notebook\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_ends_well_whose_standard_streams_are_closed(closed):
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m grpo.cli config learner.zero_stage {closed}', sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
    )
    # On a busy machine a line says after some seconds what the command waits for.
    waits = "grpo: loading what grpo config needs …\n"
    assert (done.returncode, done.stderr.replace(waits, "")) == (0, "")


def test_a_file_gets_no_closed_streams_number(tmp_path):
    code = (
        f"import os\nfrom grpo.host.output import open_closed\nopen_closed()\nfile = open({str(tmp_path / 'x')!r}, 'w')"
    )
    code += "\nprint('not into the file', flush=True)\nos.write(2, b'nor this')\nassert file.fileno() > 2"
    subprocess.run(["bash", "-c", '"$0" -c "$1" >&- 2>&-', sys.executable, code], check=True, timeout=60)
    assert (tmp_path / "x").read_text() == ""
