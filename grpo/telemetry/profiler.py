"""Chosen rounds are recorded with torch's profiler, as traces that Perfetto and chrome://tracing show."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.config.folder import trace_name
from grpo.host.disk import in_words
from grpo.interfaces import Clock

if TYPE_CHECKING:
    from torch.profiler import profile


class ProfiledRounds:
    """Implements `interfaces.Clock` on top of another clock, and records a trace of each chosen round.

    A trace holds every operation on the CPU, and every kernel where there is a GPU, that this process computes between
    `begin_round` and `end_round`, those of a vLLM engine in this process included. The round's time excludes the
    writing of its trace.
    """

    def __init__(
        self,
        clock: Clock,
        rounds: Sequence[int],
        folder: Path,
        rank: int,
        first_round: int,
        tell: Callable[[str], None],
    ):
        """Takes the `clock` that goes on measuring, the chosen rounds, the folder of the traces, this process's rank,
        the round that begins first, and `tell`, which gets a line about every trace."""
        self._clock, self._rounds, self._folder, self._rank = clock, frozenset(rounds), folder, rank
        self._round, self._tell = first_round, tell
        self._profile: profile | None = None

    def begin_round(self) -> None:
        if self._round in self._rounds:
            # Commands that only read a log load this module too, and torch takes seconds.
            import torch
            from torch.profiler import ProfilerActivity, profile

            # Its library tells of each start and stop between the lines of the run.
            os.environ.setdefault("KINETO_LOG_LEVEL", "9")
            activities = [ProfilerActivity.CPU]
            activities += [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profile = profile(activities=activities)
            self._profile.start()
        self._clock.begin_round()

    def end_round(self) -> Mapping[str, float]:
        seconds = self._clock.end_round()
        if self._profile:
            self._profile.stop()
            self._write(self._profile)
            self._profile = None
        self._round += 1
        return seconds

    def _write(self, recorded: profile) -> None:
        """Writes a trace. If that fails, e.g. on a full disk, `tell` gets the reason and the run goes on."""
        trace = self._folder / trace_name(self._round, self._rank)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(trace))
            self._tell(f"round {self._round} is profiled in {trace} ({in_words(trace.stat().st_size)})")
        except (OSError, RuntimeError) as error:
            self._tell(f"round {self._round} was profiled, but {trace} could not be written: {error}")
