"""The watchdog counts each repair once, by its kind."""

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import asyncpg
import pytest

from tests.support.protocol import Protocol
from tests.support.traffic import until
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.messages import StatusChanged
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.metrics import (
    CANCELS_ENFORCED,
    DRIFT_FOUND,
    DRIFT_REPAIRED,
    LAST_SWEEP,
    RECLAIMS,
    REPAIRS,
    SWEEP_FAILURES,
    SWEEP_ROWS,
)
from turnstile.executor.results import Grants
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.slot_grants import QueueManager
from turnstile.executor.sweep_turns import SweepTurns
from turnstile.executor.watchdog import Watchdog


class Silent(Dispatcher):
    """Publishes nothing."""

    async def dispatch(self, grants: Grants, *, alone: bool = False) -> None:
        pass

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        pass

    async def ready_offers(self, pools: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(pools, 0)

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        pass


def watchdog_over(protocol: Protocol) -> Watchdog:
    queue_manager = QueueManager(protocol.database)
    publisher = Publisher("amqp://127.0.0.1:1/", name="test")
    dispatcher = Silent(publisher, queue_manager, "quorum", publisher)
    settings = ExecutorSettings(lease_duration=0.3, heartbeat_interval=0.1)
    return Watchdog(settings, protocol.database, queue_manager, dispatcher, SweepTurns(1.0))


async def test_each_repair_is_counted_by_its_kind(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=2)
    _, ended = await protocol.submit("a", 2)
    await protocol.claim(ended)
    await protocol.finish(ended)
    await protocol.connection.execute(
        "UPDATE slot SET granted_at = now() - interval '1 h', offered_at = now() - interval '1 h',"
        " published_at = published_at - interval '1 h'"
    )
    watchdog, before = watchdog_over(protocol), dict(REPAIRS.values)
    assert await watchdog.redelivery.repeat_offers() == 1
    assert await watchdog.redelivery.repeat_completions() == 1
    await protocol.submit("a", 2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 4")
    assert await watchdog.queues.grant_idle_slots() == 2
    counted = {kind: count - before[kind] for kind, count in REPAIRS.values.items()}
    assert counted == {
        ("offer_repeated",): 1,
        ("completion_repeated",): 1,
        ("slot_granted",): 2,
        ("gate_passed",): 0,
        ("cancel_repeated",): 0,
    }


async def test_reclaims_and_ends_without_a_worker_are_counted(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=2)
    await protocol.put("once", on_worker_lost="abandon")
    again = await protocol.submit("a", 2)
    (gone,) = await protocol.submit("once")
    await protocol.claim(*again, gone)
    await protocol.lose_lease()
    leases, before = watchdog_over(protocol).reclaims, dict(RECLAIMS.values)
    await until(leases.reclaim_lost, "attempts are reclaimed")
    assert RECLAIMS.values[("queued",)] - before[("queued",)] == 2
    assert RECLAIMS.values[("abandoned",)] - before[("abandoned",)] == 1

    await protocol.register("other")
    await protocol.put("slow", timeout=1)
    (overdue,) = await protocol.submit("slow")
    await protocol.claim(overdue, worker="other")
    late = "UPDATE slot SET overdue_at = now() - interval '1 h', cancels_sent = 2 WHERE execution_id = $1"
    await protocol.connection.execute(late, overdue)
    enforced = CANCELS_ENFORCED.values[("timeout",)]
    assert await leases.stop_overdue() == 1
    assert CANCELS_ENFORCED.values[("timeout",)] - enforced == 1


async def test_drift_is_counted_when_it_is_found_and_when_it_is_repaired(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    await protocol.submit("a", 3)
    await protocol.connection.execute("UPDATE queue_state SET depth = 1")
    counters = watchdog_over(protocol).queues
    before = (DRIFT_FOUND.values[()], DRIFT_REPAIRED.values[()])
    assert await counters.repair_counters() == 1
    assert await counters.repair_counters() == 0
    assert (DRIFT_FOUND.values[()], DRIFT_REPAIRED.values[()]) == (before[0] + 1, before[1] + 1)


async def test_the_rows_that_a_sweep_changed_are_counted(protocol: Protocol) -> None:
    before = SWEEP_ROWS.values.get(("wake_due",), 0)
    await protocol.put("a")
    await protocol.submit("a", 3, run_at=datetime.now(UTC) + timedelta(hours=1))
    await protocol.connection.execute("UPDATE delayed SET due_at = now()")
    watchdog = watchdog_over(protocol)
    assert await watchdog._attempt(watchdog.queues.wake_due) == 3
    assert SWEEP_ROWS.values[("wake_due",)] - before == 3


async def test_a_failed_and_a_broken_sweep_are_counted_and_end_nothing_and_the_last_success_stays(
    protocol: Protocol, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down() -> int:
        raise RuntimeError("unexpected")

    watchdog = watchdog_over(protocol)
    before = SWEEP_FAILURES.values.get(("repeat_offers",), 0)
    await watchdog._attempt(watchdog.redelivery.repeat_offers)
    ended_well_at = LAST_SWEEP.values[("repeat_offers",)]
    await protocol.connection.execute("DROP SCHEMA turnstile CASCADE")
    await watchdog._attempt(watchdog.redelivery.repeat_offers)
    assert SWEEP_FAILURES.values[("repeat_offers",)] == before + 1
    assert LAST_SWEEP.values[("repeat_offers",)] == ended_well_at
    assert await watchdog._attempt(break_down) is None
    assert SWEEP_FAILURES.values[("break_down",)] == 1
    (line,) = [record for record in caplog.records if record.getMessage() == "sweep_broken"]
    assert line.exc_info is not None


async def test_a_sweep_that_fails_again_and_again_is_logged_once_a_minute_and_when_it_works_again(
    protocol: Protocol, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, fails = 1000.0, True
    monkeypatch.setattr("turnstile.common.telemetry.logs.time", SimpleNamespace(monotonic=lambda: now))
    caplog.set_level(logging.INFO)

    async def sweep() -> int:
        if fails:
            raise asyncpg.InsufficientPrivilegeError("permission denied")
        return 0

    watchdog = watchdog_over(protocol)
    for second in range(150):
        now = 1000.0 + second
        await watchdog._attempt(sweep)
    fails = False
    await watchdog._attempt(sweep)
    lines = [record for record in caplog.records if record.getMessage().startswith("sweep_failed")]
    assert [(line.getMessage(), vars(line)["count"]) for line in lines] == [
        ("sweep_failed", 1),
        ("sweep_failed", 60),
        ("sweep_failed", 60),
        ("sweep_failed_over", 29),
    ]
    assert {line.levelname for line in lines[:3]} == {"ERROR"}

    caplog.clear()
    for tenth in range(3000):
        now, fails = 2000.0 + tenth / 10, tenth % 2 == 0
        await watchdog._attempt(sweep)
    lines = [record for record in caplog.records if record.getMessage().startswith("sweep_failed")]
    assert [line.getMessage() for line in lines] == ["sweep_failed", "sweep_failed_over"] * 5
