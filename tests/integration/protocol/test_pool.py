"""Pools of workers as gates: an execution is granted only if its pool has capacity (P7, P9, P12, P14)."""

import asyncio

import pytest

from tests.support.gates import put_resource
from tests.support.protocol import WORKER, Protocol, accepted, connected, ids_in, request
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.executor.slot_grants import QueueManager


async def refresh(protocol: Protocol, leads: dict[str, int] | None = None) -> list[int]:
    """Count the workers; return what was granted by that."""
    leads = leads or {}
    ids = await protocol.column("SELECT id FROM worker_pool WHERE name = ANY ($1) ORDER BY name", list(leads))
    row = await protocol.row(
        "SELECT * FROM turnstile.refresh_pools(NULL, $1, $2, true)",
        ids,
        [leads[name] for name in sorted(leads)],
    )
    return ids_in(await protocol.grant(*(row["more_queue_ids"] or ())))


async def granted(protocol: Protocol) -> list[int]:
    return await protocol.column("SELECT execution_id FROM slot ORDER BY execution_id")


async def pool(protocol: Protocol, name: str = "default") -> tuple[int, int]:
    """Return the held worker slots and the number of ready queues."""
    row = await protocol.row("SELECT held, depth FROM turnstile.current_pool WHERE name = $1", name)
    await agrees(protocol)
    return row["held"], row["depth"]


async def agrees(protocol: Protocol) -> None:
    """Check the states of the pools against the rows that they count."""
    wrong = await protocol.connection.fetch(
        "SELECT p.name FROM turnstile.current_pool p"
        " WHERE p.held <> (SELECT count(*) FROM slot s WHERE s.pool_id = p.id)"
        " OR p.depth <> (SELECT count(*) FROM ready_queue r JOIN action a ON a.id = r.action_id"
        "                WHERE a.pool_id = p.id) + coalesce((SELECT s.is_scarce::integer"
        "                FROM turnstile.current_worker_sets s WHERE s.pool_id = p.id), 0)"
    )
    assert not wrong
    turns = await protocol.connection.fetch(
        "SELECT r.action_id, turnstile.priority_of_place(r.place) AS priority, min(r.place) AS place,"
        " (SELECT count(*) FROM pool_turn t JOIN turnstile.current_pool p ON p.id = t.pool_id"
        "  WHERE t.action_id = r.action_id AND t.priority = turnstile.priority_of_place(min(r.place))"
        "    AND t.place = min(r.place) AND t.start_tag >= p.virtual_times[t.priority]) AS turns"
        " FROM ready_queue r"
        " WHERE NOT EXISTS (SELECT FROM turnstile.current_worker_sets s"
        "                   WHERE s.is_scarce AND r.action_id = ANY (s.action_ids)) GROUP BY 1, 2"
    )
    assert all(row["turns"] == 1 for row in turns), turns


async def end(protocol: Protocol, *execution_ids: int) -> list[int]:
    """Let these run and end, and settle them; return what that granted."""
    freed = await protocol.settle(*(await finish(protocol, *execution_ids)).items())
    await agrees(protocol)
    return freed.granted


async def finish(protocol: Protocol, *execution_ids: int) -> dict[int, int]:
    """Let these run and end; return their attempts."""
    rows = await protocol.connection.fetch(
        "SELECT execution_id, attempt FROM slot WHERE execution_id = ANY ($1)", list(execution_ids)
    )
    attempts = {row["execution_id"]: row["attempt"] for row in rows}
    for execution_id in execution_ids:
        await protocol.connection.execute(
            "UPDATE slot SET worker_id = $2, claimed_at = coalesce(claimed_at, clock_timestamp()),"
            " finished_at = clock_timestamp(), published_at = clock_timestamp() WHERE execution_id = $1",
            execution_id,
            WORKER,
        )
        await protocol.connection.execute(
            "UPDATE execution SET status = 'completed', completed_at = clock_timestamp(), attempt = $2,"
            " worker_id = $3, scheduled_at = clock_timestamp(), started_at = clock_timestamp() WHERE id = $1",
            execution_id,
            attempts[execution_id],
            WORKER,
        )
    return attempts


async def drop_workers(protocol: Protocol) -> None:
    """Stop the workers that each test has."""
    for worker in await protocol.column("SELECT id FROM worker"):
        await protocol.connection.execute("SELECT turnstile.sign_off($1)", worker)


