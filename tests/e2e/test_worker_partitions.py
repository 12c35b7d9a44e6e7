"""P6: a worker that loses the database, the broker or both, or that is paused.

An outage of one server alone costs no running work. A worker that is cut off from the database alone
continues until it receives the cancel message, before its work runs anywhere else. Cut off from both,
nothing of it runs any more when its lease ends.
"""

import asyncio
import signal
import time
from pathlib import Path

from tests.support.environment import StartEnvironment
from tests.support.partition import KINDS, partitionable
from tests.support.traffic import publishing, request
from tests.unit.worker.waiting import is_alive
from turnstile.common.lifecycle import EXIT_NOT_STOPPED

LONG = [60.0, 0.3]
"""Seconds of a run that must be ended, and of the next attempt."""


async def test_without_both_servers_all_runs_end_with_the_lease_and_the_worker_continues_under_a_new_id(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with partitionable(database_url, amqp_url, tmp_path) as it:
        ids = await it.start(seconds=LONG)
        processes = {tick.pid for tick in it.ticks(ids, attempt=1)} - {it.worker.pid}
        assert len(processes) == 2
        it.to_database.freeze()
        it.to_broker.freeze()
        lease_ends_at = await it.lease_ends_at()
        await it.until_passed(lease_ends_at)
        assert not [pid for pid in processes if is_alive(pid)]
        it.to_database.thaw()
        it.to_broker.thaw()
        await it.history.ended(len(ids))
        assert max(tick.at for tick in it.ticks(ids, attempt=1)) < lease_ends_at
        assert await it.attempts(ids) == [(1, "reclaimed"), (2, "completed")] * 3
        assert it.worker.process.returncode is None
        workers = await it.history.rows(
            "SELECT DISTINCT w.id, w.pid FROM turnstile.ended_attempt JOIN worker w ON w.id = worker_id"
        )
    assert [row["pid"] for row in workers] == [it.worker.pid] * 2


async def test_without_the_database_alone_work_continues_until_the_cancel_message(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with partitionable(database_url, amqp_url, tmp_path) as it:
        ids = await it.start(seconds=LONG)
        ids_ended = await it.start(["async"], seconds=[1.5, 0.3])
        it.to_database.freeze()
        lease_ends_at = await it.lease_ends_at()
        await it.start_worker()
        # The report of this end is in a frozen link, and arrives long after the second attempt's.
        await it.until_traced(ids_ended, attempt=1, event="stop")
        await it.history.ended(len(ids) + 1)
        for execution_id in ids:
            last = max(tick.at for tick in it.ticks([execution_id], attempt=1))
            again = min(tick.at for tick in it.ticks([execution_id], attempt=2))
            # By its own fence it would have ended a second before.
            assert lease_ends_at - 0.5 < last < again + 0.5
        it.to_database.thaw()
        await it.until_registered(2)
        assert await it.results([*ids, *ids_ended]) == [("completed", "2")] * 4
        assert await it.attempts([*ids, *ids_ended]) == [(1, "reclaimed"), (2, "completed")] * 4


async def test_an_outage_of_one_server_alone_for_longer_than_a_lease_costs_no_running_work(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with partitionable(database_url, amqp_url, tmp_path, executor_too=True) as it:
        ids: list[int] = []
        for server in (it.to_database, it.to_broker):
            started = await it.start(seconds=[5.0])
            server.freeze()
            await it.until_traced(started, attempt=1, event="stop")
            server.thaw()
            ids += started
            await it.history.ended(len(ids))
        assert await it.attempts(ids) == [(1, "completed")] * 2 * len(KINDS)
        assert await it.history.value("SELECT count(*) FROM worker") == 1


async def test_a_worker_that_cannot_stop_what_it_runs_ends_itself_before_its_lease_does(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with partitionable(database_url, amqp_url, tmp_path) as it:
        ids = await it.start(["stubborn", "command"], seconds=LONG)
        it.to_database.freeze()
        it.to_broker.freeze()
        lease_ends_at = await it.lease_ends_at()
        assert await asyncio.wait_for(it.worker.process.wait(), 30) == EXIT_NOT_STOPPED
        await it.until_passed(lease_ends_at)
        assert max(tick.at for tick in it.ticks(ids, attempt=1)) < lease_ends_at
        it.to_broker.thaw()
        await it.start_worker()
        await it.history.ended(len(ids))
        assert await it.attempts(ids) == [(1, "reclaimed"), (2, "completed")] * 2


async def test_a_worker_stopped_beyond_its_lease_changes_nothing_when_it_continues(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    # A full worker receives no more offers, which would be stuck with it.
    async with partitionable(database_url, amqp_url, tmp_path, concurrency=4) as it:
        ids = await it.start(seconds=[60.0, 6.0])
        # It ends while the process is stopped: its report is the first thing that the worker would write.
        ids_ended = await it.start(["async"], seconds=[2.0, 6.0])
        everything = [*ids, *ids_ended]
        it.worker.signal(signal.SIGSTOP)
        lease_ends_at = await it.lease_ends_at()
        await it.start_worker()
        await it.until_traced(everything, attempt=2, event="tick")
        it.worker.signal(signal.SIGCONT)
        continued_at = time.time()
        await it.until_registered(2)
        of_others = "SELECT count(*) FROM slot s JOIN worker w ON w.id = s.worker_id WHERE w.pid <> $1"
        assert await it.history.value(of_others, it.worker.pid) == 4, "the slots of the second attempts stay"
        assert "session_ended" in (log := it.worker.log.read_text())
        assert "not_applied=dropped=4" in log, "counted, and never an error"
        await it.history.ended(4)
        traces = it.ticks(everything, attempt=1)
        assert max(t.at for t in traces if t.kind != "async") < lease_ends_at, "killed while it was stopped"
        assert max(t.at for t in traces) < continued_at + 1.0
        assert await it.results(everything) == [("completed", "2")] * 4
        assert await it.attempts(everything) == [(1, "reclaimed"), (2, "completed")] * 4


async def test_a_loop_blocked_for_longer_than_its_lease_loses_neither_lease_nor_slot(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with partitionable(database_url, amqp_url, tmp_path) as it:
        ids = await it.start(["blocking"], seconds=[5.0])
        await it.history.ended(1)
        assert await it.attempts(ids) == [(1, "completed")]
        assert await it.history.value("SELECT count(*) FROM worker") == 1


async def test_offers_sent_to_a_stopped_worker_are_run_by_others_before_its_lease_ends(
    start_env: StartEnvironment,
) -> None:
    # No offer is repeated, and no worker is lost meanwhile: only the broker can redeliver the offers.
    settings = {
        "TURNSTILE_DISPATCH_TIMEOUT": "10m",
        "TURNSTILE_LEASE_DURATION": "12s",
        "TURNSTILE_WORKER_CONCURRENCY": "50",
    }
    async with start_env(workers=2, settings=settings) as env, publishing(env.amqp_url) as publisher:
        env.worker.signal(signal.SIGSTOP)
        try:
            await publisher.publish([request({"action_ref": "noop"}) for _ in range(40)])
            await env.history.ended(40, deadline_seconds=12)
        finally:
            env.worker.signal(signal.SIGCONT)
        assert (
            await env.history.value("SELECT count(*) FROM turnstile.current_execution WHERE attempt > 1") == 0
        )
