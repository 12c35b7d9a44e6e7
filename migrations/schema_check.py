"""Decides whether a service of this version can use the schema of a database.

In: a connection of the executor's account. Out: the version that was found, and what to do about it.
Two adjacent versions run side by side during an upgrade, so a newer schema, and functions of another version
beside the same tables, are used, and reported; unless they lack what a statement names.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from turnstile.common.database import MISSING_SCHEMA, SchemaState
from turnstile.common.statements import SCHEMA, protocol_hash

if TYPE_CHECKING:
    from turnstile.common.database import Connection

_INSTALLED: Final = "SELECT to_regclass('public.alembic_version') IS NOT NULL"
_VERSION: Final = """
SELECT version_num, coalesce(obj_description(to_regnamespace($1), 'pg_namespace'), '') AS functions
FROM public.alembic_version
"""
_OTHER_FUNCTIONS: Final = "the database has the functions of another version"


class SchemaVersion(NamedTuple):
    """What a database has."""

    revision: str | None
    """None: no schema."""
    other_functions: str | None = None
    """The hash of its functions, where they are not those of this version."""

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
    def is_newer(self) -> bool:
        """Whether a newer version migrated it."""
        return self.revision is not None and self.revision not in _revisions()[1]

    @property
    def notice(self) -> str | None:
        """What a user should know though it can be used."""
        if self.trouble is not None:
            return None
        if self.is_newer:
            return f"{self._newer}: upgrade this service"
        if self.other_functions is not None:
            return (
                f"{_OTHER_FUNCTIONS}, for the same tables: run 'executor migrate' of the newest version, and "
                "upgrade the services of older ones"
            )
        return None

    @property
    def trouble_if_lacking(self) -> str:
        """Why services of this version cannot use it if something that a statement names is not there."""
        if self.is_newer:
            return f"{self._newer}, and lacks what this version needs: upgrade this service"
        return (
            f"{_OTHER_FUNCTIONS}, which lack what this version needs: run 'executor migrate', or upgrade "
            "this service if a newer version migrated the database"
        )

    @property
    def _newer(self) -> str:
        return f"the schema of the database is newer ({self.revision}) than this version"

    @property
    def state(self) -> SchemaState:
        """What it means for a service of this version."""
        return SchemaState(
            trouble=self.trouble,
            notice=self.notice,
            is_newer=self.is_newer,
            other_functions=self.other_functions,
            trouble_if_lacking=self.trouble_if_lacking,
        )


async def schema_version(connection: "Connection") -> SchemaVersion:
    """Read which version a database has."""
    if not await connection.fetchval(_INSTALLED):
        return SchemaVersion(None)
    row = await connection.fetchrow(_VERSION, SCHEMA)
    if row is None:
        return SchemaVersion(None)
    functions = row["functions"]
    return SchemaVersion(row["version_num"], None if functions == protocol_hash() else functions)


async def schema_state(connection: "Connection") -> SchemaState:
    """Return what the schema of a database means for an executor of this version."""
    return (await schema_version(connection)).state


@cache
def _revisions() -> tuple[str, frozenset[str]]:
    """Return the newest revision that this version knows, and all of them.

    Their files are named for them: to load Alembic for it would take a quarter of a service's start.
    """
    files = (Path(__file__).parent / "versions").glob("[0-9]*_*.py")
    known = sorted(file.name.partition("_")[0] for file in files)
    return known[-1], frozenset(known)
