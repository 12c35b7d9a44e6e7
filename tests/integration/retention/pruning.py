"""A pruner with the test's settings, and executions that ended long ago."""

from datetime import timedelta
from typing import Any

from tests.support.protocol import Protocol
from turnstile.common.database import Database
from turnstile.executor.queries.audit import Auditor
from turnstile.executor.retention import Pruner
from turnstile.executor.settings import ExecutorSettings

HOUR = 3600.0
_AGE = """
UPDATE execution SET created_at = created_at - $1::interval, completed_at = completed_at - $1::interval
WHERE id = ANY ($2)
"""


def pruner(protocol: Protocol, *, late_copy_seconds: float = 0.0, **settings: Any) -> Pruner:
    chosen = ExecutorSettings(**{"retention_age": None, **settings})
    return Pruner(protocol.database, chosen, late_copy_seconds=late_copy_seconds)


async def ended(
    protocol: Protocol, count: int = 1, ref: str = "a", *, hours_ago: float = 0, **fields: Any
) -> list[int]:
    """Run and settle executions that ended `hours_ago`; return their ids."""
    ids = await protocol.submit(ref, count, **fields)
    await protocol.run(*ids)
    await protocol.settle(*((i, 1) for i in ids))
    await age(protocol, ids, hours_ago)
    return ids


async def age(protocol: Protocol, ids: list[int], hours: float) -> None:
    await protocol.connection.execute(_AGE, timedelta(hours=hours), ids)


async def audit_is_clean(database_url: str) -> bool:
    database = Database(database_url, application_name="test audit", connections_max=1)
    await database.open()
    try:
        found = await Auditor(database, ExecutorSettings()).audit()
    finally:
        await database.close()
    return found.clean


async def left(protocol: Protocol) -> list[int]:
    return await protocol.column("SELECT id FROM execution ORDER BY id")
