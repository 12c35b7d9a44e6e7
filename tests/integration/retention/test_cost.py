"""The cost of pruning does not grow with the tables, also with plans made while they were empty."""

from tests.integration.executor.page_counts import Cost, cost_of
from tests.support.protocol import Protocol

_ROWS = 30_000
_FILL = f"""
INSERT INTO execution (action_id, queue_id, status, request_hash, worker_id, attempt, created_at,
                       completed_at)
SELECT q.action_id, q.id, 'completed', gen_random_uuid(), 'w', 1, now() - interval '1 d',
       now() - interval '1 d'
FROM action_queue q, generate_series(1, {_ROWS}) ORDER BY q.id;
INSERT INTO attempt (execution_id, attempt, worker_id, outcome, granted_at, started_at, ended_at)
SELECT id, 1, 'w', 'completed', now(), now(), now() FROM execution WHERE worker_id = 'w';
INSERT INTO attempt_progress (execution_id, attempt, version, done, updated_at)
SELECT id, 1, 1, 1, now() FROM execution WHERE worker_id = 'w';
INSERT INTO gate_return (execution_id, returned_at) SELECT id, now() FROM execution WHERE worker_id = 'w';
UPDATE queue_state q SET total_enqueued = n.n, total_completed = n.n
FROM (SELECT queue_id, count(*) AS n FROM execution GROUP BY queue_id) n WHERE n.queue_id = q.queue_id;
ANALYZE
"""


async def test_the_cost_of_a_pruning_batch_does_not_grow_with_the_table(protocol: Protocol) -> None:
    for ref in ("a", "b"):
        await protocol.put(ref)
        (one,) = await protocol.submit(ref)
        await protocol.run(one)
        await protocol.settle((one, 1))

    async def prune(
        place: tuple[int, int] = (0, 0), *, age: float | None = None, count: int | None = None
    ) -> Cost:
        return await cost_of(
            protocol,
            protocol.connection.execute(
                "SELECT * FROM turnstile.prune($1, $2, $3, $4, 0, 100)", *place, age, count
            ),
        )

    def assert_small(cost: Cost, rows: int) -> None:
        assert cost.pages < 200 + 50 * rows, cost
        assert not cost.full_scans.keys() & {
            "execution",
            "attempt",
            "attempt_log",
            "attempt_progress",
            "gate_return",
            "action_queue",
            "queue_state",
        }, cost

    for _ in range(6):
        async with protocol.transaction():
            await prune(age=0.0, count=0)
    await protocol.connection.execute(_FILL)
    async with protocol.transaction():
        assert_small(await prune(age=2 * 86_400.0), 0)
        assert_small(await prune(age=3600.0), 100)
        assert_small(await prune(count=1000), 100)
        # A line of old ones that are still there for some reason is walked through, not read from its start.
        (middle,) = await protocol.column("SELECT id FROM execution ORDER BY id OFFSET 15000 LIMIT 1")
        assert_small(await prune((1, middle), age=3600.0), 100)


async def test_the_cost_of_a_search_for_idle_keys_does_not_grow_with_the_queues(protocol: Protocol) -> None:
    await protocol.put("a", concurrency_key="/key", max_concurrent=1)
    (one,) = await protocol.submit(parameters={"key": "first"})
    await protocol.run(one)
    await protocol.settle((one, 1))

    async def sweep_cost(after_id: int, idle_seconds: float) -> Cost:
        return await cost_of(
            protocol,
            protocol.connection.execute(
                "SELECT * FROM turnstile.delete_idle_queues($1, $2, 100)", after_id, idle_seconds
            ),
        )

    for _ in range(6):
        async with protocol.undone():
            await sweep_cost(0, 0.0)
    await protocol.connection.execute(
        "INSERT INTO action_queue (action_id, concurrency_key, max_concurrent)"
        f" SELECT id, 'key-' || n, 1 FROM action, generate_series(1, {_ROWS}) n;"
        " INSERT INTO queue_state SELECT id, 1, 0, 0, 0, 0, 0, NULL, now() - interval '1 d'"
        " FROM action_queue WHERE concurrency_key LIKE 'key-%';"
        " INSERT INTO slot (execution_id, queue_id, attempt, granted_at, offered_at)"
        f" SELECT n, n, 1, now(), now() FROM generate_series(1, {_ROWS}) n WHERE n % 10 = 0;"
        " INSERT INTO waiting (line_id, place) SELECT 2, n FROM generate_series(1, 30000) n; ANALYZE"
    )
    async with protocol.transaction():
        nothing_to_do, all_to_do = await sweep_cost(_ROWS // 2, 1e6), await sweep_cost(_ROWS // 2, 3600.0)
    assert await protocol.column("SELECT count(*) FROM action_queue") == [_ROWS + 1 - 90]
    for cost, pages in ((nothing_to_do, 50 + 6 * 100), (all_to_do, 200 + 30 * 100)):
        assert cost.pages < pages, cost
        assert not cost.full_scans.keys() & {
            "action_queue",
            "queue_state",
            "slot",
            "waiting",
            "pruned_count",
        }, cost