@pytest.fixture
async def working(protocol: Protocol) -> Protocol:
    """One worker with four worker slots, and a lead of one."""
    await drop_workers(protocol)
    await protocol.register("first")
    await protocol.put("a")
    await refresh(protocol)
    return protocol


async def test_a_duplicate_grants_what_its_pool_has_room_for(working: Protocol) -> None:
    known = request("a", idempotency_key="k")
    (verdict,), _ = await working.admit(known)
    handed_back = accepted(verdict).execution_id
    ids = await working.submit("a", 7)
    assert await granted(working) == [handed_back, *ids[:4]]
    await working.claim(handed_back, worker="first")
    await working.hand_back(handed_back, worker="first")
    _, grants = await working.admit(known)
    assert ids_in(grants) == [handed_back]


async def test_no_more_is_granted_than_the_pool_has_worker_slots(working: Protocol) -> None:
    ids = await working.submit("a", 8)
    assert await granted(working) == ids[:5]
    assert await pool(working) == (5, 1)
    assert await end(working, *ids[:2]) == ids[5:7]
    assert await end(working, *ids[2:5]) == ids[7:]
    assert await pool(working) == (3, 0)
    more = await working.submit("a", 1)
    assert await granted(working) == ids[5:] + more


async def test_without_an_executor_that_counts_workers_there_is_no_limit(protocol: Protocol) -> None:
    await protocol.put("a")
    ids = await protocol.submit("a", 50)
    assert await granted(protocol) == ids


async def test_waiting_for_a_worker_slot_takes_no_slot_of_the_queue(working: Protocol) -> None:
    await working.put("b", max_concurrent=2)
    ids = await working.submit("a", 5)
    waiting = await working.submit("b", 2)
    assert await granted(working) == ids
    row = await working.row(
        "SELECT q.held, q.depth FROM turnstile.current_queue q JOIN action a ON a.id = q.action_id"
        " WHERE a.ref = 'b'"
    )
    assert (row["held"], row["depth"]) == (0, 2)
    assert await end(working, *ids[:3]) == waiting


async def test_actions_take_turns(working: Protocol) -> None:
    """The neighbour with a thousand executions gets every second worker slot."""
    many = await working.submit("a", 40)
    await working.put("b")
    few = await working.submit("b", 3)
    assert await end(working, *many[:2]) == [many[5], few[0]]
    assert await end(working, many[2], many[3]) == [many[6], few[1]]
    assert await end(working, many[4], many[5]) == [many[7], few[2]]
    assert await end(working, few[0], few[1]) == many[8:10]


async def test_settles_know_whether_something_waits_for_a_worker_slot(working: Protocol) -> None:
    """Only then they look for other queues that could use their worker slots, and grant to them."""

    async def noted() -> bool:
        (waits,) = await working.column("SELECT waits FROM worker_pool")
        await agrees(working)
        return bool(waits)

    assert not await noted()
    first = await working.submit("a", 5)
    assert not await noted()
    await working.put("b")
    waiting = await working.submit("b", 2)
    assert await noted()
    # Pruning keeps the note while one of them waits.
    prune = "SELECT turnstile.prune_pools(100)"
    assert await end(working, first[0]) == waiting[:1]
    await working.column(prune)
    assert await noted()
    assert await end(working, first[1]) == waiting[1:]
    await working.column(prune)
    assert not await noted()
    later = await working.submit("a", 1)
    assert await noted()
    assert await end(working, waiting[0]) == later


async def test_an_action_that_was_idle_has_no_credit(working: Protocol) -> None:
    await working.put("b")
    first = await working.submit("a", 40)
    for number in range(10):
        await end(working, first[number])
    late = await working.submit("b", 10)
    # Each has its turn from now on.
    order = await end(working, *first[10:15])
    assert len([i for i in order if i in late]) in (2, 3)


async def test_within_an_action_the_oldest_of_all_keys_is_first(working: Protocol) -> None:
    await working.put("k", max_concurrent=2, submitter_keys=True)
    first = await working.submit("a", 5)
    ids = []
    for key in ("x", "x", "y", "x", "z", "y"):
        ids += await working.submit("k", 1, concurrency_key=key)
    # The third of key x waits for the limit of its key.
    order = [await end(working, each) for each in first]
    assert order == [[ids[0]], [ids[1]], [ids[2]], [ids[4]], [ids[5]]]
    assert await end(working, ids[0]) == [ids[3]]


