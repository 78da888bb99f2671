"""This module makes a disk look full to the files that this process writes."""

import resource
import signal
from contextlib import contextmanager


@contextmanager
def files_up_to(num_bytes):
    """Lets no file of this process become larger, as a disk without room would not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
