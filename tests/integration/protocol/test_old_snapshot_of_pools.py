"""A snapshot that stays open elsewhere makes no decision about worker slots more expensive (P15)."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from statistics import median

import pytest

from tests.integration.executor.page_counts import Cost, cost_of
from tests.support.gates import put_resource
from tests.support.protocol import OTHER_WORKER, Protocol, request
from turnstile.common.domain.states import Status

_TURNS, _SAMPLE = 300, 20
_WAITING = 6
_TICKS = 300
_DEAD_VERSIONS = 2000
_NEW_KEYS, _NEW_KEYS_OF_EACH, _FEW = 2500, 250, 7
_TABLES = ("pool_state", "pool_turn", "ready_queue", "worker_pool")
_COUNT = "SELECT turnstile.refresh_pools(NULL, '{}', '{}', true)"
_REFRESH = """
SELECT turnstile.refresh_pools(
    (SELECT md5(string_agg(w.id, ',' ORDER BY w.id)) FROM turnstile.current_worker w
     WHERE w.stopped_at IS NULL),
    '{}', '{}', false)
"""


@pytest.fixture
async def counted(protocol: Protocol) -> Protocol:
    """A pool with four worker slots and a lead of one."""
    await protocol.connection.execute("SELECT turnstile.sign_off($1)", OTHER_WORKER)
    await protocol.put("a")
    await protocol.column(_COUNT)
    assert await protocol.column("SELECT capacity FROM turnstile.current_pool") == [5]
    return protocol


@pytest.fixture
async def full(counted: Protocol) -> Protocol:
    """Three actions share it that have no limit, a limit, and keys with a limit; the first two wait."""
    protocol = counted
    await protocol.put("b", max_concurrent=2)
    await protocol.put("k", max_concurrent=1, submitter_keys=True)
    for _ in range(_WAITING):
        await protocol.submit("a")
        await protocol.submit("b")
        await protocol.submit("k", concurrency_key="x")
        await protocol.submit("k", concurrency_key="y")
    assert await protocol.column("SELECT depth = 2 AND held = 5 FROM turnstile.current_pool") == [True]
    return protocol


async def _cost(protocol: Protocol, call: Awaitable[object]) -> Cost:
    async with protocol.transaction():
        return await cost_of(protocol, call)


def _stays_flat(name: str, first: Sequence[Cost], last: Sequence[Cost]) -> None:
    before, after = (median(cost.pages for cost in costs) for costs in (first, last))
    print(f"{name}: {before} pages, {after} afterwards")
    # Each index may have grown by one level, and a settle looks at the state of a pool many times.
    assert after <= before * 1.3 + 10, (name, before, after, _grown(first[-1], last[-1]))


def _grown(before: Cost, after: Cost) -> dict[str, tuple[int, int]]:
    """Return the tables and indexes of which more pages were read."""
    old = before.by_relation
    return {name: (old.get(name, 0), n) for name, n in after.by_relation.items() if n > old.get(name, 0) + 1}


async def _turn(protocol: Protocol, *, is_measured: bool = True) -> dict[str, Cost]:
    """Let the oldest granted execution run and end, and submit one like it; return what that cost."""
    costs: dict[str, Cost] = {}

    async def step(name: str, call: Awaitable[object]) -> None:
        if is_measured:
            costs[name] = await _cost(protocol, call)
        else:
            await call

    (row,) = await protocol.connection.fetch(
        "SELECT s.execution_id, s.attempt, a.ref, e.concurrency_key FROM turnstile.live_slot s"
        " JOIN execution e ON e.id = s.execution_id JOIN action a ON a.id = e.action_id ORDER BY 1 LIMIT 1"
    )
    one, attempt = row["execution_id"], row["attempt"]
    key = {"concurrency_key": row["concurrency_key"]} if row["concurrency_key"] else {}
    await protocol.run(one, attempt=attempt)
    await step("settle", protocol.settle_as((one, attempt, Status.COMPLETED)))
    await step("admit", protocol.submit(row["ref"], **key))
    more = await protocol.column(
        "SELECT unnest(turnstile.queues_with_room(ARRAY(SELECT id FROM worker_pool)))"
    )
    if more:
        await step("grant", protocol.grant(*more))
    return costs


async def _sweeps(protocol: Protocol) -> dict[str, Cost]:
    await _move_window(protocol)
    return {
        "count": await _cost(protocol, protocol.column(_COUNT)),
        "refresh": await _cost(protocol, protocol.column(_REFRESH)),
        "grantable_queues": await _cost(protocol, protocol.grantable_queues()),
        "reclaim": await _cost(protocol, protocol.reclaim()),
    }


async def _move_window(protocol: Protocol) -> None:
    for _ in range(2):
        await protocol.column("SELECT turnstile.move_slot_window(0, 0)")


async def test_the_cost_of_a_full_pool_stays_flat(old_snapshot: None, full: Protocol) -> None:
    for _ in range(_SAMPLE):
        await _turn(full)
    first = [await _turn(full) for _ in range(_SAMPLE)]
    sweeps = await _sweeps(full)
    for _ in range(_TURNS):
        await _turn(full, is_measured=False)
    last = [await _turn(full) for _ in range(_SAMPLE)]
    for name in ("settle", "admit"):
        _stays_flat(name, *([turn[name] for turn in turns] for turns in (first, last)))
    for name, cost in (await _sweeps(full)).items():
        _stays_flat(name, [sweeps[name]], [cost])


async def test_pools_that_fill_and_empty_at_every_tick_cost_what_they_did(
    old_snapshot: None, counted: Protocol
) -> None:
    """Each recount inserts what it notes, and each settle and each count reads it."""
    protocol = counted

    async def fill() -> int:
        """Let six executions run, and end all but the returned one."""
        *others, last = await protocol.submit("a", 6)
        for one in others:
            await protocol.run(one)
            await protocol.settle_as((one, 1, Status.COMPLETED))
        await protocol.run(last)
        return last

    async def tick() -> dict[str, Cost]:
        settle = await _cost(protocol, protocol.settle_as((await fill(), 1, Status.COMPLETED)))
        return {"settle": settle, "count": await _cost(protocol, protocol.column(_COUNT))}

    first = [await tick() for _ in range(_SAMPLE)]
    for number in range(_TICKS):
        await protocol.settle_as((await fill(), 1, Status.COMPLETED))
        await protocol.column(_COUNT)
        if number % 100 == 0:
            await _move_window(protocol)
    await _move_window(protocol)
    last = [await tick() for _ in range(_SAMPLE)]
    for name in first[0]:
        _stays_flat(name, *([costs[name] for costs in ticks] for ticks in (first, last)))


async def test_arrivals_of_new_keys_in_a_full_pool_cost_what_they_did(
    old_snapshot: None, full: Protocol
) -> None:
    """Beside actions with gates: by arrival, fair, with a rate. One set of workers is busy all the time."""
    protocol = full
    await put_resource(protocol.database, "line", 1, rank=1)
    await put_resource(protocol.database, "shares", 1, rank=2, order="fair")
    await put_resource(protocol.database, "mail", None, rank=3, rate={"starts": 1, "per": 3600})
    for name in ("line", "shares", "mail"):
        await protocol.put(f"of_{name}", uses=[{"resource": name}])
    await protocol.register("other", serves=["elsewhere"])
    await protocol.register("small", serves=["of_line", "of_shares", "of_mail", "k"], concurrency=1)
    await protocol.column(_COUNT)
    gated = [f"of_{name}" for name in ("line", "shares", "mail")]
    numbers = count()

    async def arrive(keys: int) -> Cost:
        batch = [request("k", concurrency_key=f"new {next(numbers)}") for _ in range(keys)]
        return await _cost(protocol, protocol.admit(*batch))

    async def step() -> dict[str, Cost]:
        cost = {"admit": await arrive(1)}
        for ref in gated:
            cost[ref] = await _cost(protocol, protocol.submit(ref))
        more = await protocol.column(
            "SELECT unnest(more_queue_ids) FROM turnstile.refresh_pools(NULL, '{}', '{}', false)"
        )
        await protocol.grant(*more)
        turn = await _turn(protocol)
        return cost | {"refresh": await _cost(protocol, protocol.column(_REFRESH)), "settle": turn["settle"]}

    # From now on more keys wait than one decision reads, so that only what waits behind them can cost more.
    await arrive(_NEW_KEYS_OF_EACH)
    for _ in range(_SAMPLE):
        await step()
    first = [await step() for _ in range(_FEW)]
    for _ in range(_NEW_KEYS // _NEW_KEYS_OF_EACH):
        await arrive(_NEW_KEYS_OF_EACH)
        await step()
    # As the server does from time to time: plans depend on how many seem to wait.
    await protocol.connection.execute("ANALYZE")
    await _move_window(protocol)
    last = [await step() for _ in range(_FEW)]
    for name in first[0]:
        _stays_flat(name, *([costs[name] for costs in steps] for steps in (first, last)))


_READERS: dict[str, Callable[[Protocol], Awaitable[object]]] = {
    "admit": lambda p: p.submit("a"),
    "admit with a key": lambda p: p.submit("k", concurrency_key="x"),
    "settle": lambda p: p.settle_as((1, 1, Status.COMPLETED)),
    "cancel": lambda p: p.cancel(20),
    "grant": lambda p: p.grant(1),
    "reclaim": Protocol.reclaim,
    "count": lambda p: p.column(_COUNT),
    "refresh": lambda p: p.column(_REFRESH),
    "grantable_queues": Protocol.grantable_queues,
    "put": lambda p: p.put("a", max_concurrent=9),
    "prune_pools": lambda p: p.column("SELECT turnstile.prune_pools(100)"),
}


async def test_statistics_of_dead_versions_lead_to_no_plan_that_reads_them(
    old_snapshot: None, full: Protocol
) -> None:
    """The indexes have grown and few rows live, so a bitmap looks cheaper than a search in order."""
    await full.run(1)

    async def costs() -> dict[str, Cost]:
        found = {}
        await full.connection.execute(f"ANALYZE {', '.join(_TABLES)}")
        for name, call in _READERS.items():
            async with full.undone():
                found[name] = await cost_of(full, call(full))
        return found

    first = await costs()
    await full.connection.execute(_WRITE_ANEW)
    last = await costs()
    grown = [name for name in first if last[name].pages > first[name].pages * 1.3 + 12]
    assert {name: _grown(first[name], last[name]) for name in grown} == {}


_WRITE_ANEW = f"""
DO $$ BEGIN
    FOR number IN 1..{_DEAD_VERSIONS} LOOP
        WITH state AS (DELETE FROM pool_state RETURNING *),
             turn AS (DELETE FROM pool_turn RETURNING *),
             new_state AS (
                INSERT INTO pool_state
                SELECT s.pool_id, s.version + 1, s.capacity, s.places, s.lead, s.leaving, s.held, s.depth,
                       ARRAY(SELECT v + 1 FROM unnest(s.virtual_times) v), s.total_released, NULL,
                       s.updated_at
                FROM state s
             )
        INSERT INTO pool_turn SELECT t.action_id, t.priority, t.start_tag + 1, t.pool_id, t.place FROM turn t;
        COMMIT;
        -- A queue that had its turn.
        INSERT INTO ready_queue SELECT id, number - {_DEAD_VERSIONS} - 1, 1 FROM action;
        COMMIT;
        DELETE FROM ready_queue WHERE place < 0;
        COMMIT;
    END LOOP;
END $$
"""
"""What decisions leave: dead versions of all rows, below the live ones."""
