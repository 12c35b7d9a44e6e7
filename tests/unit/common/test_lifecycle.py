"""Work that a stop signal interrupts."""

import asyncio
import gc
import subprocess
import sys

import pytest

from turnstile.common.exit_codes import ExitCode
from turnstile.common.lifecycle import done_before


async def test_work_that_is_done_first_says_so() -> None:
    assert await done_before(asyncio.sleep(0), asyncio.Event())


async def test_an_error_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        await done_before(fail(), asyncio.Event())


async def test_interrupted_work_has_cleaned_up_and_what_it_raises_then_is_dropped() -> None:
    unretrieved: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
    stop, cleaned_up = asyncio.Event(), False

    async def connect() -> None:
        nonlocal cleaned_up
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned_up = True
            raise ConnectionError("closed in the middle of the handshake")

    assert not await done_before(connect(), stop)
    assert cleaned_up
    gc.collect()
    await asyncio.sleep(0)
    assert unretrieved == []


_LEAVES_A_THREAD = """
import threading
from turnstile.common import lifecycle

lifecycle._EXIT_SECONDS = 0.2

async def serve(stop):
    threading.Thread(target=threading.Event().wait).start()

lifecycle.run_service(serve)
"""


def test_a_thread_for_which_the_interpreter_waits_keeps_no_service_alive() -> None:
    program = [sys.executable, "-c", _LEAVES_A_THREAD]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == ExitCode.NOT_STOPPED
    assert "not_stopped_in_time" in ended.stderr
