"""The database's clock is set back: it costs one lease, not as long as it was set back (P7).

A server's clock cannot be set for one test. What is left of it afterwards can be made: rows whose
instants, written by the clock before, lie in the future. So these tests move the instants of rows an
hour ahead.
"""

import asyncio
from datetime import UTC, datetime

import pytest

from tests.integration.telemetry.test_healing import watchdog_over
from tests.support.protocol import Protocol
from turnstile.common.domain.states import Status
from turnstile.executor.watchdog.leases import Leases

LATER = datetime(2100, 1, 1, tzinfo=UTC)
HOUR = "interval '1 h'"


async def set_back(protocol: Protocol, table: str, *columns: str) -> None:
    """Leave the rows of a table as a clock leaves them that is set back by an hour."""
    moved = ", ".join(f"{column} = {column} + {HOUR}" for column in columns)
    await protocol.connection.execute(f"UPDATE {table} SET {moved}")


async def to_present(protocol: Protocol, *, in_retries: bool = False) -> int:
    count: int = await protocol.connection.fetchval("SELECT turnstile.return_to_present($1)", in_retries)
    return count


async def seconds_ahead(protocol: Protocol, query: str) -> list[float | None]:
    """Return how far in the future instants lie."""
    rows = await protocol.connection.fetch(
        f"SELECT extract(epoch FROM x - clock_timestamp())::float8 FROM ({query}) q(x)"
    )
    return [row[0] for row in rows]


async def test_the_lease_of_a_dead_worker_is_over_one_lease_later(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit()
    await protocol.register("dead", lease_seconds=0.3)
    assert await protocol.claim_verdicts(one, worker="dead") == ["claimed"]
    await set_back(protocol, "worker", "renewed_at", "lease_expires_at")
    leases = watchdog_over(protocol).leases
    async with asyncio.timeout(30):
        while await _reclaimed(leases) == 0:
            await asyncio.sleep(0.05)
    assert await protocol.column("SELECT id FROM worker WHERE lost_at IS NOT NULL") == ["dead"]
    (ahead,) = await seconds_ahead(protocol, "SELECT lease_expires_at FROM worker WHERE lost_at IS NULL")
    assert ahead is not None
    assert 500 < ahead <= 600


async def _reclaimed(leases: Leases) -> int:
    await leases.return_to_present()
    return await leases.reclaim_lost()


async def test_offers_and_ends_are_told_again_in_time(protocol: Protocol) -> None:
    await protocol.put()
    offered, ended = await protocol.submit(count=2)
    (waited,) = await protocol.submit(run_at=LATER)
    await protocol.run(ended)
    await protocol.cancel(waited)
    await set_back(protocol, "slot", "granted_at", "offered_at", "claimed_at", "finished_at", "told_at")
    await set_back(protocol, "untold_end", "told_at")
    assert await protocol.due_pools() == {}
    assert await protocol.due_completions() == []
    assert await to_present(protocol) == 3
    assert await protocol.missing_offers({"default": 0}) == [offered]
    assert await protocol.due_completions() == [ended, waited]
    assert await to_present(protocol) == 0


async def test_an_offer_that_is_withheld_stays_so(protocol: Protocol) -> None:
    await protocol.put()
    await protocol.submit()
    await protocol.connection.execute("UPDATE slot SET offered_at = NULL")
    await set_back(protocol, "slot", "granted_at")
    assert await to_present(protocol) == 1
    assert await protocol.column("SELECT offered_at FROM slot") == [None]


async def test_a_lost_worker_is_told_to_stop_in_time(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.lose_lease()
    await protocol.reclaim()
    await set_back(protocol, "untold_stop", "noted_at")
    assert await protocol.due_stops() == []
    assert await to_present(protocol) >= 1
    assert [i for i, *_ in await protocol.due_stops()] == [one]


async def test_a_timeout_counts_from_now_at_the_latest_and_what_is_to_stop_is_due(protocol: Protocol) -> None:
    await protocol.put(timeout=60)
    timed, cancelled, told = await protocol.submit(count=3)
    await protocol.claim(timed, cancelled, told)
    await protocol.cancel(cancelled)
    await protocol.connection.execute("UPDATE slot SET stops_asked = 1 WHERE execution_id = $1", told)
    await set_back(protocol, "slot", "granted_at", "offered_at", "claimed_at", "overdue_at")
    await to_present(protocol)
    ahead = await seconds_ahead(protocol, "SELECT overdue_at FROM slot ORDER BY execution_id")
    assert ahead[0] is not None
    assert 0 < ahead[0] <= 60
    assert all(each is not None and each <= 0 for each in ahead[1:])


async def test_a_wait_before_a_retry_is_as_long_as_it_was_and_what_people_gave_stays(
    protocol: Protocol,
) -> None:
    await protocol.put()
    (retried,) = await protocol.submit(ttl=100_000)
    (delayed,) = await protocol.submit(run_at=LATER)
    await protocol.claim(retried)
    await protocol.finish(retried, status=Status.FAILED, retry_delay_seconds=60)
    await set_back(protocol, "attempt", "ended_at")
    await set_back(protocol, "delayed", "due_at")
    await protocol.connection.execute(
        "UPDATE execution e SET run_at = d.due_at FROM delayed d WHERE d.execution_id = e.id"
    )
    query = "SELECT expires_at FROM execution WHERE id = $1"
    expires_at = await protocol.connection.fetchval(query, retried)
    given = await protocol.connection.fetchval("SELECT due_at FROM delayed WHERE execution_id = $1", delayed)
    assert await to_present(protocol, in_retries=True) >= 1
    for place in ("SELECT due_at FROM delayed WHERE execution_id", "SELECT run_at FROM execution WHERE id"):
        (ahead,) = await seconds_ahead(protocol, f"{place} = {retried}")
        assert ahead is not None
        assert 0 < ahead <= 60
        assert await protocol.connection.fetchval(f"{place} = {delayed}") == given
    assert await protocol.connection.fetchval(query, retried) == expires_at


async def test_what_the_clock_wrote_in_its_course_stays_as_it_is(protocol: Protocol) -> None:
    await protocol.put(timeout=60)
    one, two = await protocol.submit(count=2)
    await protocol.run(one)
    await protocol.claim(two)
    (three,) = await protocol.submit(run_at=LATER)
    await protocol.cancel(three)
    assert await to_present(protocol, in_retries=True) == 0


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_jump_is_looked_into_when_it_is_noticed_and_at_the_start(
    protocol: Protocol, caplog: pytest.LogCaptureFixture, is_noticed: bool
) -> None:
    await protocol.put()
    await protocol.submit()
    leases = watchdog_over(protocol).leases
    assert await leases.return_to_present() == 0
    await set_back(protocol, "slot", "granted_at", "offered_at")
    if is_noticed:
        leases._returning_until = 0
        assert await leases.return_to_present() == 0
        leases._judge_clock(-3600.0)
        assert "database_clock_jumped" in [record.getMessage() for record in caplog.records]
    assert await leases.return_to_present() == 1
