"""This program is the other end of a weight channel, and prints what it has received.

    python -m grpo.prove.far_end DEVICE TOLD

TOLD is the JSON of where the ends meet and of what a bucket holds. See `grpo.prove.link`.
"""

from __future__ import annotations

import json
import sys

from grpo.host import environment

if __name__ == "__main__":
    environment.prepare()

import torch

from grpo.weight_sync.channel import Manifest, open_end
from grpo.weight_sync.checksum import checksums
from grpo.weight_sync.meeting import Meeting

SECONDS = 60.0
# The bucket is sent so often.
TIMES = 6


def receive(device: torch.device, meeting: Meeting, manifest: Manifest) -> None:
    """Receives all buckets, then prints the checksums of each."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    end = open_end(meeting.join(SECONDS), meeting.host, 1, meeting.world_size, device, SECONDS)
    # Summed up afterwards, so that the sender never waits for it.
    for bucket in [end.receive(manifest) for _ in range(TIMES)]:
        print(json.dumps(checksums(bucket)))
    end.close()


if __name__ == "__main__":
    place, names = json.loads(sys.argv[2])
    receive(torch.device(sys.argv[1]), Meeting(**place), Manifest(**names))
