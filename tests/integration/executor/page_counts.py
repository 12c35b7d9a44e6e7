"""The cost of a statement: the pages of the ledger that PostgreSQL reads, by table and index."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from turnstile.common.database import Connection

_PAGES = """
SELECT c.relname, pg_stat_get_xact_blocks_fetched(c.oid) AS pages,
       CASE WHEN c.relkind = 'r' THEN pg_stat_get_xact_numscans(c.oid) ELSE 0 END AS full_scans
FROM pg_class c WHERE c.relnamespace = 'ledger'::regnamespace AND c.relkind IN ('r', 'i')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The pages that one statement read."""

    pages: int
    by_relation: dict[str, int]
    full_scans: dict[str, int]
    """Tables that were read from end to end."""


async def cost_of(
    connection: "Connection | asyncpg.Connection[asyncpg.Record]", statement: Awaitable[object]
) -> Cost:
    """Measure one statement; the caller has a transaction open, since the counts are the transaction's."""
    assert connection.is_in_transaction()
    before = {row["relname"]: row for row in await connection.fetch(_PAGES)}
    await statement
    rows = await connection.fetch(_PAGES)
    pages = {r["relname"]: r["pages"] - before[r["relname"]]["pages"] for r in rows}
    scans = {r["relname"]: r["full_scans"] - before[r["relname"]]["full_scans"] for r in rows}
    return Cost(
        pages=sum(pages.values()),
        by_relation={name: count for name, count in pages.items() if count},
        full_scans={name: count for name, count in scans.items() if count},
    )
