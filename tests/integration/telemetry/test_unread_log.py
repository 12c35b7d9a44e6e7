"""A log that is not read blocks no executor: it starts, answers and stops.

It needs a process: what is not read is its output.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress

import httpx

from tests.support.processes import CERTIFICATES
from tests.support.traffic import until
from turnstile.localservers.ports import LOOPBACK, free_port


async def test_an_executor_whose_log_is_not_read_answers_and_stops() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, b"\n" * 4096)
    # Its first line would wait for ever.
    os.set_blocking(write, True)
    port = free_port()
    settings = {
        "TURNSTILE_DATABASE_URL": f"postgresql://none@{LOOPBACK}:1/none",
        "TURNSTILE_AMQP_URL": f"amqp://{LOOPBACK}:1/none",
        "TURNSTILE_LOG_LEVEL": "DEBUG",
        "TURNSTILE_HTTP_PORT": str(port),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "turnstile.executor.cli", "serve",
        stdout=write, stderr=write, env={**os.environ, **settings},
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(verify=CERTIFICATES) as http:

            async def is_alive() -> bool:
                with suppress(httpx.HTTPError):
                    return (await http.get(f"http://{LOOPBACK}:{port}/livez", timeout=2)).is_success
                return False

            await until(is_alive, "its answer", deadline_seconds=30)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(read)
        os.close(write)
