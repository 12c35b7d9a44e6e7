"""The connection to PostgreSQL: a pool of asyncpg connections with a bound on every wait.

Both services call the protocol's statements through it; JSON travels as text in both directions. A statement
without an answer in time, or with a broken connection, raises `Unavailable`: the outcome is unknown, and
every statement of the protocol may be repeated. Where the database answers an empty statement at once, only
this statement took too long: `StatementTimeout`. A database whose schema does not suit is not used, until it
is migrated; the schema of another version suits until it lacks what a statement names. A server whose disk is
full still answers reads: it counts as unavailable until what it refused is written.
"""

import asyncio
import logging
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar

import asyncpg

from turnstile.common.database_session import set_session
from turnstile.common.domain.errors import StatementTimeout, Unavailable
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.urls import host_urls, network_remedy, shown_url, with_tls_hint

logger = logging.getLogger(__name__)

_DEADLOCK_RETRIES: Final = 5
_LOST: Final = "unexpected connection_lost() call"
"""What the driver says of a connection that the server, or something in between, has closed."""
_FULL_SECONDS: Final = 0.5
"""How long no connection is asked for after the server had none."""
_DISK_FULL_SECONDS: Final = 60.0
"""How long a full disk is assumed because of a statement that is not repeated."""
_TRANSACTION: Final = "transaction"

_SCHEMA_CHECK_SECONDS: Final = 1.0
_SCHEMA_WATCH_SECONDS: Final = 10.0
_MISSING_OBJECTS: Final = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedObjectError,
    asyncpg.UndefinedTableError,
)
"""Something that a statement names is not there: the schema may be of another version."""

T = TypeVar("T")
if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    SchemaCheck: TypeAlias = Callable[[Connection], Awaitable["SchemaState"]]
    """Returns what the schema of this database means for this version."""

CONNECTION_ERRORS: Final = (
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
    asyncpg.DiskFullError,
)
"""The connection or its server failed, not the statement: the same call may work later."""
REFUSED_BY_DATABASE: Final = (
    asyncpg.exceptions.DataError,
    asyncpg.exceptions.IntegrityConstraintViolationError,
    asyncpg.exceptions.ProgramLimitExceededError,
    asyncpg.exceptions._base.DataError,
)
"""A value in the batch can never be stored: the batch must be split."""
REPEATABLE: Final = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
"""Another transaction was in the way: the statement was rolled back, and can be repeated."""
_LOGIN_ERRORS: Final = (asyncpg.InvalidCatalogNameError, asyncpg.InvalidAuthorizationSpecificationError)

_SETTING: Final = "TURNSTILE_DATABASE_URL"
READ_ONLY: Final = f"the server is a standby or read-only; name the primary in {_SETTING}"
_REMEDIES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (
        asyncpg.InvalidPasswordError,
        f"correct {_SETTING}, or set the password with 'executor setup-permissions'",
    ),
    (
        asyncpg.InvalidAuthorizationSpecificationError,
        f"correct {_SETTING}, create the accounts with 'executor setup-permissions', "
        "or allow the host in pg_hba.conf",
    ),
    (
        asyncpg.InvalidCatalogNameError,
        f"create it with 'createdb' and then run 'executor migrate', or correct {_SETTING}",
    ),
    (asyncpg.ReadOnlySQLTransactionError, READ_ONLY),
    (
        asyncpg.DiskFullError,
        "free space on the database server; nothing is lost, and work continues by itself",
    ),
    (
        asyncpg.TooManyConnectionsError,
        "raise max_connections of the server, or the CONNECTION LIMIT of the role or database that is named, "
        "or end sessions that are idle",
    ),
)
"""What helps against an error of the server; the first match counts."""

_CLOSED: Final = "the connections are closed"
MISSING_SCHEMA: Final = "the database has no schema of Turnstile: run 'executor migrate'"


class SchemaState(NamedTuple):
    """What the schema of a database means for a service of this version."""

    trouble: str | None = None
    """Why it cannot be used, with the remedy."""
    notice: str | None = None
    """What a user should know though it can be used."""


class _WrongSchema(Exception):
    """Why the schema does not suit."""


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
    """For the server to confirm the cancellation of a slow statement; else the connection is dropped."""
    close_seconds: float = 5.0
    """For running statements when the pool is closed."""


