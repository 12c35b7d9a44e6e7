"""Wakes the leader for commands: by a notification while it sleeps, by the clock while they come.

A transaction with a notification commits alone, so while commands arrive this session holds a lock that tells
writers not to notify, and the leader reads every few milliseconds. After a pause the lock is given up; what
was stored before that is read at once. If the session is lost, the leader reads at its own pace, and commands
are late by that.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import asyncpg

from turnstile.common.database import CONNECTION_ERRORS, DatabaseHosts
from turnstile.executor.leader.ledger_rows import statement

if TYPE_CHECKING:
    from turnstile.executor.leader.ledger_session import Connection

logger = logging.getLogger(__name__)

_BUSY_PAUSE_SECONDS: Final = 0.004
"""Between two reads while commands arrive."""
_BUSY_SECONDS: Final = 0.25
"""How long after the last command the leader still reads without a notification."""
_CHECK_SECONDS: Final = 1.0
_COMMAND_SECONDS: Final = 5.0
_RECONNECT_SECONDS: Final = 1.0


class InboxWatch:
    """One session of the leader. It runs from `start` to `stop`, in the loop of the leader."""

    def __init__(
        self, hosts: DatabaseHosts, *, on_command: Callable[[], None], on_reset: Callable[[], None]
    ) -> None:
        """`on_command` wakes the leader; `on_reset`: the inbox must be read from its first row."""
        self._hosts = hosts
        self._on_command, self._on_reset = on_command, on_reset
        self._has_news = asyncio.Event()
        self._found_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch, if it does not already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="inbox watch")

    async def stop(self) -> None:
        """Give up the session with its lock."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def found(self) -> None:
        """Note that the leader has read commands: more may follow within milliseconds."""
        self._found_at = asyncio.get_running_loop().time()
        self._has_news.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._watch()
            except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
                logger.info("inbox_not_heard", extra={"reason": str(error) or type(error).__name__})
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _watch(self) -> None:
        connection: Connection = await self._hosts.connect(
            settings={"lock_timeout": "1s"},
            command_timeout=_COMMAND_SECONDS,
            server_settings={"application_name": "turnstile leader inbox"},
        )
        try:
            connection.add_termination_listener(lambda _: self._has_news.set())
            await connection.add_listener("turnstile_commands", self._heard)
            # What was stored before is not notified any more.
            self._on_command()
            while not connection.is_closed():
                self._has_news.clear()
                if self._is_busy():
                    await self._stay_awake(connection)
                    continue
                try:
                    async with asyncio.timeout(_CHECK_SECONDS):
                        await self._has_news.wait()
                except TimeoutError:
                    await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    def _heard(self, *notification: object) -> None:
        if notification[-1] == "all":
            self._on_reset()
        self._on_command()

    def _is_busy(self) -> bool:
        return asyncio.get_running_loop().time() - self._found_at < _BUSY_SECONDS

    async def _stay_awake(self, connection: "Connection") -> None:
        """Have the leader read again and again, and writers be silent, until no more commands come.

        Each writer that notifies holds the lock, shared, until its end. A try of this session would fail for
        as long as they overlap; while it waits for the lock, their tries fail.
        """
        silencing = asyncio.ensure_future(connection.execute(statement("silence")))
        try:
            while self._is_busy():
                await asyncio.sleep(_BUSY_PAUSE_SECONDS)
                self._on_command()
            with suppress(asyncpg.LockNotAvailableError):
                await silencing
                await connection.execute(statement("end_silence"))
        finally:
            silencing.cancel()
            # What was stored before the lock was given up was not notified.
            self._on_command()
