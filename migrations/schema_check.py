"""Decides whether a service of this version can use the schema of a database.

In: a connection of the executor's account. Out: the version that was found, and what to do about it.
Two adjacent versions run side by side during an upgrade, so a newer schema is used, and reported.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from turnstile.common.database import MISSING_SCHEMA, SchemaState

if TYPE_CHECKING:
    from turnstile.common.database import Connection

_INSTALLED: Final = "SELECT to_regclass('public.alembic_version') IS NOT NULL"
_REVISION: Final = "SELECT version_num FROM public.alembic_version"


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


async def schema_version(connection: "Connection") -> SchemaVersion:
    """Read which version a database has."""
    if not await connection.fetchval(_INSTALLED):
        return SchemaVersion(None)
    return SchemaVersion(await connection.fetchval(_REVISION))


async def schema_state(connection: "Connection") -> SchemaState:
    """Return what the schema of a database means for an executor of this version."""
    version = await schema_version(connection)
    return SchemaState(trouble=version.trouble, notice=version.notice)


@cache
def _revisions() -> tuple[str, frozenset[str]]:
    """Return the newest revision that this version knows, and all of them.

    Their files are named for them: to load Alembic for it would take a quarter of a service's start.
    """
    files = (Path(__file__).parent / "versions").glob("[0-9]*_*.py")
    known = sorted(file.name.partition("_")[0] for file in files)
    return known[-1], frozenset(known)
