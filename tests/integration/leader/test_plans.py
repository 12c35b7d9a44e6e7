"""Every row is looked up by its key, whatever the statistics were when the statement was planned (P15)."""

import re

import pytest

from tests.support.ledger import Led, ended, granted, session_on
from turnstile.executor.leader import ledger_rows
from turnstile.executor.leader.ledger import Ledger, _turn_text

_NODE = re.compile(r"(Seq Scan|Index Only Scan|Index Scan|Bitmap Heap Scan)\b.* on (\w+)")


async def _scans_without_key(ledger: Ledger) -> list[str]:
    """Return the scans of tables, in the plan of a turn with all parts, that read more than a key."""
    parts = list(ledger_rows._PARTS.values())
    found = []
    for forgets in ("turn_over", "turns_over"):
        async with ledger._writer.use() as session:
            prepared = await session.prepare(_turn_text(parts, forgets))
            nulls = ", ".join(["NULL"] * len(prepared.get_parameters()))
            plan = await session.fetch(f"EXPLAIN EXECUTE {prepared.get_name()}({nulls})")
        lines = [row[0] for row in plan]
        assert sum("Index Cond" in line for line in lines) >= 11
        for number, line in enumerate(lines):
            node = _NODE.search(line)
            if node is not None and node[2] != "leadership" and "Index Cond" not in lines[number + 1]:
                found.append(line.strip())
    return found


@pytest.mark.parametrize("rows", [0, 3, 300])
async def test_each_row_of_a_turn_is_looked_up_by_its_key(led: Led, database_url: str, rows: int) -> None:
    for first in range(1, rows + 1, 3):
        await led.admit(first, first + 1, granted=[granted(led.epoch, first, first)])
        await led.write(ended=[ended(first)], grants_over=[(led.epoch, first)])
    async with session_on(database_url) as session:
        await session.execute("ANALYZE")
    assert await _scans_without_key(led.ledger) == []
