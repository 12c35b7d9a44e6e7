"""Other threads add steps to the loop of the core: never two at once, and what they schedule runs."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from turnstile.worker.worker_thread import SharedLoop


@pytest.fixture
def loop() -> Iterator[SharedLoop]:
    """Run a loop in a thread of its own."""
    loop = SharedLoop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_steps_of_several_threads_and_of_the_loop_never_overlap(loop: SharedLoop) -> None:
    found: list[bool] = []
    is_inside = False

    def step() -> None:
        nonlocal is_inside
        found.append(is_inside)
        is_inside = True
        # Lets the other threads run.
        time.sleep(0)
        is_inside = False

    async def steps() -> None:
        for _ in range(500):
            step()
            await asyncio.sleep(0)

    def call() -> None:
        for _ in range(500):
            loop.call_between(step)

    inside = asyncio.run_coroutine_threadsafe(steps(), loop)
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inside.result(timeout=10)
    assert found == [False] * 2000


def test_what_a_step_schedules_wakes_a_loop_that_waits(loop: SharedLoop) -> None:
    woken = threading.Event()

    async def wait(event: asyncio.Event) -> None:
        await event.wait()
        woken.set()

    for schedule in (
        lambda: loop.call_soon(woken.set),
        lambda: loop.call_later(0.001, woken.set),
        lambda: loop.call_between(lambda: loop.call_soon(woken.set)),
    ):
        loop.call_between(schedule)
        assert woken.wait(10)
        woken.clear()
    event = asyncio.Event()
    asyncio.run_coroutine_threadsafe(wait(event), loop)
    loop.call_between(event.set)
    assert woken.wait(10)


def test_a_step_is_done_when_the_call_returns_also_one_of_the_loop_itself(loop: SharedLoop) -> None:
    found: list[str] = []
    loop.call_between(found.append, "other thread")
    done = threading.Event()

    def own() -> None:
        loop.call_between(found.append, "own thread")
        done.set()

    loop.call_soon_threadsafe(own)
    assert done.wait(10)
    assert found == ["other thread", "own thread"]


def test_a_loop_that_is_closed_takes_a_step_and_schedules_nothing() -> None:
    found: list[int] = []
    loop = SharedLoop()
    loop.close()
    loop.call_between(found.append, 1)
    assert found == [1]
