"""Whatever the watchdog heals is counted: by what it was, and no more often than it happened."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.protocol import Protocol, connected
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.common.messages import StatusChanged
from turnstile.executor.decisions import Grants
from turnstile.executor.hand_over import HandOver
from turnstile.executor.metrics import (
    DRIFT_FOUND,
    DRIFT_REPAIRED,
    LAST_SWEEP,
    RECLAIMS,
    REPAIRS,
    STOPS_ENFORCED,
    SWEEP_FAILURES,
    SWEEP_ROWS,
)
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.watchdog import Watchdog


class Silent(HandOver):
    """Tells nobody."""

    async def offer(self, grants: Grants) -> None:
        pass

    async def tell(self, messages: Sequence[Outgoing]) -> None:
        pass

    async def ready_offers(self, pools: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(pools, 0)

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        pass


@pytest.fixture
async def protocol(database_url: str) -> AsyncIterator[Protocol]:
    async with connected(database_url) as protocol:
        await protocol.register()
        yield protocol


def watchdog_over(protocol: Protocol) -> Watchdog:
    queue_manager = QueueManager(protocol.database)
    publisher = Publisher("amqp://127.0.0.1:1/", name="test")
    hand_over = Silent(publisher, queue_manager, "quorum", publisher)
    settings = ExecutorSettings(lease_duration=0.3, heartbeat_interval=0.1)
    return Watchdog(settings, protocol.database, queue_manager, hand_over)


async def test_each_repair_is_counted_by_its_kind(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=2)
    _, ended = await protocol.submit("a", 2)
    await protocol.claim(ended)
    await protocol.finish(ended)
    await protocol.connection.execute(
        "UPDATE slot SET granted_at = now() - interval '1 h', offered_at = now() - interval '1 h',"
        " told_at = told_at - interval '1 h'"
    )
    watchdog, before = watchdog_over(protocol), dict(REPAIRS.values)
    assert await watchdog.links.repeat_offers() == 1
    assert await watchdog.links.repeat_completions() == 1
    await protocol.submit("a", 2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 4")
    assert await watchdog.lines.grant_idle_slots() == 2
    counted = {kind: count - before[kind] for kind, count in REPAIRS.values.items()}
    assert counted == {
        ("offer_repeated",): 1,
        ("completion_repeated",): 1,
        ("slot_granted",): 2,
        ("stop_repeated",): 0,
    }


async def test_work_taken_back_from_a_lost_worker_is_counted_by_what_became_of_it(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=2)
    await protocol.put("once", on_worker_lost="abandon")
    again = await protocol.submit("a", 2)
    (gone,) = await protocol.submit("once")
    await protocol.claim(*again, gone)
    await protocol.lose_lease()
    leases, before = watchdog_over(protocol).leases, dict(RECLAIMS.values)
    async with asyncio.timeout(20):
        while await leases.reclaim_lost() == 0:
            await asyncio.sleep(0.02)
    assert RECLAIMS.values[("queued",)] - before[("queued",)] == 2
    assert RECLAIMS.values[("abandoned",)] - before[("abandoned",)] == 1


async def test_an_attempt_that_was_ended_without_its_worker_is_counted(protocol: Protocol) -> None:
    await protocol.put("a", timeout=1)
    (overdue,) = await protocol.submit("a")
    await protocol.claim(overdue)
    await protocol.connection.execute("UPDATE slot SET overdue_at = now() - interval '1 h', stops_asked = 2")
    before = STOPS_ENFORCED.values[("timeout",)]
    assert await watchdog_over(protocol).leases.stop_overdue() == 1
    assert STOPS_ENFORCED.values[("timeout",)] - before == 1


async def test_drift_is_counted_when_it_is_found_and_when_it_is_put_right(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    await protocol.submit("a", 3)
    await protocol.connection.execute("UPDATE action_queue SET depth = 1")
    counters = watchdog_over(protocol).counters
    before = (DRIFT_FOUND.values[()], DRIFT_REPAIRED.values[()])
    assert await counters.repair_counters() == 1
    assert await counters.repair_counters() == 0
    assert (DRIFT_FOUND.values[()], DRIFT_REPAIRED.values[()]) == (before[0] + 1, before[1] + 1)


async def test_a_completion_that_comes_again_settles_and_counts_nothing(protocol: Protocol) -> None:
    await protocol.put("a")
    (one,) = await protocol.submit("a")
    await protocol.claim(one)
    await protocol.finish(one)
    completion = [(ExecutionId(one), Attempt(1), Status.COMPLETED)]
    assert (await protocol.queue_manager.settle(completion)).ids == {one}
    assert (await protocol.queue_manager.settle(completion)).ids == set()


async def test_what_a_sweep_did_is_counted_by_sweep(protocol: Protocol) -> None:
    before = SWEEP_ROWS.values.get(("wake_due",), 0)
    await protocol.put("a")
    await protocol.submit("a", 3, run_at=datetime.now(UTC) + timedelta(hours=1))
    await protocol.connection.execute("UPDATE delayed SET due_at = now()")
    watchdog = watchdog_over(protocol)
    assert await watchdog._attempt(watchdog.lines.wake_due) == 3
    assert SWEEP_ROWS.values[("wake_due",)] - before == 3


async def test_a_sweep_that_the_database_refuses_is_counted_and_its_last_success_stays(
    protocol: Protocol,
) -> None:
    watchdog = watchdog_over(protocol)
    before = SWEEP_FAILURES.values.get(("repeat_offers",), 0)
    await watchdog._attempt(watchdog.links.repeat_offers)
    ended_well_at = LAST_SWEEP.values[("repeat_offers",)]
    await protocol.connection.execute("DROP SCHEMA turnstile CASCADE")
    await watchdog._attempt(watchdog.links.repeat_offers)
    assert SWEEP_FAILURES.values[("repeat_offers",)] == before + 1
    assert LAST_SWEEP.values[("repeat_offers",)] == ended_well_at


async def test_a_sweep_that_breaks_is_counted_and_ends_nothing(
    protocol: Protocol, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down() -> int:
        raise RuntimeError("nobody thought of this")

    watchdog = watchdog_over(protocol)
    assert await watchdog._attempt(break_down) == 0
    assert SWEEP_FAILURES.values[("break_down",)] == 1
    (line,) = [record for record in caplog.records if record.getMessage() == "sweep_broken"]
    assert line.exc_info is not None
