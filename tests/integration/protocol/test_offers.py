"""due_pools, missing_offers, claim: what the broker lost is offered again, and what nobody serves is not."""

import pytest

from tests.integration.executor.reading import ids_in
from tests.support.brokers import ready_messages
from tests.support.protocol import OTHER_WORKER, Protocol, connected, offer
from tests.support.traffic import publishing
from turnstile.executor.hand_over import HandOver
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.sql import query

POOL = "default"


async def age(protocol: Protocol, *execution_ids: int, seconds: float = 100) -> None:
    """Let these have been granted and offered so long ago."""
    await protocol.connection.execute(
        "UPDATE slot SET granted_at = granted_at - make_interval(secs => $2),"
        " offered_at = offered_at - make_interval(secs => $2) WHERE execution_id = ANY ($1)",
        execution_ids,
        float(seconds),
    )


async def withheld(protocol: Protocol) -> list[int]:
    return await protocol.column("SELECT execution_id FROM slot WHERE offered_at IS NULL ORDER BY 1")


@pytest.fixture
async def ids(protocol: Protocol) -> list[int]:
    """Ten executions, offered a while ago, the first longest, and claimed by nobody."""
    await protocol.put()
    ids = await protocol.submit(count=10)
    for position, execution_id in enumerate(reversed(ids)):
        await age(protocol, execution_id, seconds=100 + position)
    return ids


# --- what the broker holds is not copied --------------------------------------------------------------


async def test_what_the_queue_of_the_pool_holds_is_not_offered_again(
    protocol: Protocol, ids: list[int]
) -> None:
    assert await protocol.due_pools(30) == {POOL: 10}
    assert await protocol.missing_offers({POOL: 10}, timeout_seconds=30) == []
    assert await protocol.missing_offers({POOL: 25}, timeout_seconds=30) == []


async def test_an_emptied_queue_gets_every_offer_once_more(protocol: Protocol, ids: list[int]) -> None:
    assert await protocol.missing_offers({POOL: 0}, timeout_seconds=30) == ids
    assert await protocol.due_pools(30) == {}
    assert await protocol.missing_offers({POOL: 0}, timeout_seconds=30) == []


async def test_as_many_are_repeated_as_are_missing_the_longest_offered_first(
    protocol: Protocol, ids: list[int]
) -> None:
    assert await protocol.missing_offers({POOL: 7}, timeout_seconds=30) == ids[:3]
    # They are in the queue again, and what is not due is not repeated.
    assert await protocol.missing_offers({POOL: 10}, timeout_seconds=30) == []
    assert await protocol.missing_offers({POOL: 8}, timeout_seconds=30) == ids[3:5]


async def test_what_was_offered_just_now_is_not_repeated(protocol: Protocol) -> None:
    await protocol.put()
    await protocol.submit(count=3)
    assert await protocol.due_pools(30) == {}
    assert await protocol.missing_offers({POOL: 0}, timeout_seconds=30) == []


async def test_an_overtaken_offer_is_repeated_though_enough_other_messages_are_there(
    protocol: Protocol, ids: list[int]
) -> None:
    """Copies and offers of what was cancelled hide in a count that one offer is missing."""
    (later,) = await protocol.submit()
    assert await protocol.missing_offers({POOL: 12}, timeout_seconds=30) == []
    await protocol.claim(later)
    assert await protocol.missing_offers({POOL: 17}, timeout_seconds=30, limit=2) == ids[:2]
    assert await protocol.missing_offers({POOL: 19}, timeout_seconds=30) == ids[2:3]
    assert await protocol.missing_offers({POOL: 20}, timeout_seconds=30) == []


async def test_executors_that_look_at_once_repeat_no_offer_twice(
    protocol: Protocol, ids: list[int], database_url: str
) -> None:
    looked_at = await protocol.connection.fetchval("SELECT clock_timestamp()")
    async with connected(database_url) as other, protocol.transaction():
        first = await protocol.missing_offers({POOL: 4}, timeout_seconds=30)
        # It saw the same messages, and cannot see what the first has not committed.
        second = await other.missing_offers({POOL: 4}, timeout_seconds=30, looked_at=looked_at)
    third = await protocol.missing_offers({POOL: 4}, timeout_seconds=30, looked_at=looked_at)
    assert first == ids[:6]
    assert not set(first) & set(second)
    assert not set(third) & {*first, *second}
    assert len([*first, *second, *third]) <= 10


async def test_each_pool_is_counted_by_itself(protocol: Protocol, ids: list[int]) -> None:
    await protocol.put("g", pool="gpu")
    await protocol.register("another", pools=["gpu"])
    others = await protocol.submit("g", 4)
    await age(protocol, *others)
    assert await protocol.due_pools(30) == {POOL: 10, "gpu": 4}
    assert await protocol.missing_offers({"gpu": 3}, timeout_seconds=30) == others[:1]
    assert await protocol.missing_offers({POOL: 9, "gpu": 4}, timeout_seconds=30) == ids[:1]


async def test_a_pool_without_a_live_worker_is_left_alone(protocol: Protocol, ids: list[int]) -> None:
    await protocol.lose_lease()
    assert await protocol.due_pools(30) == {}