async def test_an_action_without_a_worker_waits_and_blocks_nothing(protocol: Protocol) -> None:
    await drop_workers(protocol)
    await protocol.register("first", serves=["a"])
    await protocol.put("a")
    await protocol.put("b")
    await refresh(protocol)
    waiting = await protocol.submit("b", 3)
    ids = await protocol.submit("a", 6)
    assert await granted(protocol) == ids[:5]
    assert await pool(protocol) == (5, 1)
    await end(protocol, *ids[:3])
    await protocol.register("second", serves=["b"])
    assert await refresh(protocol) == waiting
    assert set(waiting) <= set(await granted(protocol))


async def test_a_new_pool_has_no_worker_slots_before_its_workers_are_counted(working: Protocol) -> None:
    await working.put("b", pool="gpu")
    ids = await working.submit("b", 2)
    assert await granted(working) == []
    await working.register("second", pools=["gpu"])
    assert await refresh(working) == ids
    assert await pool(working, "gpu") == (2, 0)


async def test_the_first_pool_of_an_installation_has_its_worker_slots_at_once(protocol: Protocol) -> None:
    await protocol.connection.execute("TRUNCATE worker_pool, pool_state")
    await refresh(protocol)
    await protocol.put("a")
    assert await protocol.column("SELECT capacity FROM turnstile.current_pool WHERE name = 'default'") == [5]


async def test_what_a_draining_worker_runs_leaves_the_pool_with_it(working: Protocol) -> None:
    ids = await working.submit("a", 4)
    assert await working.claim_verdicts(*ids, worker="first") == ["claimed"] * 4
    await working.register("second")
    await working.connection.execute("SELECT turnstile.drain_worker($1)", "first")
    await refresh(working)
    more = await working.submit("a", 9)
    assert await granted(working) == ids + more[:5]


async def test_a_larger_lead_grants_more_and_a_smaller_one_takes_nothing(working: Protocol) -> None:
    ids = await working.submit("a", 20)
    assert await refresh(working, {"default": 6}) == ids[5:10]
    assert await refresh(working, {"default": 1}) == []
    assert await pool(working) == (10, 1)
    assert await end(working, *ids[:5]) == []
    assert await end(working, ids[5]) == [ids[10]]


async def test_a_cancelled_or_paused_turn_is_passed_over(working: Protocol) -> None:
    ids = await working.submit("a", 5)
    for ref in ("b", "c", "d"):
        await working.put(ref)
    gone = await working.submit("b", 1)
    paused = await working.submit("c", 1)
    last = await working.submit("d", 1)
    await working.cancel(*gone)
    await working.put("c", paused=True)
    assert await end(working, ids[0]) in (last, [])
    await follow(working)
    assert set(last) <= set(await granted(working))
    assert not {*gone, *paused} & set(await granted(working))


async def follow(protocol: Protocol) -> None:
    """Grant as the executor does with `more_queue_ids`, until nothing is left."""
    for _ in range(20):
        more = await protocol.column(
            "SELECT unnest(turnstile.queues_with_room(ARRAY(SELECT id FROM worker_pool)))"
        )
        if not more:
            return
        await protocol.grant(*more)
    raise AssertionError("places and queues are left")


async def test_a_deleted_queue_does_not_hold_up_the_turns(working: Protocol) -> None:
    ids = await working.submit("a", 5)
    await working.put("b")
    await working.submit("b", 1)
    await working.connection.execute(
        "DELETE FROM action_queue q USING action a WHERE a.id = q.action_id AND a.ref = 'b'"
    )
    await working.put("c")
    last = await working.submit("c", 1)
    await end(working, ids[0])
    await follow(working)
    assert set(last) <= set(await granted(working))


async def test_a_change_of_pool_keeps_the_counts_right(working: Protocol) -> None:
    ids = await working.submit("a", 8)
    await working.register("second", pools=["gpu"])
    await working.put("a", pool="gpu")
    await refresh(working)
    assert await pool(working) == (5, 0)
    assert await pool(working, "gpu") == (3, 0)
    await end(working, *ids[:5])
    assert await pool(working) == (0, 0)


