"""Fills the tables with executions that wait, as rows that a load reads.

Written are the two rows that the leader writes of each: its record, as at an admission over AMQP, and the row
of what waits below the low id. The caller writes the turn that raises the low id above them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncpg

_AT_ONCE: Final = 100_000
_RECORDS: Final = """
INSERT INTO ledger.execution (
    id, created_at, request_hash, delivery_key, status, priority, action_ref, key, parameters
)
SELECT n, to_timestamp($5::double precision + n / 1e6), md5(n::text)::uuid, md5(n::text)::uuid, 'queued', 3,
       ($3::text[])[1 + n % cardinality($3::text[])], k.key,
       jsonb_build_object('number', n, 'key', k.key, 'name', 'the parameters of an execution')
FROM generate_series($1::bigint, $2::bigint) n
CROSS JOIN LATERAL (
    SELECT CASE WHEN $4::bigint = 0 THEN '' ELSE 'key-' || n / cardinality($3::text[]) % $4::bigint END AS key
) k
"""
_WAITING: Final = """
INSERT INTO ledger.waiting (id, queued_at, priority, action_ref, key)
SELECT e.id, e.created_at, e.priority, e.action_ref, e.key FROM ledger.execution e
WHERE e.id BETWEEN $1::bigint AND $2::bigint
"""


async def fill(
    session: "asyncpg.Connection[asyncpg.Record]",
    ids: range,
    action_refs: Sequence[str],
    *,
    keys: int = 0,
    at: float,
) -> None:
    """Let executions of these actions wait, in turn, for so many keys of each; `at`: their admission."""
    for first in range(ids.start, ids.stop, _AT_ONCE):
        last = min(first + _AT_ONCE, ids.stop) - 1
        await session.execute(_RECORDS, first, last, action_refs, keys, at)
        await session.execute(_WAITING, first, last)
    await session.execute("VACUUM ANALYZE ledger.execution, ledger.waiting")
