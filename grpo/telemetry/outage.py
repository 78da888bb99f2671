"""This module keeps a run going while a tracking service does not answer or refuses what it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grpo.host.terminal import say
from grpo.interfaces import Tracker


class Outlasting:
    """This tracker passes everything on to a service's tracker. A call that fails ends no run.

    The first failure prints a line. Later calls try again, since a service may come back. The run's own files hold
    whatever the service has missed.
    """

    def __init__(self, tracker: Tracker, service: str) -> None:
        """`service` is the name of the service in the line."""
        self._tracker, self._service = tracker, service
        self._told = False

    def log(self, values: Mapping[str, Any], step: int) -> None:
        self._try(f"step {step}", self._tracker.log, values, step)

    def evaluation(self, result: Mapping[str, Any], step: int) -> None:
        self._try(f"step {step}", self._tracker.evaluation, result, step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        self._try(f"step {step}", self._tracker.samples, rows, step)

    def close(self, failed: bool = False) -> None:
        self._try("the end", self._tracker.close, failed)

    def _try(self, when: str, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        # Each service has errors of its own, and those of the network and the disk come on top.
        except Exception as error:
            if not self._told:
                self._told = True
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                say(
                    f"grpo: {self._service} failed at {when} ({reason}): the run goes on and tries it again; the run's "
                    "own files hold all numbers"
                )
