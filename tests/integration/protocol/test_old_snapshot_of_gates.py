"""A snapshot that stays open elsewhere makes no sweep over gates and no look at a rate dearer (P15).

Counted in index entries: hundreds of those rows are in one page.
"""

import pytest

from tests.support.protocol import Protocol, request

_BATCHES, _BATCH = 8, 500
_STARTS, _IN_WINDOW = 2000, 5
_CYCLES = 300
_SEARCHES = 60
"""Entries of binary searches: a few for each time that the range doubles."""
_READ = """
SELECT sum(pg_stat_get_xact_tuples_returned(c.oid))::bigint
FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'i'
"""
_TURNS = "SELECT count(*) FROM flow_turn t JOIN gate g ON g.id = t.gate_id WHERE g.kind = 'action'"
_TIDY = "SELECT turnstile.tidy_gates(1000)"
_STARTS_LEFT = "SELECT l.starts FROM turnstile.starts_left(ARRAY(SELECT id FROM gate), clock_timestamp()) l"
_TAKE = """
WITH old AS (
    DELETE FROM gate_state v USING gate g WHERE g.id = v.gate_id AND g.rate_starts IS NOT NULL RETURNING v.*
),
new AS (
    INSERT INTO gate_state
    SELECT o.gate_id, o.version + 1, o.held, o.depth, o.head_id, o.heads, o.virtual_times,
           o.starts_taken + $1, NULL, o.updated_at
    FROM old o
)
INSERT INTO rate_start (gate_id, number, granted_at)
SELECT o.gate_id, o.starts_taken + n, clock_timestamp() - make_interval(secs => $2)
FROM old o CROSS JOIN generate_series(1, $1::bigint) n
"""
"""What decisions leave that have taken so many starts, so long ago."""


async def _take(protocol: Protocol, starts: int, seconds_ago: float) -> None:
    await protocol.connection.execute(_TAKE, starts, seconds_ago)


async def _entries(protocol: Protocol, statement: str) -> int:
    """Run a statement; return how many index entries it reads, also those of rows that were deleted."""
    async with protocol.transaction():
        (before,) = await protocol.column(_READ)
        await protocol.column(statement)
        (after,) = await protocol.column(_READ)
    return int(after - before)


async def _looks(protocol: Protocol) -> dict[str, int]:
    """Return what it costs to look at the rate while few of its starts count."""
    async with protocol.undone():
        await _take(protocol, _IN_WINDOW, 0)
        entries = {
            name: await _entries(protocol, statement)
            for name, statement in {
                "starts_left": _STARTS_LEFT,
                "pass_rates": "SELECT next_seconds FROM turnstile.pass_rates()",
                "clamp_future_instants": "SELECT turnstile.clamp_future_instants(false)",
                "tidy_gates": _TIDY,
            }.items()
        }
        assert await protocol.column(_STARTS_LEFT) == [_STARTS - _IN_WINDOW]
    return entries


def _dearer(first: dict[str, int], last: dict[str, int]) -> dict[str, tuple[int, int]]:
    print(first, last)
    return {name: (first[name], n) for name, n in last.items() if n > first[name] * 1.2 + _SEARCHES}


async def test_starts_that_were_deleted_are_not_read(protocol: Protocol, old_snapshot: None) -> None:
    await protocol.put("a", rate={"starts": _STARTS, "per": "1s"})
    await _looks(protocol)
    first = await _looks(protocol)
    for _ in range(_BATCHES):
        await _take(protocol, _BATCH, 3600)
        await protocol.column(_TIDY)
        assert await protocol.column("SELECT count(*) FROM rate_start") == [0]
    assert _dearer(first, await _looks(protocol)) == {}


async def test_expired_starts_are_not_read(protocol: Protocol) -> None:
    """They stay for a minute, which is many at a rate that is used below its limit."""
    await protocol.put("a", rate={"starts": _STARTS, "per": "1s"})
    await _looks(protocol)
    first = await _looks(protocol)
    await _take(protocol, _BATCHES * _BATCH, 30)
    assert _dearer(first, await _looks(protocol)) == {}


async def test_more_starts_than_one_sweep_may_delete_go_with_the_next_ones(protocol: Protocol) -> None:
    await protocol.put("a", rate={"starts": _STARTS, "per": "1s"})
    await _take(protocol, 25, 3600)
    await _take(protocol, _IN_WINDOW, 0)
    left = []
    for _ in range(4):
        await protocol.column("SELECT turnstile.tidy_gates(1)")
        left += await protocol.column("SELECT min(number) FROM rate_start")
    assert left == [11, 21, 26, 26]
    assert await protocol.column("SELECT count(*) FROM rate_start") == [_IN_WINDOW]


@pytest.fixture
async def fair(protocol: Protocol) -> Protocol:
    await protocol.put("a", max_concurrent=1, concurrency_key="/key", max_concurrent_total=5, order="fair")
    return protocol


async def _cycle(protocol: Protocol, key: str = "k") -> None:
    """Let one execution of a key arrive, pass and end: its flow is idle again, at a later start tag."""
    _, grants = await protocol.admit(request("a", parameters={"key": key}))
    (one,) = [grant.execution_id for grant in (await protocol.grant(*grants.more_queue_ids)).granted]
    await protocol.run(one)
    await protocol.settle((one, 1))


async def test_turns_that_were_deleted_are_not_read(fair: Protocol, old_snapshot: None) -> None:
    for _ in range(3):
        await _cycle(fair)
        await fair.column(_TIDY)
    first = await _entries(fair, _TIDY)
    for number in range(_CYCLES):
        await _cycle(fair)
        if number % 10 == 0:
            await fair.column(_TIDY)
    await fair.column(_TIDY)
    last = await _entries(fair, _TIDY)
    print(first, last)
    assert last <= first * 1.2 + 10
    assert await fair.column(_TURNS) == [1]


async def test_a_limited_sweep_over_turns_leaves_the_others_to_the_next_one(fair: Protocol) -> None:
    """Several have one start tag, and the bound must not pass those that are left."""
    for key in "uvwxy":
        await _cycle(fair, key)
    # The virtual time passes them all.
    for _ in range(3):
        await _cycle(fair, "z")
    idle = (
        "SELECT count(*) FROM flow_turn t JOIN turnstile.current_gate g ON g.id = t.gate_id"
        " WHERE g.kind = 'action' AND t.place IS NULL AND t.start_tag <= g.virtual_times[t.priority]"
    )
    assert await fair.column(idle) == [5]
    left = []
    for _ in range(4):
        await fair.column("SELECT turnstile.tidy_gates(2)")
        left += await fair.column(idle)
    assert left == [3, 1, 0, 0]
    # What arrives and idles from now on is above the bound.
    await _cycle(fair, "u")
    for _ in range(3):
        await _cycle(fair, "z")
    assert await fair.column(idle) == [1]
    await fair.column("SELECT turnstile.tidy_gates(2)")
    assert await fair.column(idle) == [0]
