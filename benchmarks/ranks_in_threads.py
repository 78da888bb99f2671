"""This module has collectives without torch.distributed: of one rank, and of several ranks in threads."""

import threading
from concurrent.futures import ThreadPoolExecutor


class SingleRank:
    """This is a collective of one rank."""

    rank, world_size = 0, 1

    def sum(self, values):
        return [float(value) for value in values]

    def maximum(self, value):
        return value

    def gather(self, value):
        return [value]

    def pool(self, values):
        return list(values), slice(0, len(values))

    def barrier(self):
        """Does nothing, since one rank waits for nobody."""


class Rank(SingleRank):
    """This is the collective of one of several ranks, each in a thread of its own (see `on_ranks`)."""

    def __init__(self, rank, values, meeting):
        self.rank, self.world_size = rank, len(values)
        self._values, self._meeting = values, meeting

    def gather(self, value):
        self._values[self.rank] = value
        self._meeting.wait(60)
        gathered = list(self._values)
        self._meeting.wait(60)
        return gathered

    def sum(self, values):
        return [float(sum(column)) for column in zip(*self.gather(list(values)), strict=True)]

    def maximum(self, value):
        return max(self.gather(value))

    def barrier(self):
        self.gather(None)


def on_ranks(count, action):
    """Returns what `action(collective)` returned or raised on each of `count` ranks."""
    values, meeting = [None] * count, threading.Barrier(count)

    def run(rank):
        try:
            return action(Rank(rank, values, meeting))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
