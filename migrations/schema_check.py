"""Decides whether a service of this version can use a database and its schema.

In: a connection of the executor's account. Out: what was found, and what to do about it.
Two adjacent versions run side by side during an upgrade, so a newer schema is used, and reported.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from turnstile.common.database import MISSING_SCHEMA, SchemaState

if TYPE_CHECKING:
    import asyncpg

    from turnstile.common.database import Connection

_INSTALLED: Final = "SELECT to_regclass('public.alembic_version') IS NOT NULL"
_REVISION: Final = "SELECT version_num FROM public.alembic_version"

_UNSETTABLE: Final = """
SELECT current_setting('server_encoding') AS encoding,
       current_setting('session_replication_role') AS replication_role,
       to_regnamespace('public') IS NOT NULL AS has_public,
       quote_ident(current_database()) AS database, quote_ident(session_user) AS role
"""


class SchemaVersion(NamedTuple):
    """What a database has."""

    revision: str | None
    """None: no schema."""

    @property
    def trouble(self) -> str | None:
        """Why services of this version cannot use it, with the remedy."""
        newest, known = _revisions()
        if self.revision is None:
            return MISSING_SCHEMA
        if self.revision != newest and self.revision in known:
            return (
                f"the schema of the database is older ({self.revision}) than this version needs ({newest}): "
                "run 'executor migrate'"
            )
        return None

    @property
    def notice(self) -> str | None:
        """What a user should know though it can be used."""
        if self.revision is None or self.revision in _revisions()[1]:
            return None
        return (
            f"the schema of the database is newer ({self.revision}) than this version: upgrade this service"
        )


async def schema_version(connection: "asyncpg.Connection[asyncpg.Record] | Connection") -> SchemaVersion:
    """Read which version a database has."""
    if not await connection.fetchval(_INSTALLED):
        return SchemaVersion(None)
    return SchemaVersion(await connection.fetchval(_REVISION))


async def database_trouble(connection: "asyncpg.Connection[asyncpg.Record] | Connection") -> str | None:
    """Return why a database cannot be used, whatever its schema, with the remedy; None: it can.

    What a session can set by itself is no trouble.
    """
    found = await connection.fetchrow(_UNSETTABLE)
    assert found is not None
    database, role = found["database"], found["role"]
    if found["encoding"] != "UTF8":
        return (
            f"the database {database} has the encoding {found['encoding']}, which cannot store every text: "
            "CREATE DATABASE turnstile TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C', and name it in "
            "TURNSTILE_DATABASE_URL"
        )
    if not found["has_public"]:
        return (
            f"the database {database} has no schema named public: CREATE SCHEMA public, or "
            "if it was renamed, ALTER SCHEMA its_name RENAME TO public"
        )
    if found["replication_role"] == "replica":
        return (
            f"session_replication_role is 'replica' for the role {role}, so that no trigger runs: "
            f"ALTER ROLE {role} RESET session_replication_role, or ALTER DATABASE {database} RESET "
            "session_replication_role, and restart the executor"
        )
    return None


async def schema_state(connection: "Connection") -> SchemaState:
    """Return what a database and its schema mean for an executor of this version."""
    version = await schema_version(connection)
    trouble = await database_trouble(connection) or version.trouble
    return SchemaState(trouble=trouble, notice=version.notice)


@cache
def _revisions() -> tuple[str, frozenset[str]]:
    """Return the newest revision that this version knows, and all of them.

    Their files are named for them: to load Alembic for it would take a quarter of a service's start.
    """
    files = (Path(__file__).parent / "versions").glob("[0-9]*_*.py")
    known = sorted(file.name.partition("_")[0] for file in files)
    return known[-1], frozenset(known)
