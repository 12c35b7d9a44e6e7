"""The database of an executor: read once, judged by `CHECKS`."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from turnstile.common.database import CONNECTION_ERRORS, READ_ONLY, DatabaseHosts, reason_of
from turnstile.common.database_session import SETTINGS
from turnstile.executor.doctor.findings import FAILED, Checks, Facts, NotChecked, Verdict
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.ports import OutcomeUnknown
from turnstile.executor.permissions.rights import table_privileges
from turnstile.executor.settings import LEADER_CONNECTIONS, ExecutorSettings
from turnstile.executor.sql import statements
from turnstile.executor.stored_tokens import AUDIT_LOG_RIGHTS, changeable_audit_log
from turnstile.migrations.schema_check import database_trouble, schema_version

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

_CONNECT_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 3.0
_OLDEST: Final = 15
_CLOCK_SECONDS: Final = 1.0
_SQL: Final = "doctor/database.sql"
_ERRORS: Final = (*CONNECTION_ERRORS, asyncpg.PostgresError, OutcomeUnknown)


async def read_database(facts: Facts, settings: ExecutorSettings) -> None:
    """Add what a session of this executor finds. Raises NotChecked."""
    url = settings.database_url.get_secret_value()
    facts["needed"] = settings.database_connections + LEADER_CONNECTIONS
    try:
        connection: Connection = await DatabaseHosts(url, connect_seconds=_CONNECT_SECONDS).connect(
            command_timeout=_CALL_SECONDS, server_settings={"application_name": "turnstile doctor"}
        )
    except _ERRORS as error:
        facts.fault = reason_of(error)
        raise NotChecked("the database cannot be used") from error
    try:
        await _read(facts, connection, has_tokens=settings.accepted_tokens().required)
        facts["leads"] = await _has_leader(url)
    except _ERRORS as error:
        facts.fault = reason_of(error)
        raise NotChecked("the database does not answer") from error
    finally:
        with suppress(*_ERRORS):
            await connection.close(timeout=1.0)


async def _read(facts: Facts, connection: "Connection", *, has_tokens: bool) -> None:
    facts["major"] = connection.get_server_version().major
    if facts["major"] < _OLDEST:
        raise NotChecked("the server is too old")
    sql = statements(_SQL)
    before, now = time.time(), await connection.fetchval("SELECT clock_timestamp()")
    facts["slack_seconds"] = (time.time() - before) / 2
    facts["ahead_seconds"] = now.timestamp() - before - facts["slack_seconds"]
    facts.update(dict(await connection.fetchrow(sql["surroundings"]) or {}))
    facts["is_pooled"] = facts["pid"] != connection.get_server_pid()
    settings = await connection.fetch(sql["settings"], [*SETTINGS])
    facts["settings"] = {row["name"]: row["setting"] for row in settings}
    facts["unsuited"] = await database_trouble(connection)
    needed = table_privileges()
    facts["closed"] = await connection.fetchval(
        sql["closed"], [*needed.privileges], [*needed.but], [*needed.kept]
    )
    if facts["closed"] is not None:
        raise NotChecked("the role may not use the tables")
    facts["schema"] = await schema_version(connection)
    if facts["schema"].trouble is not None:
        raise NotChecked("the schema does not suit")
    rights = await connection.fetchrow(AUDIT_LOG_RIGHTS)
    facts["changeable"] = changeable_audit_log(dict(rights or {}), has_tokens=has_tokens)
    facts["dropped"] = {row["code"]: row["number"] for row in await connection.fetch(sql["dropped"])}


async def _has_leader(url: str) -> bool:
    """Ask as an executor does that may take over."""
    ledger = Ledger(url)
    try:
        return not (await ledger.leader_seen())[1]
    finally:
        await ledger.close()


def _reachable(facts: Facts) -> Verdict:
    if facts.fault is not None:
        return FAILED, facts.fault
    through = "through a connection pooler in session mode" if facts["is_pooled"] else "without a pooler"
    return "ok", f"the server answers, {through}"


def _version(facts: Facts) -> Verdict:
    if facts["major"] < _OLDEST:
        return FAILED, f"PostgreSQL {facts['major']} is too old: upgrade the server to {_OLDEST} or newer"
    return "ok", facts["version"]


def _primary(facts: Facts) -> Verdict:
    return (FAILED, READ_ONLY) if facts["is_standby"] else ("ok", "the server takes writes")


def _content(facts: Facts) -> Verdict:
    trouble = facts["unsuited"]
    return ("ok", "every text can be stored, and triggers run") if trouble is None else (FAILED, trouble)


def _session(facts: Facts) -> Verdict:
    differing = [name for name, wanted in SETTINGS.items() if facts["settings"].get(name) != wanted]
    if differing:
        return FAILED, (
            f"sessions do not keep what they set ({', '.join(differing)}): name host and port of the server "
            "itself, not of a proxy, in TURNSTILE_DATABASE_URL"
        )
    return "ok", "sessions keep what they set"


def _schema(facts: Facts) -> Verdict:
    found = facts["schema"]
    if found.trouble is not None:
        return FAILED, found.trouble
    return ("warning", found.notice) if found.notice is not None else ("ok", f"revision {found.revision}")


def _rights(facts: Facts) -> Verdict:
    if (right := facts["closed"]) is not None:
        return FAILED, (
            f"the role {facts['role']} lacks the right {right}: run 'executor setup-permissions', and "
            "connect with the account in its executor.env"
        )
    return "ok", f"the role {facts['role']} may use the tables"


def _audit_log(facts: Facts) -> Verdict:
    reason = facts["changeable"]
    return (
        ("ok", "no row can be changed, or callers have no names") if reason is None else ("warning", reason)
    )


def _connections(facts: Facts) -> Verdict:
    needed = facts["needed"]
    free = facts["connections_max"] - facts["connections"]
    limits = [each for each in (facts["database_limit"], facts["role_limit"]) if each is not None]
    if limits and min(limits) < needed:
        return "warning", (
            f"role or database may have {min(limits)} connections, and one executor opens up to {needed}: "
            f"ALTER ROLE {facts['role']} CONNECTION LIMIT -1, ALTER DATABASE {facts['database']} CONNECTION "
            "LIMIT -1, or lower TURNSTILE_DATABASE_CONNECTIONS"
        )
    if free < needed:
        return "warning", (
            f"the server has {free} of {facts['connections_max']} connections free, and one more executor "
            f"opens up to {needed}: raise max_connections of the server, or limit other roles"
        )
    return "ok", f"{free} connections are free; one executor opens up to {needed}"


def _collation(facts: Facts) -> Verdict:
    database, recorded, present = facts["database"], facts["collation_version"], facts["library_version"]
    if recorded != present and recorded is not None:
        return "warning", (
            f"the database was created with version {recorded} of its collation, and the server has "
            f"{present}, so that indexes of texts may be wrong: REINDEX DATABASE {database}, then "
            f"ALTER DATABASE {database} REFRESH COLLATION VERSION"
        )
    return "ok", "the collation is that with which the database was created"


def _durability(facts: Facts) -> Verdict:
    off = [name for name in ("fsync", "full_page_writes") if facts[name] == "off"]
    if off:
        return "warning", (
            f"{' and '.join(off)} off: a crash of the server may lose what was acknowledged, or the whole "
            f"database: set {' and '.join(f'{name} = on' for name in off)} in postgresql.conf, and reload"
        )
    return "ok", "a commit survives a crash of the server"


def _clock(facts: Facts) -> Verdict:
    ahead = facts["ahead_seconds"]
    if abs(ahead) - facts["slack_seconds"] > _CLOCK_SECONDS:
        return "warning", (
            f"the clock of the database is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this "
            "host's: synchronise both, for instance with chrony"
        )
    return "ok", f"the clocks of the database and of this host differ by less than {_CLOCK_SECONDS:g} s"


def _leader(facts: Facts) -> Verdict:
    if not facts["leads"]:
        return "warning", "no executor leads, so nothing is decided: start one with 'executor serve'"
    return "ok", "an executor leads"


def _dropped(facts: Facts) -> Verdict:
    found: dict[str, Any] = facts["dropped"]
    if found:
        numbers = ", ".join(f"{number} {code}" for code, number in sorted(found.items()))
        replays = " and ".join(f"'executor dead-letters replay --code {code}'" for code in sorted(found))
        return "warning", (
            f"a policy of the broker has dropped messages ({numbers}): remove the policy ('rabbitmqctl "
            f"list_policies'), then {replays}"
        )
    return "ok", "no message was dropped by a policy"


CHECKS: Final[Checks] = {
    "database": _reachable,
    "server version": _version,
    "primary": _primary,
    "encoding and triggers": _content,
    "session settings": _session,
    "database rights": _rights,
    "schema": _schema,
    "audit log": _audit_log,
    "connections": _connections,
    "collation": _collation,
    "durability": _durability,
    "clock": _clock,
    "leader": _leader,
    "dropped messages": _dropped,
}
