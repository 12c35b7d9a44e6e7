"""Recognises a restored copy of a database, and makes it safe for executors and workers.

In: the database, the broker, and what the operator knows. Out: lines that say what was found and done. A copy
is recognised by its origin (`migrations.origin`); a database at its origin is only audited. Everything that
happens to a copy is repeatable, and its origin is recorded last, in the transaction of the other changes: an
interrupted check starts again. Owns its transactions.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import asyncpg

from turnstile.common.broker.topology import EXECUTOR_REQUESTS
from turnstile.common.database import Database
from turnstile.common.domain.durations import format_duration
from turnstile.common.domain.errors import TurnstileError, Unavailable
from turnstile.executor.backup.broker import (
    ABOUT_EXECUTIONS,
    QueueCounts,
    RestoreBroker,
    restore_broker,
)
from turnstile.executor.backup.programs import check_dump, connect_as, find_program, restore, server_version
from turnstile.executor.callers import DIRECTLY
from turnstile.executor.permissions.rights import grants_sql
from turnstile.executor.queries.audit import Auditor, AuditReport
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.sql import statements
from turnstile.migrations.origin import changes_of_origin, present_origin, record_origin, recorded_origin
from turnstile.migrations.run import is_current, migrate

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

Label: TypeAlias = Literal[
    "audit", "done", "found", "healthy", "kept", "next", "restored", "would", "wrong"
]  # fmt: skip
Say: TypeAlias = Callable[[Label, str], None]
"""Receives a label, and a sentence."""

_STATEMENTS: Final = statements("backup/restored.sql")
IDS_PER_SECOND: Final = 10_000
"""More than any installation can assign: the highest rate that was measured is a fifth of it."""
_IDS_MIN: Final = 1_000_000
_ROUND: Final = 1_000_000
_ID_MAX: Final = 2**53
"""Clients read ids as JSON numbers."""
_SESSIONS_END_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.2
_AUDIT_SECONDS: Final = 90.0
_LATE_SECONDS: Final = 60.0
_FOREVER_SECONDS: Final = 10 * 365 * 86400.0
_ACTIONS_MAX: Final = 10_000
"""More than the original can have defined since the backup."""
_HAS_TABLES: Final = "SELECT to_regclass('ledger.execution') IS NOT NULL"
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('turnstile.restore_check'))"


class RestoreRefused(TurnstileError):
    """The check cannot continue, and changed nothing; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """What the operator asks for."""

    source: Path | None = None
    """A dump to restore first, into an empty database."""
    postgresql_bin: str = ""
    dry_run: bool = False
    is_restored: bool = False
    """The database is a copy, although its origin does not show it."""
    first_id: int | None = None
    """The next id of an execution; None: far enough above every id that can have been assigned."""
    confirm: Callable[[], None] = lambda: None
    """Called once before the first change; raises what ends the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredState:
    """What the copy contains: the columns of the statement `state`."""

    reserved_id: int
    """Above all ids that were assigned."""
    last_id: int
    """Of the newest execution."""
    at: datetime
    newest_at: datetime
    running: int
    offered: int
    waiting: int
    delayed: int
    has_roles: bool

    def summary(self) -> str:
        """Return how many executions have not ended, by what they wait for."""
        return (
            f"{self.running} running, {self.offered} granted and not started, {self.waiting} queued, "
            f"{self.delayed} delayed"
        )


def next_id(state: RestoredState) -> int:
    """Return the first id to assign: above all ids that the original can have assigned until now."""
    seconds = max((state.at - state.newest_at).total_seconds(), 0.0)
    above = state.reserved_id + _IDS_MIN + int(seconds * IDS_PER_SECOND)
    return -(-above // _ROUND) * _ROUND


async def restore_check(settings: ExecutorSettings, options: RestoreOptions, say: Say) -> bool:
    """Check the database, and repair it if it is a restored copy; return whether its audit is clean.

    Raises RestoreRefused, ProgramFailed or BrokerUnavailable, and the errors of the driver and of `migrate`.
    """
    url = settings.database_url.get_secret_value()
    if options.source is not None:
        await _restore(settings, options.source, options, say)
        if options.dry_run:
            return True
    connection = await connect_as("turnstile restore-check", url)
    try:
        if not await connection.fetchval(_HAS_TABLES):
            raise RestoreRefused(
                "the database has no tables of Turnstile; restore a dump with --from FILE, or create a new "
                "installation with 'executor migrate'"
            )
        reason = await _reason(connection, options)
        if reason is None:
            say("healthy", "This database is not a restored copy: nothing is to be done, nothing was changed")
            return await _audit(url, say)
        say("restored", f"This database is a restored copy: {reason}")
        await _refuse_running_services(connection)
        if options.source is None and not options.dry_run:
            options.confirm()
        return await _make_safe(connection, settings, options, say)
    finally:
        await connection.close()


async def _restore(settings: ExecutorSettings, source: Path, options: RestoreOptions, say: Say) -> None:
    url = settings.database_url.get_secret_value()
    connection = await connect_as("turnstile restore-check", url)
    try:
        if await connection.fetchval(_HAS_TABLES):
            raise RestoreRefused(
                "--from: the database already contains tables of Turnstile, and was not changed; name an "
                "empty database in TURNSTILE_DATABASE_URL, or leave --from out to check this one"
            )
        version = await server_version(connection)
    finally:
        await connection.close()
    program = await find_program("pg_restore", folder=options.postgresql_bin, server_version=version)
    await check_dump(program, source)
    if options.dry_run:
        say("would", f"restore {source} into this empty database, and then make the copy safe")
        return
    async with restore_broker(settings.amqp_url.get_secret_value()) as broker:
        await _idle_queues(broker)
    options.confirm()
    await restore(program, url, file=source)
    say("done", f"{source} was restored")


async def _reason(connection: "Connection", options: RestoreOptions) -> str | None:
    """Return why the database counts as a restored copy; None if it does not."""
    if options.source is not None:
        return "this command has just restored it"
    if options.is_restored:
        return "--restored says so"
    recorded = await recorded_origin(connection)
    if recorded is None:
        return "it does not say where it was created, as in a backup from an earlier version of Turnstile"
    return next(iter(changes_of_origin(recorded, await present_origin(connection))), None)


async def _refuse_running_services(connection: "Connection") -> None:
    """Raise RestoreRefused unless all services are stopped; sessions that just ended may take a moment."""
    deadline = asyncio.get_running_loop().time() + _SESSIONS_END_SECONDS
    while sessions := await connection.fetch(_STATEMENTS["service_sessions"]):
        if asyncio.get_running_loop().time() >= deadline:
            named = ", ".join(sorted({f"{row['application_name']} (pid {row['pid']})" for row in sessions}))
            raise RestoreRefused(
                f"executors use this database: {named}; nothing was changed; stop all of them, "
                "and run this command again before you start them"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _make_safe(
    connection: "Connection", settings: ExecutorSettings, options: RestoreOptions, say: Say
) -> bool:
    url = settings.database_url.get_secret_value()
    if not await is_current(url):
        if options.dry_run:
            say("would", "migrate its schema to this version first; only then the other steps are known")
            return True
        await migrate(url)
        say("done", "its schema was migrated to this version")
    async with restore_broker(settings.amqp_url.get_secret_value()) as broker:
        state = await _read_state(connection)
        _describe(state, say)
        first_id = _checked_first_id(state, options)
        counts = await _idle_queues(broker)
        if options.dry_run:
            _say_plan(state, first_id, counts, say)
            return await _audit_copy(url, say)
        async with connection.transaction():
            await connection.execute(_LOCK)
            await _purge(broker, counts, say)
            await connection.execute(_STATEMENTS["skip_executions"], first_id)
            await connection.execute(_STATEMENTS["skip_others"], first_id - state.reserved_id)
            await connection.execute(_STATEMENTS["skip_actions"], _ACTIONS_MAX)
            await connection.execute(grants_sql())
            await record_origin(connection)
            await connection.execute(_STATEMENTS["note"], *DIRECTLY, first_id)
    # A dump has no statistics, and without them the audit of a long history does not end in time.
    await connection.execute("ANALYZE")
    say("done", f"ids continue with {first_id:,}: the next execution has this id")
    say("done", "the origin of the database was renewed")
    is_clean = await _audit_copy(url, say)
    _say_next(state, say)
    return is_clean


async def _read_state(connection: "Connection") -> RestoredState:
    row = await connection.fetchrow(_STATEMENTS["state"])
    assert row is not None
    return RestoredState(**row)


def _describe(state: RestoredState, say: Say) -> None:
    age = format_duration(round(max((state.at - state.newest_at).total_seconds(), 0.0)))
    say(
        "found",
        f"its newest execution, #{state.last_id}, is of {state.newest_at:%Y-%m-%d %H:%M:%S} UTC, {age} ago",
    )
    say(
        "found",
        f"executions in it: {state.summary()}",
    )


def _checked_first_id(state: RestoredState, options: RestoreOptions) -> int:
    if options.first_id is None:
        return next_id(state)
    if not state.reserved_id <= options.first_id <= _ID_MAX:
        raise RestoreRefused(
            f"--first-id: {options.first_id} must be above {state.reserved_id - 1}, the highest id that was "
            f"reserved in this copy, and above every id that the original assigned later; at most {_ID_MAX}"
        )
    return options.first_id


async def _idle_queues(broker: RestoreBroker) -> list[QueueCounts]:
    """Return the queues; raises RestoreRefused while a service consumes one of them."""
    names = [EXECUTOR_REQUESTS, *ABOUT_EXECUTIONS]
    deadline = asyncio.get_running_loop().time() + _SESSIONS_END_SECONDS
    while True:
        counts = await broker.counts(names)
        if not any(queue.consumers for queue in counts):
            return counts
        if asyncio.get_running_loop().time() >= deadline:
            named = ", ".join(queue.name for queue in counts if queue.consumers)
            raise RestoreRefused(
                f"executors consume {named}, perhaps with another database; nothing was changed; "
                "stop all services of this vhost, and run this command again before you start them"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _purge(broker: RestoreBroker, counts: Sequence[QueueCounts], say: Say) -> None:
    for queue in counts:
        if queue.name == EXECUTOR_REQUESTS:
            say("kept", f"{queue.name}: {_messages(queue.messages)}, which executors will admit")
        elif purged := await broker.purge(queue.name):
            say("done", f"{queue.name}: {_messages(purged)} purged")


def _say_plan(state: RestoredState, first_id: int, counts: Sequence[QueueCounts], say: Say) -> None:
    for queue in counts:
        if queue.name == EXECUTOR_REQUESTS:
            say("would", f"keep {_messages(queue.messages)} in {queue.name}, which executors will admit")
        elif queue.messages:
            say("would", f"purge {_messages(queue.messages)} in {queue.name}")
    say("would", f"let ids continue with {first_id:,}: {first_id - state.reserved_id:,} are skipped")
    say("would", "renew the origin of the database")


def _say_next(state: RestoredState, say: Say) -> None:
    if not state.has_roles:
        say("next", "run 'executor setup-permissions': this server has no roles for the services")
    say("next", "start executors, then workers")
    if state.running:
        say(
            "next",
            f"what was running ({state.running}) is reclaimed one lease after the first executor starts, and "
            "runs again",
        )
    say("next", "run 'executor audit' a minute later; it must report no violations")


async def _audit_copy(url: str, say: Say) -> bool:
    """Audit without the checks for lateness: no executor has led since the backup."""
    return await _audit(url, say, late_seconds=_FOREVER_SECONDS)


async def _audit(url: str, say: Say, *, late_seconds: float = _LATE_SECONDS) -> bool:
    if not await is_current(url):
        say("audit", "left out: 'executor migrate' of this version did not run yet")
        return True
    database = Database(url, application_name="turnstile restore-check", connections_max=1)
    try:
        async with asyncio.timeout(_AUDIT_SECONDS):
            await database.open()
            report = await _report(Auditor(database, late_seconds=late_seconds), say)
    finally:
        await database.close()
    for check in report.checks:
        if check.faults:
            ids = ", ".join(str(example.id) for example in check.examples)
            say("wrong", f"{check.says}: {check.faults} violations ({check.subject} {ids})")
    if report.clean:
        say("audit", "no violations")
    return report.clean


async def _report(auditor: Auditor, say: Say) -> AuditReport:
    try:
        return await auditor.audit(examples_max=3)
    except Unavailable:
        say("audit", "the history was left out, because it is too long; 'executor audit' may check it later")
        return await auditor.audit(record=False, examples_max=3)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