class Database:
    """A pool that may be opened before the server is up, and survives its restarts."""

    def __init__(
        self,
        url: str,
        *,
        application_name: str,
        connections_max: int = 4,
        timeouts: DatabaseTimeouts | None = None,
        schema_check: "SchemaCheck | None" = None,
    ) -> None:
        self._url = url
        self._schema_check = schema_check
        self._schema_trouble: str | None = None
        self._schema_checked_at = -math.inf
        self.schema_notice: str | None = None
        """What a user should know about the schema though it can be used."""
        self._unsuited = Episodes(logger, "schema_unsuited", lasting=True)
        self._unreachable = Episodes(logger, "database_unreachable")
        self._disk_full = Episodes(logger, "database_disk_full")
        self._disk_full_reason: str | None = None
        self._refused_writes: dict[str, float] = {}
        """Statements that the full disk refused, with the instants of the event loop."""
        self._application_name = application_name
        self._connections_max = connections_max
        self._timeouts = timeouts or DatabaseTimeouts()
        self._hosts = DatabaseHosts(url, connect_seconds=self._timeouts.connect_seconds)
        self._pool: Pool | None = None
        self._kept: list[Connection] = []
        """Acquired, and between two calls: to acquire and release each time costs as much as a statement."""
        self._acquiring = 0
        """Callers that wait for the pool: a kept connection would starve them."""
        self._full_until = -math.inf
        self._released = asyncio.Event()
        self._in_transaction: set[asyncio.Task[Any] | None] = set()
        self._error: str | None = "not connected yet"
        self.refusals = Refusals(lasts_seconds=_DISK_FULL_SECONDS)
        """What the server refuses, though it can be reached."""

    @property
    def last_error(self) -> str | None:
        """Why the last call could not reach the server, or that its disk is full; None: it works."""
        return self._error or self._disk_full_reason

    async def open(self) -> None:
        """Connect, with retries and backoff until the server answers and its schema suits."""
        delay_seconds = 0.1
        while True:
            try:
                pool = await self._create_pool()
                try:
                    async with pool.acquire(timeout=self._timeouts.acquire_seconds) as connection:
                        await self._check_schema(connection)
                except BaseException:
                    pool.terminate()
                    raise
            except _WrongSchema as trouble:
                self._error = str(trouble)
            except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
                self._note_failure(error)
            else:
                self._pool = pool
                self._note_success()
                return
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(delay_seconds * 2, 5.0)

    async def close(self) -> None:
        """Close the connections; abort those that are still busy after a few seconds."""
        # From here on no call is lent a connection, and none is kept: one that is being released must not
        # serve a call.
        pool, self._pool = self._pool, None
        if pool is None:
            return
        while self._kept:
            await self._release(pool, self._kept.pop())
        try:
            await asyncio.wait_for(pool.close(), self._timeouts.close_seconds)
        except TimeoutError:
            pool.terminate()

    async def fetch(self, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        """Run one statement in a transaction of its own and return its rows."""
        return await self._run(query, lambda connection: connection.fetch(query, *arguments))

    async def fetchrow(self, query: str, *arguments: object) -> asyncpg.Record | None:
        """Run one statement in a transaction of its own and return its first row."""
        return await self._run(query, lambda connection: connection.fetchrow(query, *arguments))

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """Run one statement in a transaction of its own and return its first value."""
        return await self._run(query, lambda connection: connection.fetchval(query, *arguments))

    @asynccontextmanager
    async def transaction(self) -> "AsyncIterator[Connection]":
        """Yield a connection inside a transaction; for the rare work with more than one statement."""
        async with _Lent(self, _TRANSACTION) as connection, connection.transaction():
            task = asyncio.current_task()
            is_outermost = task not in self._in_transaction
            self._in_transaction.add(task)
            try:
                yield connection
            finally:
                if is_outermost:
                    self._in_transaction.discard(task)

    async def _run(self, statement: str, operation: "Callable[[Connection], Awaitable[T]]") -> T:
        try:
            return await self._repeated(statement, lambda connection: _in_time(operation(connection)))
        except _StatementCancelled:
            # If the server hangs, this statement fails as well, with Unavailable.
            seconds, empty = self._timeouts.give_up_seconds, "SELECT 1"
            await self._repeated(empty, lambda connection: connection.execute(empty, timeout=seconds))
            raise StatementTimeout(
                f"database: the statement was not finished within {self._timeouts.command_seconds:g} s"
            ) from None

    async def _repeated(self, statement: str, operation: "Callable[[Connection], Awaitable[T]]") -> T:
        for tries_left in reversed(range(_DEADLOCK_RETRIES)):
            try:
                async with _Lent(self, statement) as connection:
                    return await operation(connection)
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                # The server rolled the statement back as a whole: a repeat is safe.
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    async def lend(self) -> "tuple[Pool, Connection]":
        """Return the pool and a connection of it, to be given to `take_back`."""
        pool = self._pool
        if pool is None:
            raise Unavailable(f"database: {self._error or _CLOSED}")
        try:
            connection = await self._acquire(pool)
        except asyncpg.InterfaceError:
            if self._pool is pool:
                raise
            raise Unavailable(f"database: {_CLOSED}") from None
        if self._pool is not pool:
            # A caller that waited for the pool when it was closed.
            await self._release(pool, connection)
            raise Unavailable(f"database: {_CLOSED}")
        if self._schema_trouble is not None:
            try:
                await self._check_schema(connection)
            except BaseException as error:
                await self.take_back(pool, connection, error)
                raise
        return pool, connection

    async def take_back(self, pool: "Pool", connection: "Connection", error: BaseException | None) -> None:
        """Keep a connection for the next call; release it after `error`, or if another caller waits."""
        if isinstance(error, asyncpg.InternalClientError):
            # The server went away during a preparation: the driver cannot use this connection again.
            connection.terminate()
        if error is not None or self._acquiring or self._pool is not pool:
            await self._release(pool, connection)
        else:
            self._kept.append(connection)

    async def watch_schema(self) -> NoReturn:
        """Notice that the database is migrated by another version, or restored, though all calls succeed."""
        while True:
            # Soon after an error, which an idle service would otherwise report for long after its end.
            await asyncio.sleep(_SCHEMA_WATCH_SECONDS if self._error is None else _SCHEMA_CHECK_SECONDS)
            # A trouble fails the next calls, until a check finds that it is over.
            with suppress(Unavailable, asyncpg.PostgresError):
                async with _Lent(self, _TRANSACTION) as connection:
                    await self._check_schema(connection)

    async def _check_schema(self, connection: "Connection") -> None:
        """Raise _WrongSchema unless the schema suits; while it does not, it is read once a second."""
        now = asyncio.get_running_loop().time()
        is_due = self._schema_trouble is None or now - self._schema_checked_at >= _SCHEMA_CHECK_SECONDS
        if self._schema_check is not None and is_due:
            self._schema_checked_at = now
            state = await self._schema_check(connection)
            self._schema_trouble = state.trouble
            self._report_schema(state)
        if self._schema_trouble is not None:
            raise _WrongSchema(self._schema_trouble)

    def _report_schema(self, state: SchemaState) -> None:
        url = shown_url(self._url)
        if self._schema_trouble is None:
            self._unsuited.works(url, url=url)
        else:
            self._unsuited.failed(url, url=url, reason=self._schema_trouble)
        if state.notice is not None and state.notice != self.schema_notice:
            logger.warning("schema_newer", extra={"reason": state.notice})
        self.schema_notice = state.notice

    async def _acquire(self, pool: "Pool") -> "Connection":
        while self._kept:
            connection = self._kept.pop()
            # The pool takes back a connection that the server closed, and then this check fails.
            with suppress(asyncpg.InterfaceError):
                if not connection.is_closed():
                    return connection
            await self._release(pool, connection)
        self._acquiring += 1
        try:
            return await self._acquire_from(pool)
        finally:
            self._acquiring -= 1

    async def _acquire_from(self, pool: "Pool") -> "Connection":
        """Return a free connection of the pool, or a new one; raises the reason why there is none in time.

        A server that has none is not asked again for a while, as long as the pool has some.
        """
        now = asyncio.get_running_loop().time
        # A task inside a transaction would wait for its own connection.
        waits = asyncio.current_task() not in self._in_transaction
        deadline = now() + (self._timeouts.acquire_seconds if waits else 0.0)
        while True:
            # The pool prefers its open connections, and connects only when all of them are in use.
            while (wait_seconds := min(self._full_until, deadline) - now()) > 0:
                if not pool.get_size() or pool.get_idle_size():
                    break
                self._released.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._released.wait(), wait_seconds)
            try:
                return await pool.acquire(timeout=self._timeouts.acquire_seconds)
            except asyncpg.TooManyConnectionsError:
                if not pool.get_size() or now() >= deadline:
                    raise
                self._full_until = now() + _FULL_SECONDS

    async def _release(self, pool: "Pool", connection: "Connection") -> None:
        # After a timeout the driver has sent a cancel request. Without a confirmation it drops the
        # connection, and the next call gets a new one. An error of that must hide neither a result nor a
        # cancellation.
        with suppress(*CONNECTION_ERRORS):
            await pool.release(connection, timeout=self._timeouts.give_up_seconds)
        self._released.set()

    async def note(self, statement: str, error: BaseException | None) -> None:
        """Note how a call ended; raise Unavailable where the server or its schema caused `error`."""
        if error is None:
            self._note_success()
            self.refusals.note(self._caller_of(statement), None)
            if self._refused_writes:
                self._note_written(statement)
        elif isinstance(error, asyncpg.DataError):
            # A value that the driver cannot encode is an InterfaceError, but not one of the connection: a
            # repeat would fail again.
            return
        elif isinstance(error, _WrongSchema):
            self._error = str(error)
            raise Unavailable(f"database: {error}") from None
        elif isinstance(error, asyncpg.DiskFullError):
            raise Unavailable(f"database: {self._note_disk_full(statement, error)}") from error
        elif isinstance(error, (*CONNECTION_ERRORS, *_LOGIN_ERRORS)):
            self._note_failure(error)
            raise Unavailable(f"database: {self._error}") from error
        else:
            if isinstance(error, _MISSING_OBJECTS):
                await self._blame_schema(error)
            reason = self.refusals.note(self._caller_of(statement), error)
            if isinstance(error, asyncpg.InsufficientPrivilegeError):
                raise Unavailable(f"database: {reason}; 'executor doctor' names what is missing") from error

    def _caller_of(self, statement: str) -> str:
        task = asyncio.current_task()
        return f"{statement} of {task.get_name()}" if statement == _TRANSACTION and task else statement

    async def _blame_schema(self, error: BaseException) -> None:
        """Raise Unavailable if the schema, and not a fault of the statement, is the cause of `error`."""
        if self._schema_trouble is not None:
            # Another call has found it, while this one was under way.
            raise Unavailable(f"database: {self._schema_trouble}") from error
        if self._pool is None:
            return
        try:
            async with self._pool.acquire(timeout=self._timeouts.acquire_seconds) as connection:
                await self._check_schema(connection)
        except _WrongSchema as trouble:
            self._error = str(trouble)
            raise Unavailable(f"database: {trouble}") from error

    def _note_failure(self, error: BaseException) -> None:
        """Note why the server could not be reached."""
        self._error = reason_of(error)
        # By its class: the text of an error may name another file or port each time.
        kind = type(error).__name__
        self._unreachable.failed(kind, url=shown_url(self._url), reason=self._error)

    def _note_success(self) -> None:
        """Note that the server was reached."""
        if self._error is not None:
            self._error = None
            self._unreachable.all_work(url=shown_url(self._url))

    def _note_disk_full(self, statement: str, error: BaseException) -> str:
        """Note that the full disk of the server refused a statement; return the reason."""
        self._note_success()
        self._refused_writes[statement] = asyncio.get_running_loop().time()
        self._disk_full_reason = reason = reason_of(error)
        self._disk_full.failed("disk", url=shown_url(self._url), reason=reason)
        return reason

    def _note_written(self, statement: str) -> None:
        """Note the success of a statement: the disk has space once all that were refused have succeeded.

        Reads and small writes succeed on a full disk, too.
        """
        recently = asyncio.get_running_loop().time() - _DISK_FULL_SECONDS
        self._refused_writes.pop(statement, None)
        self._refused_writes = {each: at for each, at in self._refused_writes.items() if at > recently}
        if not self._refused_writes:
            self._disk_full_reason = None
            self._disk_full.works("disk", url=shown_url(self._url))

    async def _create_pool(self) -> "Pool":
        return await asyncpg.create_pool(
            connect=self._hosts.connect,
            # One connection at the start, and no minimum: during an outage a driver that restores the minimum
            # in the background occupies the connections that callers wait for.
            min_size=0,
            init_size=1,
            max_size=self._connections_max,
            # No replacement of a connection after many statements: a full server could refuse it.
            max_queries=sys.maxsize,
            command_timeout=self._timeouts.command_seconds,
            server_settings={"application_name": self._application_name},
            # Our statements leave no session state, so a released connection needs no reset, which would be
            # a second round trip for each statement.
            reset=_no_reset,
        )