async def test_no_offer_is_repeated_before_the_lost_worker_was_told_to_stop(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.lose_lease()
    assert (await protocol.reclaim()).granted == [one]
    await protocol.register("another")
    await age(protocol, one)
    assert await protocol.missing_offers({POOL: 0}, timeout_seconds=30) == []
    await protocol.stops_told((one, 1))
    assert await protocol.missing_offers({POOL: 0}, timeout_seconds=30) == [one]


# --- what nobody serves is not offered ----------------------------------------------------------------


async def serve_only(protocol: Protocol, *refs: str) -> None:
    await protocol.connection.execute("UPDATE worker SET served_refs = $1", list(refs))


async def withhold(protocol: Protocol, *execution_ids: int) -> list[int]:
    rows = await protocol.connection.fetch(
        "SELECT turnstile.withhold_offers($1, $2)", list(execution_ids), [1] * len(execution_ids)
    )
    return sorted(row[0] for row in rows)


async def test_what_no_worker_of_its_pool_has_code_for_is_withheld_until_one_has(protocol: Protocol) -> None:
    await serve_only(protocol, "b")
    await protocol.put("a")
    await protocol.put("b")
    ones, others = await protocol.submit("a", 3), await protocol.submit("b", 3)
    assert await withhold(protocol, *ones, *others) == ones
    assert await protocol.due_pools(30) == {}
    await protocol.register("newcomer", serves=["a", "c"])
    # Not so long after, but at once; what waits in the queue is no reason to hold it back.
    assert await protocol.missing_offers({POOL: 1000}, timeout_seconds=30) == ones
    assert await withheld(protocol) == []
    assert await protocol.due_pools(30) == {}


@pytest.mark.parametrize(
    "definition",
    [{"runner": "command", "entrypoint": ["true"]}, {"entrypoint": "a.b:c"}, {"pool": "nobody"}],
    ids=["a command", "an entrypoint", "a pool without workers"],
)
async def test_what_any_worker_could_run_or_none_is_there_for_is_offered(
    protocol: Protocol, definition: dict[str, object]
) -> None:
    await serve_only(protocol, "b")
    await protocol.put("a", **definition)
    assert await withhold(protocol, *await protocol.submit("a")) == []


@pytest.mark.parametrize("gone", ["stopped_at = now()", "lost_at = now()", "draining_at = now()", "lease"])
async def test_a_worker_that_leaves_serves_nothing(protocol: Protocol, gone: str) -> None:
    await serve_only(protocol, "b")
    await protocol.register("leaving", serves=["a"])
    await protocol.put("a")
    (one,) = await protocol.submit("a")
    assert await withhold(protocol, one) == []
    change = gone if gone != "lease" else "lease_expires_at = now() - interval '1 s'"
    await protocol.connection.execute(f"UPDATE worker SET {change} WHERE id = 'leaving'")
    assert await withhold(protocol, one) == [one]


async def test_a_worker_of_the_version_before_counts_for_all_of_its_pools(protocol: Protocol) -> None:
    await serve_only(protocol, "b")
    await protocol.register("older")
    await protocol.put("a")
    assert await withhold(protocol, *await protocol.submit("a")) == []


async def test_an_offer_that_nobody_could_run_goes_to_one_worker_once(protocol: Protocol) -> None:
    await serve_only(protocol, "b")
    await protocol.put("a")
    (one,) = await protocol.submit("a")
    assert await protocol.record(serves=["b"]).exchange([offer(one, 1)]) == ["stale"]
    assert await withheld(protocol) == [one]
    await protocol.register(OTHER_WORKER, serves=["a"])
    # Somebody serves it: whoever cannot run it passes it on, as ever.
    assert await protocol.record(serves=["b"]).exchange([offer(one, 1)]) == ["not_served"]
    assert await protocol.missing_offers({POOL: 0}, timeout_seconds=30) == [one]
    assert await protocol.claim_verdicts(one, worker=OTHER_WORKER) == ["claimed"]


async def test_what_no_worker_has_code_for_is_found_as_the_single_look_says(protocol: Protocol) -> None:
    await protocol.register("gpus", pools=["gpu"], serves=["g"])
    await serve_only(protocol, "b", "g")
    await protocol.register("older", pools=["old"])
    for ref, fields in (
        ("a", {}), ("b", {}), ("g", {"pool": "gpu"}), ("h", {"pool": "gpu"}), ("o", {"pool": "old"}),
        ("n", {"pool": "nobody"}), ("e", {"entrypoint": "a.b:c"}),
        ("c", {"runner": "command", "entrypoint": ["true"]}),
    ):  # fmt: skip
        await protocol.put(ref, **fields)
    found = await protocol.column(query("unserved"))
    assert sorted(found) == ["a", "h"]
    assert found == await protocol.column(
        "SELECT ref FROM action a WHERE turnstile.is_unserved(a) ORDER BY array_position($1, ref)", found
    )


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_executor_publishes_no_offer_that_it_knows_to_be_unserved(
    protocol: Protocol, amqp_url: str, is_known: bool
) -> None:
    """And what it knows wrongly, since a worker has just come, it looks up."""
    await serve_only(protocol, "b")
    await protocol.put("a")
    await protocol.put("b")
    await protocol.put("a", max_concurrent=0)
    ids = await protocol.submit("a", 3)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = NULL")
    if not is_known:
        await protocol.register("newcomer", serves=["a"])
    async with publishing(amqp_url) as publisher:
        hand_over = HandOver(publisher, QueueManager(protocol.database), "quorum", publisher)
        await hand_over.prepare([POOL])
        hand_over.unserved_refs = frozenset(["a"])
        grants = await protocol.grant((await protocol.queue("a"))["id"])
        assert ids_in(grants) == ids
        await hand_over.offer(grants)
    assert await ready_messages(amqp_url, "worker.default") == (0 if is_known else 3)
    assert await withheld(protocol) == (ids if is_known else [])
