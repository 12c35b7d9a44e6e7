"""What every session of the database sets, whatever the role, the database or the server sets by default.

In: a new connection, and what its user needs otherwise. Out: the same connection, with the settings on which
the promises depend: isolation, writing, durability, names, formats, time-outs. `DatabaseHosts` calls it for
each connection, so no session is without.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # All our names have their schema. A schema of an application must hide no function or operator.
    "search_path": "pg_catalog, pg_temp",
    # Each caller has its own time limit.
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # How values and constants are written and read in statements.
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
}
_FIRST: Final = "SET statement_timeout = 0; SET jit = off"
"""What could end the following, or make it slow."""
_WHERE_NEEDED: Final = """
SELECT set_config('transaction_timeout', '0', false)
WHERE current_setting('transaction_timeout', true) <> '0';
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
"""
"""The first is there since PostgreSQL 17. The second: an acknowledged commit survives a crash; an
installation may ask for more than `on`, not for less."""

_REQUIRE_OWN: Final = """
DO $$ BEGIN
    IF pg_backend_pid() <> {pid} THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = pg_backend_pid();
    END IF;
END $$
"""
"""The error takes back the settings before it: the session of a pooler may serve others, too."""
_WHICH: Final = "SELECT pg_catalog.pg_backend_pid()"


def libpq_options() -> str:
    """Return SETTINGS as the environment variable PGOPTIONS has them, for the programs of PostgreSQL."""
    escaped = {name: value.replace(" ", r"\ ") for name, value in SETTINGS.items()}
    return " ".join(f"-c {name}={value}" for name, value in escaped.items())


_SHARED: Final = (
    "a connection pooler in transaction or statement mode, like pgbouncer with pool_mode = transaction, is "
    "between this process and PostgreSQL: settings, locks and notifications need sessions of its own; set "
    "pool_mode = session for this database in the pooler, or name host and port of the server itself in "
    "TURNSTILE_DATABASE_URL"
)
_FULL: Final = (
    "the connection pooler between this process and PostgreSQL has no free session, or does not answer: "
    "raise its limits (for pgbouncer default_pool_size), or name host and port of the server itself in "
    "TURNSTILE_DATABASE_URL"
)


class PoolerInBetween(asyncpg.InterfaceError):
    """A connection pooler does not give each session a process of the server."""


class _OtherProcess(Exception):
    """The process of the server that answers is another one than expected."""

    def __init__(self, pid: int) -> None:
        self.pid = pid


async def set_session(
    connection: "Connection",
    settings: Mapping[str, str],
    *,
    connect_beside: Callable[[], Awaitable["Connection"]],
    timeout_seconds: float,
) -> None:
    """Set SETTINGS, or another value where `settings` has one, in one round trip where no pooler is between.

    `connect_beside` opens another connection to the same place. Raises PoolerInBetween where sessions are
    not kept apart.
    """
    try:
        await _set(connection, settings, connection.get_server_pid(), timeout_seconds)
    except _OtherProcess as pooled:
        # A pooler names a process of its own.
        try:
            async with asyncio.timeout(2 * timeout_seconds):
                beside = await connect_beside()
                try:
                    async with _process_of_its_own(beside, other_than=pooled.pid):
                        await _set(connection, settings, pooled.pid, timeout_seconds)
                finally:
                    beside.terminate()
        except TimeoutError:
            raise PoolerInBetween(_FULL) from None
        except (_OtherProcess, asyncpg.ConnectionDoesNotExistError):
            # In statement mode it closes a connection that begins a transaction.
            raise PoolerInBetween(_SHARED) from None


@asynccontextmanager
async def _process_of_its_own(connection: "Connection", *, other_than: int) -> AsyncIterator[None]:
    """Open a transaction, unless this session shares its process. Raises _OtherProcess.

    In transaction mode a pooler lends the next transaction the process that has just answered, or hands out
    those that are free in turn.
    """
    async with connection.transaction():
        pid = await connection.fetchval(_WHICH)
    async with connection.transaction():
        if pid == other_than or await connection.fetchval(_WHICH) != pid:
            raise _OtherProcess(pid)
        yield


async def _set(connection: "Connection", settings: Mapping[str, str], pid: int, seconds: float) -> None:
    """Set them in one transaction of the process `pid`. Raises _OtherProcess, and then changes nothing."""
    # With the schema: until the search path is set, another schema may come first.
    calls = ", ".join(
        f"pg_catalog.set_config('{name}', '{value}', false)"
        for name, value in {**SETTINGS, **settings}.items()
    )
    check = _REQUIRE_OWN.format(pid=pid)
    try:
        await connection.execute(f"{_FIRST}; SELECT {calls}; {_WHERE_NEEDED}; {check}", timeout=seconds)
    except asyncpg.ObjectNotInPrerequisiteStateError as error:
        raise _OtherProcess(int(error.args[0])) from None
