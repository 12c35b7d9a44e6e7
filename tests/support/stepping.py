"""Stepping two sessions by hand, through the locks that one makes the other wait for."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tests.support.protocol import Protocol

T = TypeVar("T")


async def blocked(protocol: Protocol, watcher: Protocol, asked: Awaitable[T]) -> "asyncio.Task[T]":
    """Start `asked` on `protocol` and return when the server says that it waits for a lock."""
    task = asyncio.ensure_future(asked)
    pid = protocol.connection.get_server_pid()
    async with asyncio.timeout(10):
        while not await watcher.column("SELECT 1 FROM pg_locks WHERE pid = $1 AND NOT granted", pid):
            assert not task.done(), f"did not wait: {task}"
            await asyncio.sleep(0.005)
    return task
