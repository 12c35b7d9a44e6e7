"""The services' roles in PostgreSQL.

In: the URL of the tables' owner, who may create roles, and the plan. Out: the groups with their rights
(`rights`), and an account in that of the executors; to the group of submitters an operator adds accounts.
Roles belong to the server and not to a database, so the comment of each account names the database that it is
for. The changes are one transaction: all of them, or none.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import asyncpg

from turnstile.common.database import DatabaseHosts
from turnstile.common.requests import json_text
from turnstile.executor.callers import DIRECTLY
from turnstile.executor.permissions.credentials import Login, scram_verifier, url_of
from turnstile.executor.permissions.plan import (
    AccountChange,
    AccountStep,
    Check,
    Installation,
    Present,
    SetupRefused,
    Source,
)
from turnstile.executor.permissions.rights import GROUPS, grants_sql
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

_TIMEOUT_SECONDS: Final = 30.0
_PURPOSE: Final = "Turnstile: {service} of the database {database}"
_PURPOSE_READ: Final = re.compile(r"Turnstile: \w+ of the database (?P<database>.+)", re.DOTALL)
_ADMIN_OPTION_SINCE: Final = 16
_SQL: Final = statements("permissions/roles.sql")
_LOGGED: Final = {AccountChange.CREATE: "created", AccountChange.ROTATE: "rotated"}


class Roles(NamedTuple):
    """What the database server has of the accounts that may be used."""

    database: str
    """The name of the connected database."""
    present: Mapping[str, Present]
    """By service."""


async def read_roles(database_url: str, logins: Sequence[Login]) -> Roles:
    """Return which accounts exist; raises SetupRefused, OSError or asyncpg.PostgresError."""
    names = {login.name: login for login in logins}
    async with _connected(database_url) as connection:
        server = await connection.fetchrow(_SQL["server"])
        assert server is not None
        if not server["has_tables"]:
            raise SetupRefused("the database has no tables of Turnstile yet; run 'executor migrate' first")
        user = server["user"]
        if user in {*names, *GROUPS.values()}:
            raise SetupRefused(f"{user!r} is the account of a service; connect as the owner of the tables")
        rows = await connection.fetch(_SQL["present"], list(names))
        if len(rows) < len(names) and not server["may_create"]:
            raise SetupRefused(
                f"{user!r} may not create roles; as a superuser run: ALTER ROLE {server['quoted']} CREATEROLE"
            )
    present = {}
    for row in rows:
        login, named = names[row["name"]], _PURPOSE_READ.fullmatch(row["comment"] or "")
        users = frozenset({named["database"]}) if named else frozenset(row["databases"])
        present[login.service] = Present(users=users, password=await _check(database_url, login))
    return Roles(server["database"], present)


async def _check(database_url: str, login: Login) -> Check:
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
                for group in GROUPS.values():
                    await _run(connection, "group", group=group)
                for step in steps:
                    if step.server == "database":
                        await _change(connection, installation.database, step, logins[step.service])
                await connection.execute(grants_sql())
                for step in steps:
                    if (verb := _LOGGED.get(step.change)) is not None:
                        after = json_text({"server": step.server})
                        await connection.execute(_SQL["note"], *DIRECTLY, verb, step.name, after)
        except (asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError) as error:
            raise SetupRefused(
                f"{error}: another command created it at the same time; run it again"
            ) from None
        except asyncpg.InsufficientPrivilegeError as error:
            raise SetupRefused(f"{error}; {await _remedy(connection)}") from None


async def _change(connection: "Connection", database: str, step: AccountStep, login: Login) -> None:
    is_kept = step.change is AccountChange.KEEP
    await _run(
        connection,
        "account",
        group=GROUPS[step.service],
        login=step.name,
        creates=str(step.change is AccountChange.CREATE).lower(),
        verifier="" if is_kept else scram_verifier(login.password),
        purpose="" if step.is_shared else _PURPOSE.format(service=step.service, database=database),
    )


async def _run(connection: "Connection", statement: str, **settings: str) -> None:
    """Run a statement that takes settings of the transaction in place of parameters."""
    for name, value in settings.items():
        await connection.execute("SELECT set_config('turnstile.' || $1, $2, true)", name, value)
    await connection.execute(_SQL[statement])


async def _remedy(connection: "Connection") -> str:
    user = await connection.fetchval("SELECT quote_ident(session_user)")
    remedy = "connect as the owner of the tables, with the attribute CREATEROLE"
    if connection.get_server_version().major < _ADMIN_OPTION_SINCE:
        return remedy
    group = GROUPS["executor"]
    return f"{remedy}; if another role created the group: GRANT {group} TO {user} WITH ADMIN OPTION"


@asynccontextmanager
async def _connected(database_url: str) -> AsyncIterator["Connection"]:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        hosts = DatabaseHosts(database_url, connect_seconds=_TIMEOUT_SECONDS)
        connection: Connection = await hosts.connect()
        try:
            yield connection
        finally:
            await connection.close()
