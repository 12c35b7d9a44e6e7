"""P6 where a worker's process or its event loop stands still: what it held, and what it may do afterwards."""

import signal
import time
from pathlib import Path

from tests.support.history import history_of
from tests.support.partition import ACTIONS, scene
from tests.support.processes import running
from tests.support.traffic import publishing, request


async def test_a_worker_stopped_beyond_its_lease_changes_nothing_when_it_goes_on(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    # A full worker is sent nothing more, which would be stuck with it.
    async with scene(database_url, amqp_url, tmp_path, places=4) as here:
        ids = await here.start(seconds=[60.0, 6.0])
        # Its end comes while the process is stopped: its report is the first thing that it would write.
        ids_ended = await here.start(["async"], seconds=[2.0, 6.0])
        here.worker.signal(signal.SIGSTOP)
        lease_ends_at = await here.lease_ends_at()
        await here.system.start_worker(ACTIONS)
        await here.traced([*ids, *ids_ended], attempt=2, event="tick")
        here.worker.signal(signal.SIGCONT)
        continued_at = time.time()
        await here.registered(2)
        of_others = "SELECT count(*) FROM slot s JOIN worker w ON w.id = s.worker_id WHERE w.pid <> $1"
        assert await here.history.value(of_others, here.worker.pid) == 4, (
            "the slots of the second attempts stay"
        )
        assert "session_ended" in (log := here.worker.log.read_text())
        assert "not_applied=dropped=4" in log, "counted, and never an error"
        await here.history.ended(4)
        traces = here.ticks([*ids, *ids_ended], attempt=1)
        assert max(t.at for t in traces if t.kind != "async") < lease_ends_at, "killed while it was stopped"
        assert max(t.at for t in traces) < continued_at + 1.0
        assert await here.results([*ids, *ids_ended]) == [("completed", "2")] * 4
        assert await here.attempts([*ids, *ids_ended]) == [(1, "reclaimed"), (2, "completed")] * 4


async def test_a_loop_blocked_for_longer_than_its_lease_loses_neither_lease_nor_slot(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, amqp_url, tmp_path) as here:
        ids = await here.start(["blocking"], seconds=[6.0])
        await here.history.ended(1)
        assert await here.attempts(ids) == [(1, "completed")]
        assert await here.history.value("SELECT count(*) FROM worker") == 1


async def test_what_a_stopped_worker_was_sent_is_run_by_others_before_its_lease_is_over(
    database_url: str, amqp_url: str
) -> None:
    # No offer is repeated meanwhile, and nobody taken for dead: only the broker can bring back what it sent.
    settings = {
        "TURNSTILE_DISPATCH_TIMEOUT": "10m",
        "TURNSTILE_LEASE_DURATION": "20s",
        "TURNSTILE_WORKER_CONCURRENCY": "50",
    }
    async with (
        running(database_url, amqp_url, workers=2, settings=settings) as system,
        history_of(database_url) as history,
        publishing(amqp_url) as publisher,
    ):
        system.workers[0].signal(signal.SIGSTOP)
        try:
            await publisher.publish([request({"action_ref": "noop"}) for _ in range(40)])
            await history.ended(40, deadline_seconds=20)
        finally:
            system.workers[0].signal(signal.SIGCONT)
        assert await history.value("SELECT count(*) FROM execution WHERE attempt > 1") == 0
