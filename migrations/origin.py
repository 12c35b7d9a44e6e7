"""The origin of a database: the place where its state was last known to be complete.

In: a connection to a primary. Out: a text that names the server, its timeline, the database and its tables.
`migrate` records it once, as a comment in the database, so a backup carries it along. A restored copy is at
another place than it says, which is how `executor restore-check` recognises the copy.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

_PREFIX: Final = "origin "
_RECORDED: Final = "SELECT obj_description(to_regclass('ledger.execution'), 'pg_class')"
_UNKNOWN: Final = "unknown"
_PLACE: Final = (
    "SELECT system_identifier::text FROM pg_control_system()",
    # The timeline of the WAL, since the control file has a new one only after the next checkpoint.
    "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)",
    "SELECT d.oid::text FROM pg_database d WHERE d.datname = current_database()",
    "SELECT 'ledger.execution'::regclass::oid::text",
)
_CHANGES: Final = (
    "it is on another PostgreSQL server than before: a restored dump, or a server upgraded by copying",
    "its server was restored from a backup, or is a promoted standby",
    "it is another database of the server than before: a restored dump, or a copy",
    "its tables were created again since: a restored dump",
)
"""What a difference in each part of an origin means."""


async def recorded_origin(connection: "Connection") -> str | None:
    """Return the origin that the database carries; None where it was never recorded."""
    comment: str | None = await connection.fetchval(_RECORDED)
    return comment.removeprefix(_PREFIX) if comment and comment.startswith(_PREFIX) else None


async def present_origin(connection: "Connection") -> str:
    """Return where the database is now. A part that the server does not tell is unknown."""
    return "/".join([await _known(connection, part) for part in _PLACE])


async def record_origin(connection: "Connection") -> None:
    """Record where the database is now. Only the owner of the tables may; no other session waits for it."""
    # COMMENT takes no parameters; the text consists of digits, letters and slashes.
    origin = await present_origin(connection)
    await connection.execute(f"COMMENT ON TABLE ledger.execution IS '{_PREFIX}{origin}'")


def changes_of_origin(recorded: str, present: str) -> Sequence[str]:
    """Return what is different, one sentence each; none for a database that is where it was."""
    parts = zip(recorded.split("/"), present.split("/"), _CHANGES, strict=True)
    different = [says for before, now, says in parts if before != now and _UNKNOWN not in (before, now)]
    # On another server everything else differs too.
    return different[:1]


async def _known(connection: "Connection", part: str) -> str:
    """Return a value; some providers revoke such functions, or do not support them."""
    try:
        # Inside a transaction this is a savepoint.
        async with connection.transaction():
            return str(await connection.fetchval(part))
    except asyncpg.PostgresError:
        return _UNKNOWN