class _Lent:
    """The connection of one call; not two generators, which would cost the call twice as much."""

    __slots__ = ("_connection", "_database", "_pool", "_statement")

    def __init__(self, database: Database, statement: str) -> None:
        self._database = database
        self._statement = statement

    async def __aenter__(self) -> "Connection":
        try:
            self._pool, self._connection = await self._database.lend()
        except BaseException as error:
            await self._database.note(self._statement, error)
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        await self._database.take_back(self._pool, self._connection, error)
        await self._database.note(self._statement, error)


class Refusals:
    """What a server that can be reached refuses at present: a right, a table or memory is missing.

    Not what depends on the values or on other transactions, which is decided where it is called.
    """

    def __init__(self, *, lasts_seconds: float) -> None:
        """`lasts_seconds`: longer than from one try to the next."""
        self._lasts_seconds = lasts_seconds
        self._reasons: dict[str, tuple[float, str]] = {}

    def note(self, call: str, error: BaseException | None) -> str | None:
        """Note how a call ended; return the reason if it was refused."""
        if error is None:
            if self._reasons:
                self._reasons.pop(call, None)
            return None
        decided = (*CONNECTION_ERRORS, *REFUSED_BY_DATABASE, *REPEATABLE, asyncpg.QueryCanceledError)
        if not isinstance(error, asyncpg.PostgresError) or isinstance(error, decided):
            return None
        now = asyncio.get_running_loop().time()
        # Without the details, which show values.
        reason = str(error.args[0]) if error.args else type(error).__name__
        self._reasons = {each: found for each, found in self._reasons.items() if self._is_present(found, now)}
        self._reasons[call] = now, reason
        return reason

    @property
    def reason(self) -> str | None:
        """Why a call is refused; None: all succeed."""
        if not self._reasons:
            return None
        now = asyncio.get_running_loop().time()
        return next((each[1] for each in self._reasons.values() if self._is_present(each, now)), None)

    def _is_present(self, found: tuple[float, str], now: float) -> bool:
        return now - found[0] < self._lasts_seconds


