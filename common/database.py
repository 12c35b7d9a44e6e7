"""The link to PostgreSQL: a pool of asyncpg connections with a bound on every wait.

Both services call the protocol's statements through it; JSON travels as text in both directions. What
the database does not answer in time, or answers with a broken connection, raises `Unavailable`: the
outcome is unknown, and every statement of the protocol may be said again. Where the database answers at
once when it is asked for nothing, it was this statement that took too long: `StatementTimeout`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import asyncpg

from turnstile.common.database_hosts import DatabaseHosts
from turnstile.common.database_url import shown_url
from turnstile.common.domain.errors import StatementTimeout, Unavailable
from turnstile.common.tls import explained

logger = logging.getLogger(__name__)

_DEADLOCK_RETRIES: Final = 5

T = TypeVar("T")
if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]

CONNECTION_TROUBLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The connection or its server failed, not what was asked: the same call may work later."""
REFUSED_BY_DATABASE: Final = (
    asyncpg.exceptions.DataError,
    asyncpg.exceptions.IntegrityConstraintViolationError,
    asyncpg.exceptions.ProgramLimitExceededError,
    asyncpg.exceptions._base.DataError,
)
"""A value in the batch cannot be stored, whatever is tried: the batch must be split."""
_NOT_LET_IN: Final = (asyncpg.InvalidCatalogNameError, asyncpg.InvalidAuthorizationSpecificationError)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseTimeouts:
    """How long each exchange with the database may take, in seconds."""

    connect_seconds: float = 5.0
    """From the first packet to a usable connection."""
    acquire_seconds: float = 10.0
    """Waiting for a free connection of the pool, or for a new one."""
    command_seconds: float = 30.0
    """One statement, or one step of a transaction."""
    give_up_seconds: float = 1.0
    """For the server to confirm that it gave up a statement that took too long; else the connection goes."""
    close_seconds: float = 5.0
    """For statements under way when the pool is closed."""


class Database:
    """A pool that may be opened before the server is there, and outlives its restarts."""

    def __init__(
        self,
        url: str,
        *,
        application_name: str,
        connections_max: int = 4,
        timeouts: DatabaseTimeouts | None = None,
    ) -> None:
        self._url = url
        self._application_name = application_name
        self._connections_max = connections_max
        self._timeouts = timeouts or DatabaseTimeouts()
        self._hosts = DatabaseHosts(url, connect_seconds=self._timeouts.connect_seconds)
        self._pool: Pool | None = None
        self.last_error: str | None = "not connected yet"
        """Why the last call could not reach the server; None while all is well (for /readyz)."""

    async def open(self) -> None:
        """Connect, trying again with backoff until the server answers. One log line per new reason."""
        delay_seconds, reason = 0.1, ""
        while True:
            try:
                self._pool = await self._create_pool()
            except (*CONNECTION_TROUBLE, *_NOT_LET_IN) as error:
                if _said(error) != reason:
                    reason = self.last_error = _said(error)
                    logger.warning(
                        "database_unreachable", extra={"url": shown_url(self._url), "reason": reason}
                    )
                await asyncio.sleep(delay_seconds)
                delay_seconds = min(delay_seconds * 2, 5.0)
            else:
                self.last_error = None
                return

    async def close(self) -> None:
        """Give the connections back to the server, at the latest after a few seconds."""
        if self._pool is None:
            return
        try:
            await asyncio.wait_for(self._pool.close(), self._timeouts.close_seconds)
        except TimeoutError:
            self._pool.terminate()
        self._pool = None

    async def fetch(self, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        """Run one statement in a transaction of its own and return its rows."""
        return await self._run(lambda connection: connection.fetch(query, *arguments))

    async def fetchrow(self, query: str, *arguments: object) -> asyncpg.Record | None:
        """Run one statement in a transaction of its own and return its first row."""
        return await self._run(lambda connection: connection.fetchrow(query, *arguments))

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """Run one statement in a transaction of its own and return its first value."""
        return await self._run(lambda connection: connection.fetchval(query, *arguments))

    @asynccontextmanager
    async def transaction(self) -> "AsyncIterator[Connection]":
        """Lend a connection inside a transaction; for the rare work that takes more than one statement."""
        async with self._translated(), self._connection() as connection, connection.transaction():
            yield connection

    async def _run(self, ask: "Callable[[Connection], Awaitable[T]]") -> T:
        try:
            return await self._repeated(lambda connection: _in_time(ask(connection)))
        except _GaveUp:
            # A server that stands still lets every statement run out of time, whatever it holds.
            seconds = self._timeouts.give_up_seconds
            await self._repeated(lambda connection: connection.execute("SELECT 1", timeout=seconds))
            raise StatementTimeout(
                f"database: the statement was not finished within {self._timeouts.command_seconds:g} s"
            ) from None

    async def _repeated(self, ask: "Callable[[Connection], Awaitable[T]]") -> T:
        for tries_left in reversed(range(_DEADLOCK_RETRIES)):
            try:
                async with self._translated(), self._connection() as connection:
                    return await ask(connection)
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                # The server undid the statement as a whole: saying it again is exact.
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _connection(self) -> "AsyncIterator[Connection]":
        pool = self._pool
        if pool is None:
            raise Unavailable("database: not connected yet")
        connection = await pool.acquire(timeout=self._timeouts.acquire_seconds)
        try:
            yield connection
        except asyncpg.InternalClientError:
            # The server left in the middle of a preparation and the driver lost track: such a connection
            # never works again.
            connection.terminate()
            raise
        finally:
            # After a timeout the driver has asked the server to give the statement up. Where that is not
            # confirmed soon the driver drops the connection, and the next call gets a new one. That must hide
            # neither an answer nor a cancellation.
            with suppress(*CONNECTION_TROUBLE):
                await pool.release(connection, timeout=self._timeouts.give_up_seconds)

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except asyncpg.DataError:
            # The driver files a value that it cannot encode under InterfaceError: that is no trouble
            # with the connection, and saying it again would fail again.
            raise
        except CONNECTION_TROUBLE as error:
            self.last_error = _said(error)
            raise Unavailable(f"database: {self.last_error}") from error
        else:
            self.last_error = None

    async def _create_pool(self) -> "Pool":
        return await asyncpg.create_pool(
            connect=self._hosts.connect,
            # One to begin with, and no floor: while the server is out, a driver that tries to restore one in
            # the background holds the places that callers wait for.
            min_size=0,
            init_size=1,
            max_size=self._connections_max,
            command_timeout=self._timeouts.command_seconds,
            server_settings={"application_name": self._application_name},
            # Our statements leave nothing behind in a session, so a returned connection needs no reset:
            # that would be a second round trip for each of them.
            reset=_leave_as_it_is,
        )


class _GaveUp(Exception):
    """A statement took too long, or was cancelled on the server."""


async def _in_time(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except asyncpg.QueryCanceledError as error:
        raise _GaveUp from error
    except TimeoutError as error:
        if error.errno is not None:
            raise  # the network's, not the statement's
        raise _GaveUp from error


def _said(error: BaseException) -> str:
    return explained(str(error), authority="sslrootcert in TURNSTILE_DATABASE_URL") or type(error).__name__


async def _leave_as_it_is(_: object) -> None:
    return
