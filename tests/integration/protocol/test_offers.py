"""Offers that the broker lost are repeated; offers that no live worker could run are withheld (P7)."""

import pytest

from tests.support.protocol import OTHER_WORKER, Protocol, offer
from turnstile.executor.protocol import ExecutorProtocol

POOL = "default"


async def age(protocol: Protocol, *execution_ids: int, granted: float = 100, offered: float = 100) -> None:
    """Move the instants of these slots so many seconds into the past."""
    await protocol.connection.execute(
        "UPDATE slot SET granted_at = granted_at - make_interval(secs => $2),"
        " offered_at = offered_at - make_interval(secs => $3) WHERE execution_id = ANY ($1)",
        execution_ids,
        float(granted),
        float(offered),
    )


async def withheld(protocol: Protocol) -> list[int]:
    return await protocol.column("SELECT execution_id FROM slot WHERE offered_at IS NULL ORDER BY 1")


async def missing(protocol: Protocol, ready: int, limit: int = 1000, *, held: int | None = None) -> list[int]:
    """Return the repeated offers where the pool's queue holds so many messages; the timeout is 30 s."""
    return await protocol.missing_offers({POOL: ready}, timeout_seconds=30, limit=limit, held=held)


@pytest.fixture
async def ids(protocol: Protocol) -> list[int]:
    """Ten executions, offered a while ago, the first one longest, and claimed by no worker."""
    await protocol.put()
    ids = await protocol.submit(count=10)
    for position, execution_id in enumerate(reversed(ids)):
        await age(protocol, execution_id, granted=100 + position, offered=100 + position)
    return ids


# --- due_pools, missing_offers


async def test_offers_that_the_queue_of_the_pool_holds_are_not_repeated(
    protocol: Protocol, ids: list[int]
) -> None:
    assert await protocol.due_pools(30) == {POOL: 10}
    assert await missing(protocol, 10) == []
    assert await missing(protocol, 25) == []


async def test_a_purged_queue_gets_every_offer_once_more(protocol: Protocol, ids: list[int]) -> None:
    assert await missing(protocol, 0) == ids
    # A repeated or a new offer is not due.
    assert await protocol.due_pools(30) == {}
    assert await missing(protocol, 0) == []


async def test_as_many_offers_are_repeated_as_messages_are_missing_the_oldest_first(
    protocol: Protocol, ids: list[int]
) -> None:
    assert await missing(protocol, 7) == ids[:3]
    # These are in the queue again.
    assert await missing(protocol, 10) == []
    assert await missing(protocol, 8) == ids[3:5]


async def test_an_overtaken_offer_is_repeated_though_enough_other_messages_are_there(
    protocol: Protocol, ids: list[int]
) -> None:
    """Copies, and offers of cancelled executions, can hide in the count that one offer is missing."""
    (later,) = await protocol.submit()
    assert await missing(protocol, 12) == []
    await protocol.claim(later)
    assert await missing(protocol, 17, limit=2) == ids[:2]
    assert await missing(protocol, 19) == ids[2:3]
    assert await missing(protocol, 20) == []


async def test_messages_may_carry_several_offers_each_and_overtaken_ones_are_repeated_all_the_same(
    protocol: Protocol, ids: list[int]
) -> None:
    assert await missing(protocol, 2, held=10) == []
    assert await missing(protocol, 2, held=8) == ids[:2]
    (later,) = await protocol.submit()
    await protocol.claim(later)
    assert await missing(protocol, 2, held=16) == ids[2:]


async def test_executors_that_sweep_at_the_same_time_repeat_no_offer_twice(
    protocol: Protocol, ids: list[int], other: Protocol
) -> None:
    looked_at = await protocol.connection.fetchval("SELECT clock_timestamp()")
    async with protocol.transaction():
        first = await missing(protocol, 4)
        # It saw the same messages, and cannot see what the first one has not committed.
        second = await other.missing_offers({POOL: 4}, timeout_seconds=30, looked_at=looked_at)
    third = await protocol.missing_offers({POOL: 4}, timeout_seconds=30, looked_at=looked_at)
    assert first == ids[:6]
    assert not set(first) & set(second)
    assert not set(third) & {*first, *second}
    assert len([*first, *second, *third]) <= 10


async def test_each_pool_is_counted_alone_and_only_with_a_live_worker(
    protocol: Protocol, ids: list[int]
) -> None:
    await protocol.put("g", pool="gpu")
    await protocol.register("another", pools=["gpu"])
    others = await protocol.submit("g", 4)
    await age(protocol, *others)
    assert await protocol.due_pools(30) == {POOL: 10, "gpu": 4}
    assert await protocol.missing_offers({"gpu": 3}, timeout_seconds=30) == others[:1]
    assert await protocol.missing_offers({POOL: 9, "gpu": 4}, timeout_seconds=30) == ids[:1]
    await protocol.lose_lease()
    assert await protocol.due_pools(30) == {"gpu": 4}


