"""This program is the receiving end of a weight channel, and prints checksums of what it has received.

    python -m grpo.prove.far_end DEVICE TOLD

TOLD is a JSON list of two objects: where the ends meet (`Meeting`), and what a bucket holds (`Manifest`). The sending
end is `grpo.prove.link`.
"""

import json
import sys

from grpo.host import environment

if __name__ == "__main__":
    environment.prepare()

import torch

from grpo.weight_sync.channel import Manifest, Meeting, open_end
from grpo.weight_sync.checksum import checksums

SECONDS = 60.0
# How many times the bucket is sent.
TIMES = 6


def receive(device: torch.device, meeting: Meeting, manifest: Manifest) -> None:
    """Receives the bucket `TIMES` times, then prints one line of checksums for each time."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    end = open_end(meeting.join(SECONDS), meeting.host, 1, meeting.world_size, device, SECONDS)
    # Checksums are computed after all buckets have come, so that the sender never waits for them.
    for bucket in [end.receive(manifest) for _ in range(TIMES)]:
        print(json.dumps(checksums(bucket)))
    end.close()


if __name__ == "__main__":
    place, names = json.loads(sys.argv[2])
    receive(torch.device(sys.argv[1]), Meeting(**place), Manifest(**names))
