"""The services' roles in PostgreSQL.

In: the URL of the tables' owner, who may create roles, and the accounts. Out: the groups
`turnstile_executor` and `turnstile_worker` with their rights (`common/sql/permissions.sql`), and an account
in each. Owns one transaction: all of it, or nothing.
"""

import asyncio
from collections.abc import Sequence
from importlib import resources
from typing import Final

import asyncpg

from turnstile.common.statements import EXECUTOR_ROLE, SCHEMA, WORKER_ROLE, permissions_text
from turnstile.common.urls import driver_url
from turnstile.executor.permissions.credentials import Login, scram_verifier

GROUPS: Final = {"executor": EXECUTOR_ROLE, "worker": WORKER_ROLE}
_TIMEOUT_SECONDS: Final = 30.0
_SET: Final = "SELECT set_config('turnstile.' || $1, $2, true)"


class SetupRefused(Exception):
    """The server cannot be set up; the message says what to do."""


async def set_up_roles(database_url: str, logins: Sequence[Login]) -> None:
    """Create the roles and give them their rights; raises SetupRefused, OSError or asyncpg.PostgresError."""
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        connection = await asyncpg.connect(driver_url(database_url))
        try:
            async with connection.transaction():
                await _check(connection, logins)
                for login in logins:
                    await _create(connection, login)
                await connection.execute(permissions_text())
        finally:
            await connection.close()


async def _check(connection: "asyncpg.Connection[asyncpg.Record]", logins: Sequence[Login]) -> None:
    if await connection.fetchval("SELECT to_regnamespace($1)", SCHEMA) is None:
        raise SetupRefused("the database has no tables of Turnstile yet; run 'executor migrate' first")
    user = await connection.fetchval("SELECT session_user::text")
    if user in {login.name for login in logins} | {*GROUPS.values()}:
        raise SetupRefused(f"{user!r} is the account of a service; connect as the owner of the tables")


async def _create(connection: "asyncpg.Connection[asyncpg.Record]", login: Login) -> None:
    settings = {
        "group": GROUPS[login.service],
        "login": login.name,
        "verifier": scram_verifier(login.password),
    }
    for name, value in settings.items():
        await connection.execute(_SET, name, value)
    await connection.execute(resources.files(__package__).joinpath("roles.sql").read_text(encoding="utf-8"))
