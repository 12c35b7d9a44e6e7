"""P6 over partitions: what a worker does that loses the database, the broker, or both.

An outage of one server alone costs no running work. A worker that is cut off from the database alone goes on
until it is told to stop, which is before its work runs anywhere else. Cut off from both, nothing of it runs
any more when its lease ends.
"""

import asyncio
from pathlib import Path

from tests.support.partition import ACTIONS, KINDS, scene
from tests.unit.worker.waiting import is_alive
from turnstile.common.lifecycle import EXIT_NOT_STOPPED

LONG = [60.0, 0.3]
"""Seconds of a run that somebody must end, and of the one in its place."""


async def test_cut_off_from_both_all_is_dead_when_the_lease_ends_and_the_worker_serves_on_under_a_new_id(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, amqp_url, tmp_path) as here:
        ids = await here.start(seconds=LONG)
        processes = {tick.pid for tick in here.ticks(ids, attempt=1)} - {here.worker.pid}
        assert len(processes) == 2
        here.to_database.freeze()
        here.to_broker.freeze()
        lease_ends_at = await here.lease_ends_at()
        await here.passed(lease_ends_at)
        assert not [pid for pid in processes if is_alive(pid)]
        here.to_database.thaw()
        here.to_broker.thaw()
        await here.history.ended(len(ids))
        assert max(tick.at for tick in here.ticks(ids, attempt=1)) < lease_ends_at
        assert await here.attempts(ids) == [(1, "reclaimed"), (2, "completed")] * 3
        assert here.worker.process.returncode is None
        workers = await here.history.rows(
            "SELECT DISTINCT w.id, w.pid FROM attempt JOIN worker w ON w.id = worker_id"
        )
    assert [row["pid"] for row in workers] == [here.worker.pid] * 2


async def test_cut_off_from_the_database_alone_work_goes_on_until_it_is_told_to_stop(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, amqp_url, tmp_path) as here:
        ids = await here.start(seconds=LONG)
        ids_ended = await here.start(["async"], seconds=[1.5, 0.3])
        here.to_database.freeze()
        lease_ends_at = await here.lease_ends_at()
        await here.system.start_worker(ACTIONS)
        # The report of this end is in a frozen link, and arrives long after the second attempt's.
        await here.traced(ids_ended, attempt=1, event="stop")
        await here.history.ended(len(ids) + 1)
        for execution_id in ids:
            last = max(tick.at for tick in here.ticks([execution_id], attempt=1))
            again = min(tick.at for tick in here.ticks([execution_id], attempt=2))
            # On its own it would have ended a second before.
            assert lease_ends_at - 0.5 < last < again + 0.5
        here.to_database.thaw()
        await here.registered(2)
        assert await here.results([*ids, *ids_ended]) == [("completed", "2")] * 4
        assert await here.attempts([*ids, *ids_ended]) == [(1, "reclaimed"), (2, "completed")] * 4


async def test_an_outage_of_one_server_alone_for_longer_than_a_lease_costs_no_running_work(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, amqp_url, tmp_path, executor_too=True) as here:
        ids: list[int] = []
        for server in (here.to_database, here.to_broker):
            started = await here.start(seconds=[6.0])
            server.freeze()
            await here.traced(started, attempt=1, event="stop")
            server.thaw()
            ids += started
            await here.history.ended(len(ids))
        assert await here.attempts(ids) == [(1, "completed")] * 2 * len(KINDS)
        assert await here.history.value("SELECT count(*) FROM worker") == 1


async def test_a_worker_that_cannot_stop_what_it_runs_ends_itself_before_its_lease_does(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, amqp_url, tmp_path) as here:
        ids = await here.start(["stubborn", "command"], seconds=LONG)
        here.to_database.freeze()
        here.to_broker.freeze()
        lease_ends_at = await here.lease_ends_at()
        assert await asyncio.wait_for(here.worker.process.wait(), 30) == EXIT_NOT_STOPPED
        await here.passed(lease_ends_at)
        assert max(tick.at for tick in here.ticks(ids, attempt=1)) < lease_ends_at
        here.to_broker.thaw()
        await here.system.start_worker(ACTIONS)
        await here.history.ended(len(ids))
        assert await here.attempts(ids) == [(1, "reclaimed"), (2, "completed")] * 2
