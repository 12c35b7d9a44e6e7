"""Many sessions at the same time: limit and order hold, without deadlocks (P1, P2)."""

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from tests.support.protocol import (
    Protocol,
    accepted,
    blocked,
    connected,
    ids_in,
    in_turn,
    new_worker,
    request,
)
from turnstile.worker.protocol import Claim


async def test_eight_granting_sessions_never_exceed_the_limit(database_url: str, protocol: Protocol) -> None:
    limit, rounds = 3, 20
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(connected(database_url)) for _ in range(8)]
        await protocol.put(max_concurrent=limit)
        await protocol.submit(count=5)
        queue_id = (await protocol.queue())["id"]
        granted: list[int] = []
        for _ in range(rounds):
            held = await protocol.held()
            running = [
                i for i, s in zip(held, await protocol.statuses(*held), strict=True) if s == "scheduled"
            ]
            await protocol.run(*running)
            completions = [(i, 1) for i in held]
            # All settle the same completions, admit or grant: each may start what waits.
            await asyncio.gather(
                *(s.settle(*completions) for s in sessions[:3]),
                *(s.submit(count=1 + n) for n, s in enumerate(sessions[3:6])),
                *(s.grant(queue_id) for s in sessions[6:]),
            )
            now = await protocol.held()
            assert len(now) <= limit
            assert (await protocol.queue())["held"] == len(now)
            granted += [i for i in now if i not in granted]
        assert granted == sorted(granted)
        assert len(granted) == limit * rounds


async def test_two_sessions_that_grant_without_the_lock_collide(protocol: Protocol, other: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    await protocol.submit(count=2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    queue_id = (await protocol.queue())["id"]
    grant_unlocked = "SELECT turnstile.grant_locked(ARRAY[$1::bigint])"
    # Each takes the other head, so that they meet in the state of the queue only.
    first, second = await protocol.waiting()
    await protocol.connection.execute("DELETE FROM waiting WHERE place = $1", second)
    async with protocol.transaction():
        await protocol.connection.execute(grant_unlocked, queue_id)
        blocked = asyncio.create_task(
            other.connection.execute(
                "INSERT INTO queue_state SELECT queue_id, version + 1, 0, 1, 0, 2, 0, 1, now()"
                " FROM queue_state WHERE queue_id = $1",
                queue_id,
            )
        )
        await asyncio.sleep(0.1)
        assert not blocked.done()
    with pytest.raises(asyncpg.UniqueViolationError, match="pk_queue_state"):
        await blocked
    assert await protocol.held() == [first]


async def test_admissions_to_one_queue_commit_in_the_order_of_their_ids(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=1)
    await protocol.submit()
    (first,), (second,) = await in_turn(protocol, other, protocol.submit(), other.submit())
    assert first < second
    assert await protocol.waiting() == [first, second]


async def test_an_admission_that_waits_for_one_queue_draws_no_id_for_another(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    for ref in "ab":
        await protocol.put(ref, max_concurrent=1)
        await protocol.submit(ref)
    async with protocol.transaction():
        await protocol.submit("a")
        both = await blocked(other, protocol, other.admit(request("a"), request("b")))
        async with connected(database_url) as third:
            (overtaking,) = await third.submit("b")
    verdicts, _ = await both
    assert overtaking < accepted(verdicts[1]).execution_id, "P2: it would overtake a queued execution"


async def test_admissions_to_different_queues_do_not_wait_for_each_other(
    protocol: Protocol, other: Protocol
) -> None:
    for ref in "ab":
        await protocol.put(ref, max_concurrent=1)
        await protocol.submit(ref)
    async with protocol.transaction():
        await protocol.submit("a")
        async with asyncio.timeout(5):
            await other.submit("b")


async def test_a_grant_waits_for_an_uncommitted_admission_and_then_sees_it(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=0)
    await protocol.submit()
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 5, paused = true")
    queue_id = (await protocol.queue())["id"]
    async with protocol.transaction():
        await protocol.submit()
        await protocol.connection.execute("UPDATE action_queue SET paused = false")
        late = await blocked(other, protocol, other.grant(queue_id))
    assert len((await late).granted) == 2


async def test_fifty_submitters_of_one_key_get_one_execution(database_url: str, protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    await protocol.put("b", max_concurrent=1)
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(connected(database_url)) for _ in range(10)]
        ids = []
        for _ in range(5):
            for batch in await asyncio.gather(*(s.submit(idempotency_key="k") for s in sessions)):
                ids += batch
    assert len(ids) == 50
    assert len(set(ids)) == 1
    assert await protocol.column("SELECT count(*) FROM execution") == [1]


async def test_one_key_for_two_queues_is_one_execution(protocol: Protocol, other: Protocol) -> None:
    for ref in "ab":
        await protocol.put(ref, max_concurrent=1)
    (first,), ((verdict,), grants) = await in_turn(
        protocol,
        other,
        protocol.submit("a", idempotency_key="k"),
        other.admit(request("b", idempotency_key="k")),
    )
    assert str(first) in repr(verdict)
    assert grants.granted == []
    assert (await protocol.queue("b"))["total_enqueued"] == 0


async def test_statements_over_the_same_queues_in_any_order_do_not_deadlock(
    database_url: str, protocol: Protocol
) -> None:
    refs = "abcd"
    for ref in refs:
        await protocol.put(ref, max_concurrent=2)
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(connected(database_url)) for _ in range(6)]

        async def load(session: Protocol, turn: int) -> None:
            worker = new_worker()
            await session.register(worker)
            order = refs[turn % 4 :] + refs[: turn % 4]
            some_waiting = "SELECT place FROM waiting ORDER BY random() LIMIT 2"
            for _ in range(10):
                _, grants = await session.admit(*map(request, order[::-1]), *map(request, order))
                claims = await session.claim(*ids_in(grants), worker=worker)
                mine = [claim.execution_id for claim in claims if isinstance(claim, Claim)]
                await session.finish(*mine[1:], worker=worker)
                await session.hand_back(*mine[:1], worker=worker)
                await session.settle(*((i, 1) for i in reversed(mine)))
                await session.cancel(*await session.column(some_waiting))
                await session.put(order[0], max_concurrent=2)

        async with asyncio.TaskGroup() as tasks:
            for turn, session in enumerate(sessions):
                tasks.create_task(load(session, turn), name=f"load {turn}")
    counted = await protocol.connection.fetch(
        "SELECT q.depth, (SELECT count(*) FROM waiting w WHERE w.line_id = q.id) AS waiting,"
        " (SELECT count(*) FROM slot s WHERE s.queue_id = q.id) AS held FROM turnstile.current_queue q"
    )
    assert all(row["depth"] == row["waiting"] and row["held"] <= 2 for row in counted)
