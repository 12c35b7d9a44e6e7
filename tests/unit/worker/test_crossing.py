"""Calls arrive in the other thread's loop, in order, from any thread."""

import asyncio
import threading

from turnstile.worker.worker_thread import Crossing


async def test_calls_of_several_threads_all_arrive_each_in_its_order() -> None:
    found: list[tuple[int, int]] = []
    done = asyncio.Event()
    crossing = Crossing(asyncio.get_running_loop())

    def note(thread: int, number: int) -> None:
        found.append((thread, number))
        if len(found) == 4 * 2000:
            done.set()

    def call(thread: int) -> None:
        for number in range(2000):
            crossing.call(note, thread, number)

    threads = [threading.Thread(target=call, args=(each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(20):
        await done.wait()
    for thread in threads:
        thread.join()
    for index in range(4):
        assert [number for caller, number in found if caller == index] == list(range(2000))


async def test_a_call_that_calls_again_leaves_its_turn_to_others() -> None:
    crossing = Crossing(asyncio.get_running_loop())
    found: list[str] = []
    done = asyncio.Event()

    def again(left: int) -> None:
        found.append(f"call {left}")
        if left:
            crossing.call(again, left - 1)
        else:
            done.set()

    crossing.call(again, 2)
    asyncio.get_running_loop().call_soon(found.append, "loop")
    async with asyncio.timeout(5):
        await done.wait()
    assert found.index("loop") < found.index("call 0")


def test_a_closed_loop_calls_nothing() -> None:
    loop = asyncio.new_event_loop()
    crossing = Crossing(loop)
    loop.close()
    crossing.call(lambda: None)
