"""The services' roles in PostgreSQL.

In: the URL of the tables' owner, who may create roles, and the plan. Out: the group `turnstile_executor` with
its rights (`rights.sql`), and an account in it; the group `turnstile_submitter`, to which an operator adds
accounts. Roles belong to the server and not to a database, so the comment of each account names the database
that it is for. The changes are one transaction: all of them, or none.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from turnstile.common.database import DatabaseHosts
from turnstile.common.requests import json_text
from turnstile.executor.callers import DIRECTLY
from turnstile.executor.permissions.credentials import Login, scram_verifier, url_of
from turnstile.executor.permissions.plan import AccountChange, AccountStep, Check, Installation, Source, Users

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

GROUPS: Final = {"executor": "turnstile_executor"}
"""The groups of the services that use the database."""
_TIMEOUT_SECONDS: Final = 30.0
_SET: Final = "SELECT set_config('turnstile.' || $1, $2, true)"
_PURPOSE: Final = "Turnstile: {service} of the database {database}"
_PURPOSE_READ: Final = re.compile(r"Turnstile: \w+ of the database (?P<database>.+)", re.DOTALL)
_ADMIN_OPTION_SINCE: Final = 16
_MAY_CREATE: Final = "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = session_user"
_HAS_TABLES: Final = "SELECT to_regclass('ledger.execution') IS NOT NULL"
_NOTE: Final = (
    "INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, before, after)"
    " VALUES ($1, $2, $3, $4, 'account', $5, '{}', $6)"
)
_LOGGED: Final = {AccountChange.CREATE: "created", AccountChange.ROTATE: "rotated"}


class SetupRefused(Exception):
    """The server cannot be set up; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What the database server has of the accounts that may be used."""

    database: str
    """The name of the connected database."""
    users: Users


async def read_roles(database_url: str, names: Collection[str]) -> Roles:
    """Return which accounts exist; raises SetupRefused, OSError or asyncpg.PostgresError."""
    async with _connected(database_url) as connection:
        if not await connection.fetchval(_HAS_TABLES):
            raise SetupRefused("the database has no tables of Turnstile yet; run 'executor migrate' first")
        user = await connection.fetchval("SELECT session_user::text")
        if user in {*names, *GROUPS.values()}:
            raise SetupRefused(f"{user!r} is the account of a service; connect as the owner of the tables")
        rows = await connection.fetch(_text("present_roles.sql"), list(names))
        if {*names} - {row["name"] for row in rows} and not await connection.fetchval(_MAY_CREATE):
            quoted = await connection.fetchval("SELECT quote_ident(session_user)")
            raise SetupRefused(
                f"{user!r} may not create roles; as a superuser run: ALTER ROLE {quoted} CREATEROLE"
            )
        return Roles(
            database=await connection.fetchval("SELECT current_database()::text"),
            users={row["name"]: _users(row["comment"], row["databases"]) for row in rows},
        )


async def check_password(database_url: str, login: Login) -> Check:
    """Return whether the account has this password, by an attempt to connect."""
    if login.source is Source.NEW:
        return "other"
    try:
        async with _connected(url_of(login, database_url)):
            return "same"
    except asyncpg.InvalidPasswordError:
        return "other"
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return "unknown"


async def change_roles(
    database_url: str, installation: Installation, steps: Sequence[AccountStep], logins: Mapping[str, Login]
) -> None:
    """Create and change roles as planned, give them their rights, and record all steps in the audit log.

    `logins` are by service. Raises SetupRefused, OSError or asyncpg.PostgresError.
    """
    async with _connected(database_url) as connection:
        try:
            async with connection.transaction():
                for step in steps:
                    if step.server == "database":
                        await _change(connection, installation.database, step, logins[step.service])
                await connection.execute(_text("submitters.sql"))
                await connection.execute(rights_text())
                await _log(connection, steps)
        except (asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError) as error:
            raise SetupRefused(
                f"{error}: another command created it at the same time; run it again"
            ) from None
        except asyncpg.InsufficientPrivilegeError as error:
            raise SetupRefused(f"{error}; {await _remedy(connection)}") from None


async def _change(connection: "Connection", database: str, step: AccountStep, login: Login) -> None:
    is_kept = step.change is AccountChange.KEEP
    settings = {
        "group": GROUPS[step.service],
        "login": step.name,
        "creates": str(step.change is AccountChange.CREATE).lower(),
        "verifier": "" if is_kept else scram_verifier(login.password),
        "purpose": "" if step.is_shared else _PURPOSE.format(service=step.service, database=database),
    }
    for name, value in settings.items():
        await connection.execute(_SET, name, value)
    await connection.execute(_text("roles.sql"))


async def _log(connection: "Connection", steps: Sequence[AccountStep]) -> None:
    """Record the accounts of both servers."""
    for step in steps:
        if step.change in _LOGGED:
            after = json_text({"server": step.server})
            await connection.execute(_NOTE, *DIRECTLY, _LOGGED[step.change], step.name, after)


async def _remedy(connection: "Connection") -> str:
    user = await connection.fetchval("SELECT quote_ident(session_user)")
    remedy = "connect as the owner of the tables, with the attribute CREATEROLE"
    if connection.get_server_version().major < _ADMIN_OPTION_SINCE:
        return remedy
    groups = ", ".join(GROUPS.values())
    return f"{remedy}; if another role created the groups: GRANT {groups} TO {user} WITH ADMIN OPTION"


@asynccontextmanager
async def _connected(database_url: str) -> AsyncIterator["Connection"]:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        hosts = DatabaseHosts(database_url, connect_seconds=_TIMEOUT_SECONDS)
        connection: Connection = await hosts.connect()
        try:
            yield connection
        finally:
            await connection.close()


def rights_text() -> str:
    """Return the statements that give the groups their rights, where these exist."""
    return _text("rights.sql")


def _users(comment: str | None, databases: Collection[str]) -> frozenset[str]:
    named = _PURPOSE_READ.fullmatch(comment or "")
    return frozenset({named["database"]}) if named else frozenset(databases)


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