async def test_reclaimed_work_returns_its_worker_slot(working: Protocol) -> None:
    ids = await working.submit("a", 6)
    assert await working.claim_verdicts(*ids[:5], worker="first") == ["claimed"] * 5
    await working.register("second")
    await working.lose_lease("first")
    reclaimed = await working.reclaim()
    assert sorted(reclaimed.granted) == ids[:5]
    await refresh(working)
    assert (await pool(working))[0] == 5


async def test_counts_are_repaired(working: Protocol) -> None:
    await working.submit("a", 3)
    await working.connection.execute("UPDATE pool_state SET held = 9, granted_capacity = NULL")
    await refresh(working)
    assert await pool(working) == (3, 0)


async def test_the_watchdog_finds_what_lost_its_turn(working: Protocol) -> None:
    ids = await working.submit("a", 7)
    await working.connection.execute("DELETE FROM ready_queue")
    await working.connection.execute("DELETE FROM pool_turn")
    await working.connection.execute("UPDATE pool_state SET depth = 0")
    queue_ids = await working.column("SELECT unnest(queue_ids) FROM turnstile.grantable_queues(0, 100)")
    await working.grant(*queue_ids)
    assert await pool(working) == (5, 1)
    assert await end(working, ids[0]) == [ids[5]]
    assert await working.column("SELECT unnest(queue_ids) FROM turnstile.grantable_queues(0, 100)") == []


async def test_a_locked_pool_starts_nothing_delays_no_other_and_is_counted_afterwards(
    working: Protocol, database_url: str
) -> None:
    await working.register("second", pools=["gpu"])
    await working.put("b", pool="gpu")
    await refresh(working)
    ids = await working.submit("a", 7)
    manager = QueueManager(working.database, lock_timeout_seconds=0.05)
    async with connected(database_url) as other, other.transaction():
        await other.connection.execute("SELECT FROM worker_pool WHERE name = 'default' FOR UPDATE")
        attempts = await finish(working, ids[0])
        settled = await manager.settle(
            [(ExecutionId(i), Attempt(attempt), Status.COMPLETED) for i, attempt in attempts.items()]
        )
        assert (settled.count, ids_in(settled.grants)) == (1, [])
        verdicts, grants = await manager.admit([request("b")])
        assert ids_in(grants) == [accepted(verdict).execution_id for verdict in verdicts]
    assert await refresh(working) == [ids[5]]
    assert await pool(working) == (5, 1)


async def test_a_queue_that_another_session_holds_loses_its_turn(
    working: Protocol, database_url: str
) -> None:
    ids = await working.submit("a", 5)
    for ref in ("b", "c"):
        await working.put(ref)
    held, free = await working.submit("b", 1), await working.submit("c", 1)
    manager = QueueManager(working.database, lock_timeout_seconds=0.05)
    async with connected(database_url) as other, other.transaction():
        await other.connection.execute(
            "SELECT FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = 'b' FOR UPDATE OF q"
        )
        attempts = await finish(working, *ids[:2])
        settled = await manager.settle(
            [(ExecutionId(i), Attempt(attempt), Status.COMPLETED) for i, attempt in attempts.items()]
        )
        assert ids_in(settled.grants) == free
        assert await pool(working) == (4, 0)
    await working.grant(*await working.grantable_queues())
    assert set(held) <= set(await granted(working))


async def test_a_start_of_a_rate_is_taken_together_with_a_worker_slot(working: Protocol) -> None:
    """However many executions wait for the rate: those that it allows find the pool full."""
    await working.put("rated", rate={"starts": 1, "per": "50ms"})
    ids = await working.submit("rated", 12)
    queue_id = (await working.queue("rated"))["id"]
    next_seconds = None
    for _ in range(12):
        await working.grant(queue_id)
        await asyncio.sleep(0.06)
        row = await working.row("SELECT * FROM turnstile.pass_rates()")
        next_seconds = row["next_seconds"]
    assert await granted(working) == ids[:5]
    # It looks again before long: a worker slot may become free by what has nothing to do with this rate.
    assert next_seconds is not None
    assert next_seconds <= 0.05
    await end(working, *ids[:2])
    await asyncio.sleep(0.06)
    await working.row("SELECT * FROM turnstile.pass_rates()")
    assert set(await granted(working)) <= set(ids[2:7])
    assert (await pool(working))[0] <= 5


