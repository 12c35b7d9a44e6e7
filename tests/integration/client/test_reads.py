"""Reads over HTTP from a slow server: a cancelled read does not affect the others."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnstile.client.api import _REQUESTS_MAX, Api
from turnstile.client.errors import Rejected

_PROBLEM = b'{"code": "not_found", "detail": "execution_id: there is no execution 1"}'
_ANSWER = (
    b"HTTP/1.1 404 Not Found\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_PROBLEM), _PROBLEM)
)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            await asyncio.sleep(random.random() * 0.02)
            writer.write(_ANSWER)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def _api() -> AsyncIterator[Api]:
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        api = Api(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", token=None)
        try:
            yield api
        finally:
            await api.close()


async def _read(api: Api) -> str:
    try:
        await api.execution(1)
    except Rejected as refused:
        return refused.code
    return "found"


async def test_reads_cancelled_at_any_moment_do_not_exhaust_the_pool() -> None:
    async with _api() as api, asyncio.timeout(60):
        chance = random.Random(7)
        for _ in range(50):
            reads = [asyncio.create_task(_read(api)) for _ in range(60)]
            await asyncio.sleep(chance.random() * 0.02)
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        # The pool of the library blocks once a hundred connections are occupied.
        assert len(api._http._transport._pool.connections) <= _REQUESTS_MAX  # type: ignore[attr-defined]
        assert await asyncio.gather(*(_read(api) for _ in range(20))) == ["not_found"] * 20


async def test_a_cancelled_read_ends_at_once() -> None:
    async with _api() as api:
        read = asyncio.create_task(_read(api))
        await asyncio.sleep(0)
        read.cancel()
        assert isinstance((await asyncio.gather(read, return_exceptions=True))[0], asyncio.CancelledError)
