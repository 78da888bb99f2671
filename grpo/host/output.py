"""This module keeps a run going when its output cannot be written: nobody reads it any more, or a disk is full."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

OUTPUTS = ("stdout", "stderr")


class _Lasting(io.FileIO):
    """This file drops what it cannot write. `unread` tells whether its reader, such as `tee`, has left, and `lost`
    counts the bytes that a full disk did not take since it last took any."""

    unread = False
    lost = 0

    def write(self, text: Any) -> int | None:
        try:
            if self.lost:
                super().write(b"\ngrpo: %d bytes of output are missing here, since the disk was full\n" % self.lost)
                self.lost = 0
            return super().write(text)
        except BrokenPipeError:
            self.unread = True
        except OSError:
            # A full disk may have space again at the next line.
            self.lost += len(text)
        return len(text)


def open_closed() -> None:
    """Opens the null device in place of each standard stream that is closed.

    Otherwise the next file that is opened would get the stream's number, and whatever is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in enumerate(OUTPUTS, start=1):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


@contextmanager
def outlasting() -> Iterator[None]:
    """Keeps a failing print from ending the run within the context, since the run has still to save.

    After Ctrl-C in `grpo train | tee log`, for example, `tee` ends at once and the run after its round. Streams that a
    notebook or a test has put in place are left alone.
    """
    before = {name: stream for name in OUTPUTS if _is_own(stream := getattr(sys, name), name)}
    for name, stream in before.items():
        with suppress(OSError):
            stream.flush()
        file = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
        # PYTHONUNBUFFERED makes a stream write through.
        at_once = stream.line_buffering or stream.write_through
        setattr(sys, name, io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=at_once))
    try:
        yield
    finally:
        for name, stream in before.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)


def unread() -> bool:
    """Tells whether whoever read stdout has left since the context of `outlasting` began."""
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(file, _Lasting) and file.unread


def _is_own(stream: Any, name: str) -> bool:
    plain = isinstance(getattr(stream, "buffer", None), io.BufferedWriter | io.FileIO)
    return plain and stream is getattr(sys, f"__{name}__")
