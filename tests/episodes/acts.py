"""These are the episodes that tests name in `task.episode`."""

import asyncio
import os
import time


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def wait(seconds: float) -> str:
    """Waits.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "done"


def undescribed(a):
    return a


class Counter:
    """The environment counts, and its reward is what it has counted."""

    def reset(self, start: int = 0, **row) -> str:
        self.value = start
        return f" It stands at {self.value}."

    def count(self, step: int) -> str:
        """Counts on.

        Args:
            step: How far.
        """
        self.value += step
        return f"It stands at {self.value}."

    @property
    def reward(self) -> float:
        return float(self.value)


class NoEnvironment:
    """This class has no method reset."""


async def three_turns(chat, problem):
    """Asks three times, and returns how many turns it got."""
    messages = [dict(message) for message in problem.messages]
    for number in range(3):
        messages.append(await chat(messages))
        messages.append({"role": "user", "content": f"Go on ({number})."})
    return {"reward": 3.0, "questions": 3.0}


async def rewrites(chat, problem):
    """Answers twice, and then begins anew with a summary of its own."""
    messages = [dict(message) for message in problem.messages]
    messages.append(await chat(messages))
    messages.append({"role": "user", "content": "More."})
    messages.append(await chat(messages))
    shorter = [*messages[:1], {"role": "assistant", "content": "short"}, {"role": "user", "content": "And?"}]
    shorter.append(await chat(shorter))
    await chat([*messages, {"role": "user", "content": "Last."}])
    return 1.0


async def beside(chat, problem):
    """Asks two questions beside each other."""
    first, second = ([{"role": "user", "content": text}] for text in ("one", "two"))
    await asyncio.gather(chat(first), chat(second))
    return 1.0


async def twice(chat, problem):
    """Asks the same question twice at once."""
    await asyncio.gather(*(chat(list(problem.messages)) for _ in range(2)))
    return 1.0


async def leaves(chat, problem):
    """Ends while the model still writes."""
    asked = asyncio.create_task(chat(list(problem.messages)))
    await asyncio.sleep(0.01)
    return float(asked.done())


async def raises(chat, problem):
    await chat(list(problem.messages))
    raise KeyError("gone")


async def hangs(chat, problem):
    await chat(list(problem.messages))
    while True:
        time.sleep(1)


async def ends(chat, problem):
    await chat(list(problem.messages))
    os._exit(3)


async def silent(chat, problem):
    return 1.0


def blocking(chat, problem):
    return 1.0
