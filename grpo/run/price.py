"""This module prices a run before it starts: tokens to sample and to learn from, and the time and money they take."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.config import TrainConfig
from grpo.config.memory_estimate import step_tokens
from grpo.types import MachineConstants


@dataclass(frozen=True, slots=True)
class Price:
    """A price holds the tokens and seconds of one round, and the number of rounds.

    sampled, learned  completion tokens that are sampled, and packed tokens that are learned from, at most
    seconds           seconds of a round: (sampling, learning, refresh with all else); () if the machine is unknown
    overlapped        whether sampling and learning run at the same time
    devices           devices that the run holds
    """

    rounds: int
    sampled: int
    learned: int
    seconds: tuple[float, ...]
    overlapped: bool
    devices: int

    @property
    def round_seconds(self) -> float:
        """Returns the seconds of a whole round.

        >>> Price(3, 100, 100, (4.0, 3.0, 0.5), False, 1).round_seconds
        7.5
        >>> Price(3, 100, 100, (4.0, 3.0, 0.5), True, 1).round_seconds
        4.5
        """
        sampling, learning, other = self.seconds
        return (max(sampling, learning) if self.overlapped else sampling + learning) + other

    @property
    def device_hours(self) -> float:
        return self.rounds * self.round_seconds * self.devices / 3600


def price(config: TrainConfig, parameters: int, world_size: int, machine: MachineConstants | None) -> Price:
    """Prices a run of `world_size` learner ranks. Prompts and completions are counted at their maximum lengths.

    Seconds are extrapolated from what `grpo prove` has measured on one device: in proportion to the model's parameters,
    except for the round's overhead, and with the work shared evenly among devices.
    """
    dynamics, servers = config.dynamics, config.rollout.servers
    steps = dynamics.refresh_interval // dynamics.passes  # of one pass over a round's samples
    completions = dynamics.prompts_per_step * dynamics.group_size * steps
    sampled = completions * config.rollout.sampling.max_tokens
    learned = step_tokens(config, dynamics.prompts_per_step) * dynamics.refresh_interval
    apart = config.rollout.engine == "vllm_server"
    machines = max(1, config.hardware.server_nodes)
    samplers = machines * servers.replicas * servers.tensor_parallel if apart else world_size
    seconds: tuple[float, ...] = ()
    if machine:
        larger = parameters / machine.parameters
        at_once = min(completions / samplers, config.rollout.max_concurrent)
        seconds = (
            larger * sampled / samplers / machine.sampling_speed(at_once),
            larger * learned / world_size / machine.learning_tokens_per_second,
            larger * machine.refresh_seconds + machine.round_overhead_seconds,
        )
    return Price(
        rounds=-(-config.num_steps // dynamics.refresh_interval),
        sampled=sampled,
        learned=learned,
        seconds=seconds,
        overlapped=config.pipeline != "off",
        devices=world_size + (samplers if apart else 0),
    )


def price_rows(priced: Price, per_hour: float) -> list[tuple[str, str, str]]:
    """Returns table rows (what, in a round, in all rounds). `per_hour` is a device's hourly price, 0 if not known."""
    rows = [
        ("completion tokens to sample, at most", f"{priced.sampled:,}", f"{priced.sampled * priced.rounds:,}"),
        ("packed tokens to learn from, at most", f"{priced.learned:,}", f"{priced.learned * priced.rounds:,}"),
    ]
    if not priced.seconds:
        return rows
    names = ("seconds of sampling", "seconds of learning", "seconds of refresh and all else")
    rows += [
        (name, f"{seconds:,.1f}", f"{seconds * priced.rounds:,.0f}")
        for name, seconds in zip(names, priced.seconds, strict=True)
    ]
    seconds_of_round, hours = priced.round_seconds, priced.rounds * priced.round_seconds / 3600
    together = " (sampling and learning at the same time)" if priced.overlapped else ""
    rows.append((f"seconds of a round, hours in all{together}", f"{seconds_of_round:,.1f}", f"{hours:,.2f}"))
    rows.append((f"device hours, on {priced.devices}", "", f"{priced.device_hours:,.2f}"))
    if per_hour:
        cost = f"{priced.device_hours * per_hour:,.2f}"
        rows.append((f"device hours × hardware.price_per_hour={per_hour:g}", "", cost))
    return rows