async def pass_rates(protocol: Protocol) -> list[int]:
    """Look for worker slots and starts as the timer of an executor does; return what was granted."""
    row = await protocol.row("SELECT * FROM turnstile.pass_rates()")
    await agrees(protocol)
    return [item["execution_id"] for item in row["granted"] or ()]


async def test_what_waited_at_a_resource_starts_in_worker_slots_of_the_pool_only(working: Protocol) -> None:
    """And a plain action has its turns between them."""
    await put_resource(working.database, "cad", 1, rank=1)
    await working.put("gated", uses=[{"resource": "cad"}])
    ids = await working.submit("gated", 20)
    queue_id = (await working.queue("gated"))["id"]
    while await working.column("SELECT 1 FROM turnstile.current_queue WHERE id = $1 AND depth > 0", queue_id):
        await working.grant(queue_id)
    assert await granted(working) == ids[:1]
    await put_resource(working.database, "cad", 100, rank=1)
    await working.row("SELECT * FROM turnstile.advance_gates(1000)")
    assert await granted(working) == ids[:5]
    assert await pool(working) == (5, 0)
    plain = await working.submit("a", 2)
    assert await end(working, ids[0]) in ([], plain[:1])
    running: list[int] = []
    for _ in range(6):
        running = await granted(working)
        if plain[1] in running:
            break
        await end(working, running[0])
        await pass_rates(working)
    assert set(plain) <= {*await granted(working), *running}, "the plain action waits for all of them"
    assert (await pool(working))[0] <= 6
    while await granted(working):
        await end(working, *(await granted(working))[:2])
        await pass_rates(working)
        await follow(working)
    assert await working.waiting() == []


async def test_a_start_that_is_due_has_its_turn_in_a_full_pool(working: Protocol) -> None:
    """Each settle of the plain action shares what it frees, and does not look at the rate."""
    await working.put("rated", rate={"starts": 1, "per": "50ms"})
    rated = await working.submit("rated", 2)
    await working.grant((await working.queue("rated"))["id"])
    assert await granted(working) == rated[:1]
    plain = await working.submit("a", 40)
    await end(working, rated[0])
    await follow(working)
    await asyncio.sleep(0.06)
    for number in range(4):
        if rated[1] in await granted(working):
            break
        await end(working, plain[number])
        await pass_rates(working)
    assert rated[1] in await granted(working)
    assert (await pool(working))[0] <= 6, "it took one worker slot in advance"
    # The next worker slot that becomes free pays for it.
    held = (await pool(working))[0]
    running = [one for one in await granted(working) if one != rated[1]]
    assert len(await end(working, running[0])) <= 5 - held + 1


async def test_a_run_of_a_leaving_worker_gives_its_worker_slot_up_when_it_ends(working: Protocol) -> None:
    (first,) = await working.submit("a", 1)
    await working.run(first, worker="first")
    (running,) = await working.submit("a", 1)
    assert await working.claim_verdicts(running, worker="first") == ["claimed"]
    await working.register("second")
    await working.connection.execute("SELECT turnstile.drain_worker($1)", "first")
    await refresh(working)
    capacity = "SELECT capacity FROM turnstile.current_pool WHERE name = 'default'"
    workers = await working.column("SELECT workers FROM turnstile.refresh_pools(NULL, '{}', '{}', true)")
    assert await working.column(capacity) == [6]
    await end(working, first, running)
    await working.row("SELECT * FROM turnstile.refresh_pools($1, '{}', '{}', false)", workers[0])
    assert await working.column(capacity) == [5]


@pytest.fixture
async def mixed(protocol: Protocol) -> Protocol:
    """Two workers with four worker slots each for `a`, and one with one for `b` and `c`: a lead of three."""
    await drop_workers(protocol)
    await protocol.register("first", serves=["a"])
    await protocol.register("second", serves=["a"])
    await protocol.register("small", serves=["b", "c"], concurrency=1)
    for ref in ("a", "b", "c"):
        await protocol.put(ref)
    await refresh(protocol)
    return protocol


