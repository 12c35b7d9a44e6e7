"""Large results: a worker holds each of them once, and reports them in statements of a bounded size."""

import time

from tests.e2e.test_large_requests import peak_mb
from tests.support.history import history_of
from tests.support.processes import running
from tests.support.sizes import sizes
from tests.support.traffic import submit

_RESULT_BYTES = 1024 * 1024


@sizes("count", short=150, whole=500)
async def test_large_results_that_end_together_are_held_once_each_and_all_are_kept(
    database_url: str, amqp_url: str, count: int
) -> None:
    settings = {"TURNSTILE_WORKER_CONCURRENCY": str(count)}
    async with (
        running(database_url, amqp_url, settings=settings) as system,
        history_of(database_url) as history,
    ):
        idle_mb = peak_mb(system.workers[0])
        parameters = {"size_bytes": _RESULT_BYTES, "ends_at": time.time() + 4}
        await submit(amqp_url, [{"action_ref": "large", "parameters": parameters}] * count)
        await history.ended(count)
        kept = "SELECT count(*) FROM execution WHERE status = 'completed' AND length(result::text) = $1"
        assert await history.value(kept, _RESULT_BYTES) == count
        # Each once, a statement's worth in packing and on its way, and what the allocator cannot reuse.
        assert peak_mb(system.workers[0]) < idle_mb + 1.25 * count + 100
        assert await history.faults() == []
