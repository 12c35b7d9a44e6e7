"""One database session of the ledger: opened when it is needed, dropped after an error of the connection.

Sets what a turn depends on beyond the settings of all sessions: the plans and the time-outs. Errors come out
as those of `ports`, or as they are where the ledger decides.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from turnstile.common.database import (
    CONNECTION_ERRORS,
    REFUSED_BY_DATABASE,
    REPEATABLE,
    DatabaseHosts,
    Refusals,
)
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.leader.ports import OutcomeUnknown

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Statement: TypeAlias = asyncpg.prepared_stmt.PreparedStatement[asyncpg.Record]

_REFUSED: Final = Episodes(logging.getLogger(__name__), "ledger_refused", level=logging.ERROR)
_SETTINGS: Final = {
    # A leader that hangs inside a transaction must not keep its locks.
    "idle_in_transaction_session_timeout": "60s",
    "plan_cache_mode": "auto",
}
_STATEMENTS_MAX: Final = 200

UNKNOWN: Final = (
    *CONNECTION_ERRORS,
    asyncpg.OperatorInterventionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    # The schema is not there yet, or is being restored.
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedTableError,
)
"""After these a statement may have been committed, or the same one may succeed later: on a new connection."""
_DECIDED: Final = (*REPEATABLE, *REFUSED_BY_DATABASE)
"""What these mean depends on the call. Every other refusal of the server may pass: a right can be granted."""
_REFUSAL_LASTS_SECONDS: Final = 15.0
"""Longer than from one try to the next of a leader that has to load in between."""
_REFUSED_PAUSE_SECONDS: Final = 0.1
"""A server that refuses at once is not asked again at once."""


def no_refusals() -> Refusals:
    """Return the refusals of sessions of which the server has refused nothing yet."""
    return Refusals(lasts_seconds=_REFUSAL_LASTS_SECONDS)


class Session:
    """Calls go one after another. `seconds`: how long each may take, waiting for its turn not counted."""

    def __init__(
        self,
        hosts: DatabaseHosts,
        *,
        application_name: str,
        seconds: float,
        settings: dict[str, str],
        unknown: Sequence[type[Exception]] = (),
        prepare: "Callable[[Connection], None] | None" = None,
        refusals: Refusals | None = None,
    ) -> None:
        """`unknown`: further errors that come out as OutcomeUnknown; `prepare` gets each new connection."""
        self._refusals = refusals or no_refusals()
        self._hosts = hosts
        self._application_name = application_name
        self._seconds = seconds
        self._settings = _SETTINGS | settings
        self._unknown: tuple[type[Exception], ...] = (*UNKNOWN, *unknown)
        self._prepare = prepare
        self._connection: Connection | None = None
        self._statements: dict[object, Statement] = {}
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def use(self, seconds: float | None = None, *, call: str = "") -> "AsyncIterator[Connection]":
        """Lend the connection. Raises OutcomeUnknown after an error of the connection, or when time is up.

        Also after every other refusal of the server, except those that the ledger decides; `call` is the name
        of what is refused, by default that of the session.
        """
        call = call or self._application_name
        async with self._lock:
            try:
                async with asyncio.timeout(self._seconds if seconds is None else seconds):
                    yield await self._open()
            except (*self._unknown, asyncpg.PostgresError) as error:
                if isinstance(error, self._unknown):
                    self.drop()
                elif isinstance(error, _DECIDED):
                    raise
                if (reason := self._refusals.note(call, error)) is not None:
                    _REFUSED.failed("ledger", call=call, reason=reason)
                    await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
                raise OutcomeUnknown(str(error) or type(error).__name__) from error
            except asyncio.CancelledError:
                # Its statement may still run: it must not meet the next one.
                self.drop()
                raise
            self._refusals.note(call, None)
            if self._refusals.reason is None:
                _REFUSED.works("ledger")

    async def prepared(self, key: object, text: Callable[[], str]) -> "Statement":
        """Return the statement with this key, prepared once for each connection. Only inside `use`."""
        statement = self._statements.get(key)
        if statement is None:
            assert self._connection is not None
            if len(self._statements) >= _STATEMENTS_MAX:
                self._statements.clear()
            statement = self._statements[key] = await self._connection.prepare(text())
        return statement

    def drop(self) -> None:
        """Give up the connection without asking the server."""
        connection, self._connection = self._connection, None
        self._statements.clear()
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self._statements.clear()
        if connection is not None:
            with suppress(*CONNECTION_ERRORS):
                await connection.close(timeout=1.0)

    async def _open(self) -> "Connection":
        if self._connection is None or self._connection.is_closed():
            self.drop()
            connection: Any = await self._hosts.connect(
                settings=self._settings, server_settings={"application_name": self._application_name}
            )
            if self._prepare is not None:
                self._prepare(connection)
            self._connection = connection
        return self._connection
