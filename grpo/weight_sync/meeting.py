"""This module lets the ends of a weight channel find each other at a meeting place.

The learner sends the meeting place to a server in a request that needs the run's key. torch's TCPStore takes no key:
whoever reaches its port can read and write. So on one machine the ends meet in a file that only this user can open.
Between machines they meet at a port, under a secret name; a firewall has to keep others away from the port.
"""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address

import torch.distributed as dist

from grpo.host.network import listen


@dataclass(frozen=True, slots=True)
class Meeting:
    """A meeting is the address that a server is sent: the learner's interface as `host`, and there either a file's
    `path`, or `port` and `name`."""

    host: str
    world_size: int
    path: str = ""
    port: int = 0
    name: str = "weights"

    def join(self, seconds: float) -> dist.Store:
        """Returns the store through which the ends meet. An end waits in it for `seconds` at most."""
        timeout = timedelta(seconds=seconds)
        if self.path:
            store = dist.FileStore(self.path, self.world_size)
            store.set_timeout(timeout)
        else:
            store = dist.TCPStore(self.host, self.port, self.world_size, False, timeout, wait_for_workers=False)
        return dist.PrefixStore(self.name, store)


class Host:
    """The host is the learner's side of a meeting. `meeting` is the address to send to a server, and `store` the
    learner's own end. Call `close` once all ends have met, or with NCCL once their channel is closed."""

    def __init__(self, host: str, world_size: int, seconds: float):
        self._folder = None
        if ip_address(host).is_loopback:
            self._folder = tempfile.TemporaryDirectory(prefix="grpo-")
            self.meeting = Meeting(host, world_size, path=f"{self._folder.name}/ends")
            self.store = self.meeting.join(seconds)
            return
        listening = listen(host)
        self.meeting = Meeting(host, world_size, port=listening.getsockname()[1], name=secrets.token_urlsafe())
        timeout = timedelta(seconds=seconds)
        port, descriptor = self.meeting.port, listening.detach()
        server = dist.TCPStore(
            host, port, world_size, True, timeout, wait_for_workers=False, master_listen_fd=descriptor
        )
        self.store = dist.PrefixStore(self.meeting.name, server)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
