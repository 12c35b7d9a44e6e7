"""P6: a worker that loses the broker or the executor, or that is paused.

While it hears no answer to its heartbeats, nothing of it runs any more when its lease ends; then its work
runs elsewhere. An outage of the database costs no running work.

Whole services: what must have ended are processes that a worker started.
"""

import signal
import time
from pathlib import Path

from tests.support.partition import partitionable
from tests.unit.worker.waiting import is_alive

LONG = [60.0, 0.3]
"""Seconds of a run that must be ended, and of the next attempt."""


async def test_without_the_broker_all_runs_end_with_the_lease_and_the_worker_continues_under_a_new_id(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with partitionable(database_url, amqp_url, tmp_path) as it:
        ids = await it.start(seconds=LONG)
        processes = {tick.pid for tick in it.ticks(ids, attempt=1)} - {it.worker.pid}
        assert len(processes) == 2
        it.to_broker.freeze()
        lease_ends_at = await it.lease_ends_at()
        await it.until_passed(lease_ends_at)
        assert not [pid for pid in processes if is_alive(pid)]
        it.to_broker.thaw()
        await it.history.ended(len(ids))
        assert max(tick.at for tick in it.ticks(ids, attempt=1)) < lease_ends_at
        assert await it.attempts(ids) == [(1, "reclaimed"), (2, "completed")] * 3
        assert it.worker.process.returncode is None
        await it.until_registered(2)


async def test_a_worker_stopped_beyond_its_lease_changes_nothing_when_it_continues(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with partitionable(database_url, amqp_url, tmp_path, concurrency=4) as it:
        ids = await it.start(seconds=[60.0, 6.0])
        # It ends while the process is stopped: its report is the first thing that the worker would write.
        ids_ended = await it.start(["async"], seconds=[2.0, 6.0])
        everything = [*ids, *ids_ended]
        it.worker.signal(signal.SIGSTOP)
        lease_ends_at = await it.lease_ends_at()
        second = await it.start_worker()
        await it.until_traced(everything, attempt=2, event="tick")
        it.worker.signal(signal.SIGCONT)
        continued_at = time.time()
        await it.until_registered(2)
        assert [await it.env.worker_of(each) for each in everything] == [second.name] * 4
        await it.history.ended(4)
        traces = it.ticks(everything, attempt=1)
        assert max(t.at for t in traces if t.kind != "async") < lease_ends_at, "killed while it was stopped"
        assert max(t.at for t in traces) < continued_at + 1.0
        assert await it.results(everything) == [("completed", "2")] * 4
        assert await it.attempts(everything) == [(1, "reclaimed"), (2, "completed")] * 4