# --- withheld offers


async def serve_only(protocol: Protocol, *refs: str) -> None:
    await protocol.connection.execute("UPDATE worker SET served_refs = $1", list(refs))


async def withhold(protocol: Protocol, *execution_ids: int) -> list[int]:
    rows = await protocol.connection.fetch(
        "SELECT turnstile.withhold_offers($1, $2)", list(execution_ids), [1] * len(execution_ids)
    )
    return sorted(row[0] for row in rows)


async def test_offers_of_actions_that_no_worker_of_the_pool_has_are_withheld_until_one_has(
    protocol: Protocol,
) -> None:
    await serve_only(protocol, "b")
    await protocol.put("a")
    await protocol.put("b")
    ones, others = await protocol.submit("a", 3), await protocol.submit("b", 3)
    assert await withhold(protocol, *ones, *others) == ones
    assert await protocol.due_pools(30) == {}
    await protocol.register("newcomer", serves=["a", "c"])
    # Due at once, whatever the queue holds.
    assert await missing(protocol, 1000) == ones
    assert await withheld(protocol) == []
    assert await protocol.due_pools(30) == {}


@pytest.mark.parametrize(
    "definition",
    [{"runner": "command", "entrypoint": ["true"]}, {"entrypoint": "a.b:c"}, {"pool": "empty"}, {}],
    ids=["a command", "an entrypoint", "a pool without workers", "a worker of the previous version"],
)
async def test_offers_that_any_worker_could_run_or_for_which_none_is_there_are_made(
    protocol: Protocol, definition: dict[str, object]
) -> None:
    await serve_only(protocol, "b")
    if not definition:
        # It does not report its actions, and counts for all of its pools.
        await protocol.register("older")
    await protocol.put("a", **definition)
    assert await withhold(protocol, *await protocol.submit("a")) == []


@pytest.mark.parametrize("gone", ["stopped_at = now()", "lost_at = now()", "draining_at = now()", "lease"])
async def test_a_worker_that_leaves_serves_nothing(protocol: Protocol, gone: str) -> None:
    await serve_only(protocol, "b")
    await protocol.register("leaving", serves=["a"])
    await protocol.put("a")
    (one,) = await protocol.submit("a")
    assert await withhold(protocol, one) == []
    if gone == "lease":
        await protocol.lose_lease("leaving")
    else:
        await protocol.connection.execute(f"UPDATE worker SET {gone} WHERE id = 'leaving'")
    assert await withhold(protocol, one) == [one]


async def test_an_offer_that_no_worker_could_run_is_refused_once(protocol: Protocol) -> None:
    await serve_only(protocol, "b")
    await protocol.put("a")
    (one,) = await protocol.submit("a")
    assert await protocol.record(serves=["b"]).exchange([offer(one, 1)]) == ["stale"]
    assert await withheld(protocol) == [one]
    await protocol.register(OTHER_WORKER, serves=["a"])
    # Another worker serves it: a worker that cannot run it passes it on.
    assert await protocol.record(serves=["b"]).exchange([offer(one, 1)]) == ["not_served"]
    assert await missing(protocol, 0) == [one]
    assert await protocol.claim_verdicts(one, worker=OTHER_WORKER) == ["claimed"]


async def test_the_served_actions_are_those_that_a_worker_of_their_pool_could_run(protocol: Protocol) -> None:
    await protocol.register("gpus", pools=["gpu"], serves=["g"])
    await serve_only(protocol, "b", "g")
    await protocol.register("older", pools=["old"])
    for ref, fields in (
        ("a", {}), ("b", {}), ("g", {"pool": "gpu"}), ("h", {"pool": "gpu"}), ("o", {"pool": "old"}),
        ("n", {"pool": "empty"}), ("e", {"entrypoint": "a.b:c"}),
        ("c", {"runner": "command", "entrypoint": ["true"]}),
    ):  # fmt: skip
        await protocol.put(ref, **fields)
    await ExecutorProtocol(protocol.database).refresh_pools(None, {})
    unserved = "SELECT ref FROM action a WHERE NOT {} ORDER BY ref"
    assert await protocol.column(unserved.format("a.served")) == ["a", "h", "n"]
    assert await protocol.column(unserved.format("turnstile.is_served(a)")) == ["a", "h", "n"]
    # Offers to a pool without workers are kept for the first one.
    assert await protocol.column(unserved.format("NOT turnstile.is_unserved(a)")) == ["a", "h"]
