"""This module runs coroutines from code that is not asynchronous, also where an event loop runs already."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine to its end and returns its result. A notebook runs an event loop in the thread of its cells, so
    there the coroutine gets a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
