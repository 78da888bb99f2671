"""These are the episodes that tests name in `task.episode`."""

import asyncio
import functools
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal


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


add_two = functools.partial(add, 2)


def yielding(a: int):
    yield a


async def gives_rewards(chat, problem):
    yield 1.0


def exits() -> str:
    """Ends."""
    sys.exit("no key")


def returns_bytes() -> bytes:
    """Reads."""
    return b"read"


def returns_iterator() -> list:
    """Reads."""
    return map(str, [1])


def returns_an_object() -> list:
    """Reads."""
    return [object()]


def returns_a_method() -> list:
    """Reads."""
    return threading.Event().wait


def returns_a_set() -> dict:
    """Reads."""
    return {1, 2}


async def cancels_itself() -> str:
    """Reads."""
    task = asyncio.create_task(asyncio.sleep(9))
    task.cancel()
    await task


def breaks_off() -> str:
    """Reads."""
    raise KeyboardInterrupt


class Panic(BaseException):
    """Libraries in Rust raise such errors."""


def panics() -> str:
    """Reads."""
    raise Panic("a thread panicked")


def gathered(numbers: set[int]) -> str:
    """Gathers.

    Args:
        numbers: The numbers.
    """
    return ""


def streamed(a: int) -> Iterator[int]:
    """Streams.

    Args:
        a: A number.
    """
    return [a]


class Closing:
    """This environment has a method that is no tool."""

    def reset(self):
        return None

    def close(self):
        pass


class Rewriting:
    """This environment writes into the messages that it gets."""

    def reset(self, prompt):
        prompt[-1]["content"] = "Something else?"

    def look(self) -> str:
        """Looks."""
        return ""


def stops(a: int) -> int:
    """Finds a number.

    Args:
        a: The number.
    """
    return next(number for number in [1] if number == a)


def lately(function):
    """Wraps a function so that it returns an awaitable, as some decorators do."""

    def wrapped(*args, **named):
        async def call():
            return function(*args, **named)

        return call()

    return functools.wraps(function)(wrapped)


class Decorated:
    """Its tools are a cached method, a class method and one behind a decorator."""

    reward = 1.0

    def reset(self):
        pass

    @functools.lru_cache  # noqa: B019
    def cached(self) -> str:
        """Is cached."""
        return "cached"

    @classmethod
    def of_class(cls) -> str:
        """Belongs to the class."""
        return "of class"

    @lately
    def late(self) -> str:
        """Comes later."""
        return "late"


class BeginsWithMessages:
    def reset(self):
        return [{"role": "user", "content": "Begin."}]


class NeedsMore:
    def reset(self, level):
        pass


class BrokenReward:
    def reset(self):
        pass

    @property
    def reward(self):
        return self.missing


async def returns_huge(chat, problem):
    return 1e308


async def returns_a_note(chat, problem):
    return {"reward": 1.0, "note": "hi"}


@dataclass
class Place:
    x: int


def placed(where: list[Place]) -> str:
    """Places.

    Args:
        where: Where to.
    """
    return ""


def of_many_types(names: list[str], size: Literal["s", "m"] = "s", other: Any = None, where: int | None = None) -> str:
    """Takes all.

    Args:
        names: The names.
        size: The size.
        other: Anything.
        where: Where to.
    """
    return ""


class BeginsWithBytes:
    def reset(self):
        return b"begin"


class BeginsByYielding:
    def reset(self):
        yield "begin"


def summing(*numbers: int) -> int:
    return sum(numbers)


async def without_problem(chat):
    return 1.0


class Sized:
    """The environment wants to know its size."""

    def __init__(self, size):
        self.size = size

    def reset(self) -> None:
        pass


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


class SlowCounter(Counter):
    """The environment takes its time between reading its number and writing it, the longer for a smaller step."""

    def count(self, step: int) -> str:
        """Counts on.

        Args:
            step: How far.
        """
        before = self.value
        time.sleep(0.05 / step)
        self.value = before + step
        return f"It stands at {self.value}."


class WantsTheRow:
    reward = 1.0

    def reset(self, q, a):
        self.question, self.answer = q, a

    def look(self) -> str:
        """Looks."""
        return "nothing"


class Scored:
    """The environment scores itself when it has ended, as TRL's do."""

    def reset(self) -> None:
        self.target, self.lock, self.guesses = 3, threading.Lock(), []

    def guess(self, number: int) -> str:
        """Guesses.

        Args:
            number: Any number.
        """
        self.guesses.append(number)
        return "noted"

    async def get_reward(self) -> float:
        return float(self.target in self.guesses)

    @property
    def broken(self) -> int:
        raise ValueError


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


