"""Coroutines are run to their end by code that is not asynchronous."""

import asyncio
import threading

from grpo.host.event_loop import finished


async def thread_after(seconds):
    await asyncio.sleep(seconds)
    return threading.current_thread()


def test_a_coroutine_is_finished_in_its_callers_thread():
    assert finished(thread_after(0)) is threading.current_thread()


def test_a_coroutine_is_finished_within_a_cell_of_a_notebook_whose_loop_runs_already():
    async def cell():
        return finished(thread_after(0.01))

    assert asyncio.run(cell()) is not threading.current_thread()