class DatabaseHosts:
    """The hosts of one database, the last that accepted a connection first.

    The driver tries several hosts by itself, but within one time limit: a host that is switched off, and so
    refuses nothing, would use it up each time, and a promoted standby would never be tried.
    """

    def __init__(self, url: str, *, connect_seconds: float) -> None:
        """`connect_seconds`: time limit for each host."""
        self._urls = host_urls(url)
        self._connect_seconds = connect_seconds

    async def connect(self, *_: Any, settings: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Connect to the first host that accepts, and set its session; raise the error of the last one.

        A pool passes None instead of a URL. `settings` are those that differ from the settings of all
        sessions.
        """
        *others, last = self._urls
        for url in others:
            try:
                return await self._connect(url, settings or {}, options)
            except (OSError, asyncpg.PostgresError, asyncpg.InternalClientError):
                continue
        return await self._connect(last, settings or {}, options)

    async def _connect(self, url: str, settings: Mapping[str, str], options: dict[str, Any]) -> Any:
        # Before the attempt: if the caller gives up, its next attempt must not wait for this host again.
        self._move(url, to_front=False)
        connection = await asyncpg.connect(url, timeout=self._connect_seconds, **options)
        try:
            await set_session(
                connection, settings,
                # Without named statements: a pooler may have them already.
                connect_beside=lambda: asyncpg.connect(
                    url, timeout=self._connect_seconds, statement_cache_size=0
                ),
                timeout_seconds=self._connect_seconds,
            )  # fmt: skip
        except BaseException:
            connection.terminate()
            raise
        self._move(url, to_front=True)
        return connection

    def _move(self, url: str, *, to_front: bool) -> None:
        others = [other for other in self._urls if other != url]
        self._urls = [url, *others] if to_front else [*others, url]


class _StatementCancelled(Exception):
    """A statement timed out, or was cancelled on the server."""


async def _in_time(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except asyncpg.QueryCanceledError as error:
        raise _StatementCancelled from error
    except TimeoutError as error:
        if error.errno is not None:
            raise  # a timeout of the network, not of the statement
        raise _StatementCancelled from error


def reason_of(error: BaseException) -> str:
    """Return why the database cannot be used, with the remedy where it is known."""
    if isinstance(error, asyncpg.ConnectionDoesNotExistError | ConnectionResetError) or str(error) == _LOST:
        return "the connection was lost"
    if isinstance(error, TimeoutError) and not str(error):
        return (
            "the server did not answer in time: it is stopped or overloaded, or the network drops packets; "
            f"look into its log, or correct {_SETTING}"
        )
    reason = str(error) or type(error).__name__
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            # The text of the error without the server's own hint: the remedy replaces it.
            return f"{error.args[0] if error.args else reason}: {remedy}"
    return network_remedy(reason, server="PostgreSQL", setting=_SETTING) or with_tls_hint(
        reason, authority=f"sslrootcert in {_SETTING}"
    )


async def _no_reset(_: object) -> None:
    return
