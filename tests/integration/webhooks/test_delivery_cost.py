"""Each statement on deliveries costs what it moves, however many stand beside it."""

from typing import Any

import pytest

from tests.integration.executor.page_counts import cost_of
from tests.integration.webhooks.deliveries import claim, ended, give_up, record, replay
from tests.support.protocol import Protocol


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a")


async def test_beside_many_deliveries_each_statement_costs_what_it_moves(protocol: Protocol) -> None:
    """Planned while the tables are empty, said beside 20,000 that are not due and as many settled ones."""
    for _ in range(6):
        await claim(protocol)
        await record(protocol).due(after_origin="")
        await record(protocol).claim({"https://example.org": 1}, lease_seconds=60)
        await give_up(protocol)
        await protocol.connection.fetchval("SELECT turnstile.clean_webhooks(3600, 10)")
    await protocol.connection.execute(
        "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at, state, settled_at)"
        " SELECT n, 'u', 'https://' || n % 10, now() + interval '1 h', now(),"
        " CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'delivered' END, CASE WHEN n % 2 = 1 THEN now() END"
        " FROM generate_series(1000, 41000) n; ANALYZE webhook_delivery"
    )
    (one,) = await ended(protocol)

    async def see(statement: Any, rows: int) -> None:
        cost = await cost_of(protocol, statement)
        assert cost.pages < 60 + 40 * rows, cost
        assert "webhook_delivery" not in cost.full_scans, cost

    async with protocol.transaction():
        await see(record(protocol).due(after_origin=""), 11)
        await see(claim(protocol), 1)
        await see(protocol.connection.fetchval("SELECT turnstile.clean_webhooks(3600, 10)"), 1)
        await see(give_up(protocol), 100)
        await see(replay(protocol, one), 1)
        await protocol.connection.execute("UPDATE webhook_delivery SET claimed_until = NULL")
        await see(record(protocol).claim({"https://example.org": 1}, lease_seconds=60), 1)
        await see(record(protocol).page(["failed"], before_id=2**62, limit=10), 1)