async def test_what_the_workers_of_an_action_cannot_take_waits_and_blocks_nothing(mixed: Protocol) -> None:
    """The first executions may take what is free; the next count holds the others back, with those of `c`."""
    small = await mixed.submit("b", 30, priority=1)
    assert await granted(mixed) == small[:12]
    assert await refresh(mixed) == []
    many = await mixed.submit("a", 9)
    assert await granted(mixed) == small[:12] + many[:8]
    assert await end(mixed, *many[:2]) == [many[8]]
    # Until there is room for them, one that runs and the lead, their own ends grant nothing.
    assert await end(mixed, *small[:8]) == []
    assert await refresh(mixed) == []
    assert await end(mixed, small[8]) == [small[12]]
    assert await end(mixed, *small[9:13]) == small[13:17]
    # The other action of these workers has its turns between them.
    more = await mixed.submit("c", 2, priority=1)
    await end(mixed, *small[13:15])
    await follow(mixed)
    assert await granted(mixed) == small[15:18] + many[2:] + more[:1]


async def test_a_set_of_busy_workers_holds_its_capacity_and_the_lead(mixed: Protocol) -> None:
    first = await mixed.submit("b", 1)
    assert await refresh(mixed) == []
    # From now on each grant counts, in one call or in many.
    ids = [*first, *(await mixed.submit("c", 2)), *[(await mixed.submit("b"))[0] for _ in range(3)]]
    assert await granted(mixed) == ids[:4]
    many = await mixed.submit("a", 9)
    assert await granted(mixed) == ids[:4] + many[:8]
    # Idle workers count no longer.
    await end(mixed, *ids[:4])
    await follow(mixed)
    assert set(ids[4:]) <= set(await granted(mixed))
    await end(mixed, *ids[4:])
    await refresh(mixed)
    rooms = await mixed.column(
        "SELECT s.rooms[m.number] FROM turnstile.current_worker_sets s"
        " CROSS JOIN unnest(s.action_ids, s.set_numbers) m(action_id, number)"
        " JOIN action a ON a.id = m.action_id WHERE a.ref = 'b'"
    )
    assert rooms == [None]
    await agrees(mixed)


async def test_workers_that_serve_more_count_for_what_they_all_serve(protocol: Protocol) -> None:
    """As while a new version is rolled out: `c` is new, and its workers run the others too."""
    await drop_workers(protocol)
    await protocol.register("old", serves=["a"])
    await protocol.register("new", serves=["a", "c"], concurrency=2)
    for ref in ("a", "c"):
        await protocol.put(ref)
    await refresh(protocol)
    new = await protocol.submit("c", 2)
    await refresh(protocol)
    new += await protocol.submit("c", 4)
    assert await granted(protocol) == new[:4]
    many = await protocol.submit("a", 9)
    assert await granted(protocol) == new[:4] + many[:4]
    # The last old worker leaves: now there is one set, which is no limit of its own.
    await protocol.connection.execute("SELECT turnstile.drain_worker('old')")
    await refresh(protocol)
    assert await protocol.column("SELECT cardinality(places) FROM turnstile.current_worker_sets") == [0]
    await pool(protocol)


async def test_a_set_keeps_nothing_of_a_worker_that_leaves(mixed: Protocol) -> None:
    running = await mixed.submit("b", 1)
    assert await mixed.claim_verdicts(*running, worker="small") == ["claimed"]
    await mixed.register("next", serves=["b", "c"], concurrency=1)
    await mixed.connection.execute("SELECT turnstile.drain_worker('small')")
    await refresh(mixed)
    (one,) = await mixed.submit("b", 1)
    await refresh(mixed)
    more = await mixed.submit("b", 5)
    assert await granted(mixed) == [*running, one, *more[:3]]
    await pool(mixed)


async def test_gated_actions_of_busy_workers_are_passed_over(mixed: Protocol) -> None:
    await put_resource(mixed.database, "cad", 100, rank=1)
    await mixed.put("b", uses=[{"resource": "cad"}])
    ids = await mixed.submit("b", 2)
    queue_id = (await mixed.queue("b"))["id"]
    await mixed.grant(queue_id)
    await mixed.submit("c", 2)
    await refresh(mixed)
    ids += await mixed.submit("b", 3)
    await mixed.grant(queue_id)
    await pass_rates(mixed)
    assert not set(ids[2:]) & set(await granted(mixed))
    await end(mixed, *ids[:2])
    await refresh(mixed)
    await pass_rates(mixed)
    assert set(ids[2:]) & set(await granted(mixed))
