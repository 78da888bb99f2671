"""This module makes a group of NCCL that survives the loss of a member: the others get an error within a deadline.

Torch's groups differ in three ways (torch 2.13, ProcessGroupNCCL.hpp). Their watchdog ends a process that waits too
long for another. Even if told not to, it has the process's first group report what it saw, and that group then ends the
process; so there is no watchdog here. Their communicator is made by the first collective, however long that takes; here
it is made at once, within a deadline. Their orderly shutdown waits for lost members, so `Channel.close` aborts instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock, Thread
from typing import Any

import torch
import torch.distributed as dist

# torch reads this variable when it makes a group. With 1 the group has no watchdog, and the thread that waits for a
# collective looks out for errors and the deadline itself.
NO_WATCHDOG = "TORCH_NCCL_BLOCKING_WAIT"
_one_at_a_time = Lock()


def nccl_group(
    store: dist.Store, rank: int, world_size: int, device: torch.device, timeout: timedelta
) -> dist.ProcessGroupNCCL:
    """Returns a connected group, once all `world_size` members have come to `store`.

    Raises RuntimeError when they have not within `timeout`, or when one is lost before all are connected.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    with _variable(NO_WATCHDOG, "1"):
        group = dist.ProcessGroupNCCL(store, rank, world_size, options)
    store.set(f"member {rank}", "here")
    store.wait([f"member {rank}" for rank in range(world_size)], timeout)
    within(timeout, lambda: group.eager_connect_single_device(device))
    return group


def within(timeout: timedelta, action: Callable[[], Any]) -> None:
    """Runs `action`, which cannot be interrupted, in a thread and waits for it. Raises RuntimeError after `timeout`,
    and leaves the thread running."""
    outcome: Future[Any] = Future()

    def act() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:
            outcome.set_exception(error)

    # The thread is a daemon, so that the process does not wait for it when it ends.
    Thread(target=act, daemon=True).start()
    try:
        outcome.result(timeout.total_seconds())
    except TimeoutError:
        raise RuntimeError(
            f"the ends of a weight channel were not connected within {timeout.total_seconds():g} s"
        ) from None


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable for a moment, in one thread at a time."""
    with _one_at_a_time:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