async def four_at_once(chat, problem):
    """Asks more questions beside each other than a limit of turns allows."""
    await asyncio.gather(*(chat([{"role": "user", "content": str(number)}]) for number in range(4)))
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


def looks() -> list:
    """Looks at a picture."""
    return [{"type": "image", "url": "x"}]


class Odd(Exception):
    def __str__(self):
        raise ValueError("no words")


def raises_oddly() -> str:
    """Raises an error whose text raises another."""
    raise Odd


async def swapped(problem, chat):
    """Leads a conversation, with its parameters in the wrong order."""


async def without_chat(c, p):
    return 1.0


unnamed = lambda: "5"  # noqa: E731
an_object = Odd()


async def cooler(chat, problem):
    await chat(list(problem.messages), temperature=0)


async def unawaited(chat, problem):
    return float(chat(list(problem.messages))["content"])


async def draws(chat, problem):
    await chat(list(problem.messages))
    return random.random()


async def hangs(chat, problem):
    await chat(list(problem.messages))
    while True:
        time.sleep(1)


async def first_hangs(chat, problem):
    await chat(list(problem.messages))
    if problem.problem_id == "p0":
        await asyncio.sleep(60)
    return 1.0


async def ends(chat, problem):
    await chat(list(problem.messages))
    os._exit(3)


async def outstays(chat, problem):
    """Tries again and again once it has got no further turn."""
    while True:
        with suppress(Exception):
            await chat(list(problem.messages))
        await asyncio.sleep(0.05)


async def asks_without_end(chat, problem):
    """Takes every error for one that passes."""
    while True:
        with suppress(Exception):
            await chat(list(problem.messages))


async def half_a_character(chat, problem):
    """Shows the model half a character, and says another one as it fails."""
    await chat([{"role": "user", "content": "Well \ud83d?"}])
    raise ValueError("\udc00")


async def silent(chat, problem):
    return 1.0


def blocking(chat, problem):
    return 1.0


async def loses_patience(chat, problem):
    """Gives a turn up that takes long, and asks again."""
    with suppress(TimeoutError):
        await asyncio.wait_for(chat(list(problem.messages)), 0.001)
    await chat([*problem.messages, {"role": "user", "content": "Well?"}])
    return 1.0


async def names_an_answer_oddly(chat, problem):
    first = await chat(list(problem.messages))
    await chat([*problem.messages, first, {"role": "tool", "tool_call_id": [1], "content": "5"}])
    return 1.0


async def says_bytes(chat, problem):
    await chat([{"role": "user", "content": b"abc"}])


async def says_it_deeply(chat, problem):
    deep = []
    for _ in range(983):
        deep = [deep]
    await chat([{"role": "user", "content": "Hi", "note": deep}])


async def chats_elsewhere(chat, problem):
    await asyncio.to_thread(asyncio.run, chat(list(problem.messages)))


async def opens_long(chat, problem):
    await chat([{"role": "user", "content": "a" * 10**5}])
    return 1.0


async def goes_on_long(chat, problem, length=200):
    messages = [dict(message) for message in problem.messages]
    messages += [await chat(messages), {"role": "user", "content": "a" * length}]
    await chat(messages)
    return 1.0


async def goes_on_far_too_long(chat, problem):
    return await goes_on_long(chat, problem, length=10**6)


async def returns_nothing(chat, problem):
    await chat(problem.messages)


async def asks_nothing(chat, problem):
    return 0.5


async def shortens(chat, problem):
    """Asks with far too long a history, and after the refusal with a short one."""
    with suppress(Exception):
        await goes_on_long(chat, problem)
    await chat([*problem.messages, {"role": "user", "content": "?"}])
    return 1.0


async def speaks_for_the_model(chat, problem):
    """Takes a turn, and then goes on from a summary of its own."""
    await chat(list(problem.messages))
    await chat([{"role": "assistant", "content": "Summary."}, {"role": "user", "content": "Go on."}])
    return 1.0


async def says_nonsense(chat, problem):
    return await chat(["What?"])


async def shows_pictures(chat, problem):
    await chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def total(numbers: list[int]) -> int:
    """Adds numbers up.

    Args:
        numbers: The numbers.
    """
    result = sum(numbers)
    numbers.clear()
    return result
