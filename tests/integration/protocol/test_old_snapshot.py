"""A snapshot that stays open elsewhere makes no statement more expensive, however much runs (P15)."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest

from tests.integration.executor.page_counts import cost_of
from tests.support.protocol import WORKER, Protocol, connected
from turnstile.common.domain.states import Status
from turnstile.executor.sql import query

_TURNS, _SAMPLE = 400, 20
_RENEWALS = 1000
_DEAD_VERSIONS, _OTHER_QUEUES = 2000, 9
_BATCHES, _BATCH = 8, 500
_MOVE = "SELECT turnstile.move_slot_window(0)"
_MOVE_NOW = "SELECT turnstile.move_slot_window(0, 0)"
"""Without waiting for the transactions of other tests on this server."""
_MOVE_DUE = "SELECT turnstile.move_due_window(0)"
_MOVE_DUE_NOW = "SELECT turnstile.move_due_window(0, 0)"
_LATER = datetime(2100, 1, 1, tzinfo=UTC)


async def _turn(protocol: Protocol, *, is_measured: bool = True) -> dict[str, int]:
    """Submit, claim, finish and settle one execution; return the pages that each statement read."""
    pages: dict[str, int] = {}

    async def step(name: str, call: Awaitable[object]) -> None:
        if not is_measured:
            await call
            return
        async with protocol.transaction():
            pages[name] = (await cost_of(protocol, call)).pages

    await step("admit", protocol.submit())
    (running,) = await protocol.column("SELECT execution_id FROM turnstile.live_slot")
    await step("claim", protocol.claim(running))
    await step("finish", protocol.finish(running))
    await step("settle", protocol.settle((running, 1)))
    return pages


async def _sweeps(protocol: Protocol) -> dict[str, int]:
    pages = {}
    for sweep in (
        protocol.due_completions, protocol.due_pools, protocol.reclaim, protocol.stop_overdue,
        protocol.grantable_queues, protocol.drifted_queues,
    ):  # fmt: skip
        async with protocol.transaction():
            pages[sweep.__name__] = (await cost_of(protocol, sweep())).pages
    return pages


async def _reads(protocol: Protocol) -> dict[str, int]:
    pages = {}
    for name, arguments in {
        "queue_stats": ("a", 100),
        "dashboard_queues": (None, 100),
        "dashboard_workers": (),
    }.items():
        async with protocol.transaction():
            statement = protocol.connection.fetch(query(name), *arguments)
            pages[name] = (await cost_of(protocol, statement)).pages
    return pages


async def test_the_cost_of_every_statement_stays_flat(protocol: Protocol, old_snapshot: None) -> None:
    await protocol.put(max_concurrent=1)
    await protocol.submit(count=5)
    first = [await _turn(protocol) for _ in range(_SAMPLE)]
    await protocol.column(_MOVE_NOW)
    others = await _sweeps(protocol) | await _reads(protocol)
    for _ in range(_TURNS):
        await _turn(protocol, is_measured=False)
    last = [await _turn(protocol) for _ in range(_SAMPLE)]
    for _ in range(2):
        await protocol.column(_MOVE_NOW)
    # Each index may have grown by one level.
    for name in first[0]:
        before, after = (median(turn[name] for turn in turns) for turns in (first, last))
        assert after <= before * 1.2 + 10, (name, before, after)
    for name, pages in (await _sweeps(protocol) | await _reads(protocol)).items():
        assert pages <= others[name] * 1.2 + 10, (name, pages, others)


async def test_the_cost_of_a_lease_stays_flat(protocol: Protocol, old_snapshot: None) -> None:
    await protocol.put()

    async def pages() -> dict[str, int]:
        (one,) = await protocol.submit()
        found = {}
        for name, call in (
            ("renew", protocol.renew),
            ("claim", lambda: protocol.claim(one)),
            ("finish", lambda: protocol.finish(one)),
            ("reclaim", protocol.reclaim),
            ("due_pools", protocol.due_pools),
        ):
            async with protocol.transaction():
                found[name] = (await cost_of(protocol, call())).by_relation
        await protocol.settle((one, 1))
        return {
            name: sum(count for relation, count in cost.items() if "worker" in relation)
            for name, cost in found.items()
        }

    for _ in range(3):
        await pages()
    first = await pages()
    await protocol.connection.execute(
        f"DO $$ BEGIN FOR n IN 1..{_RENEWALS} LOOP"
        f" PERFORM turnstile.renew('{WORKER}', 600); COMMIT; END LOOP; END $$"
    )
    last = await pages()
    assert await protocol.column("SELECT count(*) FROM worker_lease WHERE worker_id = $1", WORKER) == [1]
    for name in first:
        assert last[name] <= first[name] * 1.2 + 4, (name, first, last)


_READERS: dict[str, Callable[[Protocol], Awaitable[object]]] = {
    "admit": Protocol.submit,
    "admit many": lambda p: p.submit(count=50),
    "grant": lambda p: p.grant(1),
    "claim": lambda p: p.claim(1),
    "finish": lambda p: p.finish(1),
    "settle": lambda p: p.settle((1, 1)),
    "cancel": lambda p: p.cancel(2),
    "renew": Protocol.renew,
    "append_logs": lambda p: p.row(
        "SELECT * FROM turnstile.append_logs($1, '{1}', '{1}', '{1}', '{x}')", WORKER
    ),
    "due_pools": Protocol.due_pools,
    "reclaim": Protocol.reclaim,
    "clamp_future_instants": lambda p: p.column("SELECT turnstile.clamp_future_instants(true)"),
    "grantable_queues": Protocol.grantable_queues,
    "drifted_queues": Protocol.drifted_queues,
    "repair_queues": lambda p: p.repair(1),
    "delete_idle_queues": lambda p: p.delete_idle_queues(idle_seconds=0),
    "delete_action": lambda p: p.row("SELECT * FROM turnstile.delete_action('a', 9, 'test', 'test')"),
    "prune": lambda p: p.row("SELECT * FROM turnstile.prune(0, 0, 0, 0, 0, 10)"),
}


_LEAVE_DEAD_VERSIONS = f"""
DO $$ BEGIN
    FOR n IN 1..{_DEAD_VERSIONS} LOOP
        PERFORM turnstile.change_queues(ARRAY(
            SELECT ROW(q.id, 0, 0, NULL, 0, 0, NULL)::turnstile.queue_change FROM action_queue q));
        PERFORM turnstile.renew('{WORKER}', 600);
        COMMIT;
    END LOOP;
END $$
"""


async def test_statistics_of_dead_rows_lead_to_no_plan_that_reads_them(
    protocol: Protocol, old_snapshot: None
) -> None:
    """The index has grown and few rows live, so a bitmap looks cheaper than a search in order."""
    await protocol.put(max_concurrent=1)
    await protocol.submit(count=2)
    for other in range(_OTHER_QUEUES):
        await protocol.put(f"other{other}", max_concurrent=0)
        await protocol.submit(f"other{other}")
    assert await protocol.column("SELECT min(id) FROM action_queue") == [1]

    async def pages() -> dict[str, int]:
        found = {}
        await protocol.connection.execute("ANALYZE queue_state, worker_lease, action_queue, worker")
        for name, call in _READERS.items():
            async with protocol.undone():
                if name in ("finish", "settle"):
                    await protocol.claim(1)
                if name == "settle":
                    await protocol.finish(1)
                cost = (await cost_of(protocol, call(protocol))).by_relation
            found[name] = sum(n for r, n in cost.items() if "queue_state" in r or "worker_lease" in r)
        return found

    first = await pages()
    await protocol.connection.execute(_LEAVE_DEAD_VERSIONS)
    last = await pages()
    print({name: (first[name], last[name]) for name in first})
    # Each index may have grown by one level.
    assert {n: (first[n], last[n]) for n in first if last[n] > first[n] * 1.2 + 8} == {}


async def test_the_window_moves_past_deleted_slots_and_keeps_the_live_ones(protocol: Protocol) -> None:
    ids = await protocol.start(3)
    await protocol.finish(ids[0])
    await protocol.settle((ids[0], 1))
    before = await protocol.column("SELECT ticket FROM slot")
    # The first call notes which tickets were drawn, the second one moves beyond them.
    assert await protocol.column(_MOVE_NOW) == [0]
    assert await protocol.column(_MOVE_NOW) == [2]
    assert min(await protocol.column("SELECT ticket FROM slot")) > max(before)
    assert await protocol.column("SELECT first_ticket FROM slot_window") == [max(before) + 1]
    assert sorted(await protocol.column("SELECT execution_id FROM turnstile.live_slot")) == ids[1:]
    await protocol.lose_lease()
    assert sorted((await protocol.reclaim()).returned) == ids[1:]


async def test_the_first_slot_of_a_new_installation_is_swept(protocol: Protocol) -> None:
    for _ in range(3):
        await protocol.column(_MOVE)
    await protocol.put()
    (first,) = await protocol.submit()
    for _ in range(3):
        await protocol.column(_MOVE)
    assert await protocol.column("SELECT execution_id FROM turnstile.live_slot") == [first]


async def test_the_window_waits_for_a_grant_that_has_not_committed(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    async with other.transaction():
        (slow,) = await other.submit()
        for _ in range(3):
            await protocol.column(_MOVE)
    assert await protocol.column("SELECT execution_id FROM turnstile.live_slot") == [slow]
    for _ in range(3):
        await protocol.column(_MOVE)
    assert await protocol.column("SELECT execution_id FROM turnstile.live_slot") == [slow]


async def test_a_foreign_writer_that_stays_open_delays_the_window_only_for_a_while(
    protocol: Protocol, other: Protocol
) -> None:
    ids = await protocol.start(1)
    await protocol.column(_MOVE)
    async with other.transaction():
        await other.connection.execute("CREATE TABLE written_elsewhere (n integer)")
        ids += await protocol.submit()
        await protocol.column(_MOVE)
        (first,) = await protocol.column("SELECT first_ticket FROM slot_window")
        await protocol.column(_MOVE)
        assert await protocol.column("SELECT first_ticket FROM slot_window") == [first]
        await protocol.column(_MOVE_NOW)
        assert await protocol.column("SELECT first_ticket > $1 FROM slot_window", first) == [True]
    assert sorted(await protocol.column("SELECT execution_id FROM turnstile.live_slot")) == ids


async def test_a_slot_that_another_session_holds_keeps_the_window_back(
    protocol: Protocol, other: Protocol
) -> None:
    ids = await protocol.start(2)
    await protocol.column(_MOVE_NOW)
    async with other.transaction():
        await other.column("SELECT 1 FROM slot WHERE execution_id = $1 FOR UPDATE", ids[0])
        assert await protocol.column(_MOVE_NOW) == [1]
    assert sorted(await protocol.column("SELECT execution_id FROM turnstile.live_slot")) == ids


async def test_calls_within_the_interval_do_nothing(protocol: Protocol) -> None:
    await protocol.start(1)
    await protocol.column(_MOVE_NOW)
    version = await protocol.column("SELECT version FROM slot_window")
    await protocol.column("SELECT turnstile.move_slot_window(60)")
    assert await protocol.column("SELECT version FROM slot_window") == version


async def test_at_a_high_rate_the_window_moves_sooner_unless_many_slots_would_move_with_it(
    protocol: Protocol, other: Protocol
) -> None:
    async def moves() -> bool:
        before = await protocol.column("SELECT version FROM slot_window")
        # Without waiting for writers: tests of other databases on this server are some.
        await protocol.column("SELECT turnstile.move_slot_window(60, 0, 0, 10)")
        return await protocol.column("SELECT version FROM slot_window") != before

    await protocol.put()
    await protocol.column(_MOVE_NOW)
    await protocol.run(*(ids := await protocol.submit(count=5)))
    await protocol.settle(*((i, 1) for i in ids))
    assert not await moves()
    held = await protocol.submit(count=20)
    assert await moves()
    await protocol.submit(count=40)
    # 20 old slots, and 40 tickets since.
    assert not await moves()
    await protocol.submit(count=60)
    assert await moves()
    assert set(await protocol.column("SELECT execution_id FROM turnstile.live_slot")) >= set(held)
    # A foreign writer is waited for at the usual pace.
    async with other.transaction():
        await other.connection.execute("CREATE TABLE written_elsewhere (n integer)")
        for _ in range(2):
            await protocol.column(_MOVE)
        await protocol.submit(count=800)
        deferrals = await protocol.column("SELECT deferrals FROM slot_window")
        assert not await moves()
        assert await protocol.column("SELECT deferrals FROM slot_window") == deferrals


async def test_a_foreign_writer_is_waited_for_once(protocol: Protocol, other: Protocol) -> None:
    await protocol.start(1)
    await protocol.column(_MOVE)
    async with other.transaction():
        await other.connection.execute("CREATE TABLE written_elsewhere (n integer)")
        xid = await other.connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
        for _ in range(2):
            await protocol.column(_MOVE_NOW)
        assert await protocol.column("SELECT foreign_xid > $1 FROM slot_window", xid) == [True]
        assert await protocol.column(
            "SELECT turnstile.is_writing($1, foreign_xid) FROM slot_window", xid
        ) == [True]


# --- unpublished messages and early cancels: the same window


async def _store_early_cancels(protocol: Protocol, count: int = 1) -> list[int]:
    """Store requests for executions that do not exist; return the rows."""
    ids = list(range(10**12, 10**12 + count))
    nothing = [None] * count
    await protocol.connection.execute(
        "SELECT turnstile.store_early_cancels($1, $2, $3, $4, $5, $6, 1000000)",
        ids, nothing, nothing, nothing, [b""] * count, [0.0] * count,
    )  # fmt: skip
    return await protocol.column("SELECT id FROM early_cancel ORDER BY id")


async def _overdue_early_cancels(protocol: Protocol) -> list[int]:
    return await protocol.column("SELECT id FROM turnstile.overdue_early_cancels(0, 1000) ORDER BY id")


async def _known_early_cancels(protocol: Protocol) -> list[int]:
    return await protocol.column("SELECT id FROM turnstile.known_early_cancels(1000)")


async def _one_of_each(protocol: Protocol) -> tuple[int, int, int]:
    """Leave an unpublished completion, an unpublished cancel and an early cancel."""
    await protocol.put(max_concurrent=1)
    running, waiting = await protocol.submit(count=2)
    await protocol.claim(running)
    await protocol.lose_lease()
    await protocol.reclaim()
    await protocol.cancel(waiting)
    (early,) = await _store_early_cancels(protocol)
    return waiting, running, early


async def test_messages_that_stay_unpublished_move_with_the_window(protocol: Protocol) -> None:
    completion, cancel, early = await _one_of_each(protocol)
    before = await protocol.column("SELECT max(ticket) FROM early_cancel")
    for _ in range(4):
        await protocol.column(_MOVE_NOW)
    assert await protocol.column("SELECT first_ticket > $1 FROM slot_window", before[0]) == [True]
    assert completion in await protocol.due_completions()
    assert [i for i, *_ in await protocol.due_cancels()] == [cancel]
    assert await _overdue_early_cancels(protocol) == [early]


async def test_a_message_that_another_session_holds_keeps_the_window_back(
    protocol: Protocol, other: Protocol
) -> None:
    completion, cancel, early = await _one_of_each(protocol)
    for table in ("unpublished_completion", "unpublished_cancel", "early_cancel"):
        async with other.transaction():
            await other.column(f"SELECT 1 FROM {table} FOR UPDATE")
            for _ in range(4):
                await protocol.column(_MOVE_NOW)
        async with protocol.undone():
            assert completion in await protocol.due_completions()
            assert [i for i, *_ in await protocol.due_cancels()] == [cancel]
            assert await _overdue_early_cancels(protocol) == [early]


# --- delays and deadlines


async def _woken(protocol: Protocol) -> list[int]:
    moves, _ = await protocol.wake_due()
    return [move.execution_id for move in moves]


async def _expired(protocol: Protocol) -> list[int]:
    return [move.execution_id for move in await protocol.expire_due()]


async def _move_due(protocol: Protocol, calls: int = 5) -> None:
    for _ in range(calls):
        await protocol.column(_MOVE_DUE_NOW)


async def _set_clock_back(protocol: Protocol) -> None:
    """Leave the bounds as a clock leaves them that is set back by an hour."""
    await _move_due(protocol)
    await protocol.connection.execute(
        "UPDATE due_window SET first_at = first_at + interval '1 h',"
        " closing_at = closing_at + interval '1 h', next_at = next_at + interval '1 h',"
        " moved_at = moved_at + interval '1 h'"
    )


async def _retry_at_once(protocol: Protocol, *execution_ids: int) -> None:
    await protocol.finish(*execution_ids, status=Status.FAILED, retry_delay_seconds=0)


async def test_the_bound_passes_what_was_woken(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit(run_at=datetime.now(UTC) + timedelta(seconds=0.1))
    (due_at,) = await protocol.column("SELECT due_at FROM delayed")
    await protocol.until("SELECT clock_timestamp() > $1", due_at)
    assert await _woken(protocol) == [one]
    await _move_due(protocol)
    assert await protocol.column("SELECT first_at > $1 FROM due_window", due_at) == [True]


async def test_a_retry_that_commits_after_its_instant_is_woken(protocol: Protocol, other: Protocol) -> None:
    ids = await protocol.start(1)
    await _move_due(protocol)
    async with other.transaction():
        await _retry_at_once(other, *ids)
        for _ in range(5):
            await protocol.column(_MOVE_DUE)
    await protocol.settle_as((ids[0], 1, None))
    assert await _woken(protocol) == ids


async def test_what_waits_for_its_settle_moves_with_the_bound(protocol: Protocol) -> None:
    ids = await protocol.start(3)
    await _retry_at_once(protocol, *ids)
    (due_at,) = set(await protocol.column("SELECT due_at FROM delayed"))
    for _ in range(6):
        # More than one call moves.
        await protocol.column("SELECT turnstile.move_due_window(0, 0, 1)")
    assert await protocol.column(
        "SELECT first_at <= min(due_at) FROM due_window, delayed GROUP BY first_at"
    ) == [True]
    for _ in range(6):
        await protocol.column("SELECT turnstile.move_due_window(0, 0, 1)")
    assert await protocol.column("SELECT bool_and(due_at > $1) FROM delayed", due_at) == [True]
    await protocol.settle_as(*((i, 1, None) for i in ids))
    assert sorted(await _woken(protocol)) == ids


async def test_what_was_woken_and_rolled_back_is_woken_again(protocol: Protocol, other: Protocol) -> None:
    ids = await protocol.start(1)
    await _retry_at_once(protocol, *ids)
    await protocol.settle_as((ids[0], 1, None))
    await protocol.submit(ttl=0.001, run_at=_LATER)
    await protocol.until("SELECT clock_timestamp() > max(expires_at) FROM expiring")
    async with other.undone():
        assert await _woken(other) == ids
        assert len(await _expired(other)) == 1
        await _move_due(protocol)
    assert await _woken(protocol) == ids
    assert len(await _expired(protocol)) == 1


async def test_a_deadline_that_passed_while_it_ran_is_found_after_a_reclaim(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit(ttl=0.2)
    await protocol.claim(one)
    await protocol.until("SELECT clock_timestamp() > max(expires_at) FROM expiring")
    assert await _expired(protocol) == []
    await _move_due(protocol)
    await protocol.put(max_concurrent=0)
    await protocol.lose_lease()
    assert (await protocol.reclaim()).returned == [one]
    assert await _expired(protocol) == [one]


async def test_after_the_clock_was_set_back_everything_is_due_in_its_time(protocol: Protocol) -> None:
    (retried,) = await protocol.start(1)
    await _set_clock_back(protocol)
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    (delayed,) = await protocol.submit(run_at=soon)
    (later,) = await protocol.submit(run_at=soon + timedelta(minutes=30), ttl=1800)
    (expiring,) = await protocol.submit(run_at=_LATER, ttl=0.2)
    await _retry_at_once(protocol, retried)
    await protocol.settle_as((retried, 1, None))
    assert await _woken(protocol) == [retried]
    # The bound moves on, although the clock is behind it.
    await _move_due(protocol)
    await protocol.until("SELECT clock_timestamp() > $1", soon + timedelta(seconds=0.2))
    assert await _woken(protocol) == [delayed]
    assert await _expired(protocol) == [expiring]
    assert await protocol.column("SELECT execution_id FROM delayed") == [later]
    assert await protocol.column(
        "SELECT count(*) FROM due_window w, delayed d WHERE d.due_at >= w.first_at AND d.due_at <= w.next_at"
    ) == [1]


async def test_what_is_written_after_the_clock_was_set_back_is_never_below_the_bound(
    protocol: Protocol,
) -> None:
    await protocol.put()
    await _set_clock_back(protocol)
    for _ in range(6):
        await protocol.submit(run_at=datetime.now(UTC) + timedelta(minutes=1), ttl=120)
        await _move_due(protocol, calls=1)
        for column, table in (("due_at", "delayed"), ("expires_at", "expiring")):
            query = f"SELECT bool_and({column} >= first_at) FROM {table}, due_window"
            assert await protocol.column(query) == [True]


async def test_a_wait_that_is_corrected_after_a_jump_stays_above_the_bound(protocol: Protocol) -> None:
    (one,) = await protocol.start(1)
    await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=60)
    await protocol.settle_as((one, 1, None))
    await protocol.connection.execute("UPDATE attempt SET ended_at = ended_at + interval '1 h'")
    await _move_due(protocol)
    await protocol.column("SELECT turnstile.clamp_future_instants(true)")
    assert await protocol.column("SELECT due_at >= first_at FROM delayed, due_window") == [True]
    assert await _woken(protocol) == [one]


async def test_an_announcement_counts_once_it_is_committed(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    (one,) = await protocol.start(1)
    await _set_clock_back(protocol)
    async with connected(database_url) as third, third.transaction():
        async with other.transaction():
            await third.column(_MOVE_DUE_NOW)
            # Does not see what is announced.
            await _retry_at_once(other, one)
            await third.connection.execute("COMMIT")
            for _ in range(4):
                await protocol.column(_MOVE_DUE)
        await third.connection.execute("BEGIN")
    assert await protocol.column("SELECT due_at >= first_at FROM delayed, due_window") == [True]


async def test_two_executors_move_one_bound(protocol: Protocol, other: Protocol) -> None:
    await protocol.put()
    version = await protocol.column("SELECT version FROM due_window")
    async with other.transaction():
        await other.column(_MOVE_DUE_NOW)
        assert await protocol.column(_MOVE_DUE_NOW) == [0]
    assert await protocol.column("SELECT version FROM due_window") == [version[0] + 1]
    assert await protocol.column("SELECT turnstile.move_due_window(60)") == [0]
    assert await protocol.column("SELECT version FROM due_window") == [version[0] + 1]


# --- the cost of the sweeps


async def _due_delays(protocol: Protocol) -> None:
    await protocol.submit("delayed", count=_BATCH, run_at=_LATER)
    await protocol.connection.execute("UPDATE delayed SET due_at = clock_timestamp()")
    assert len(await _woken(protocol)) == _BATCH


async def _passed_deadlines(protocol: Protocol) -> None:
    """Also leaves as many unpublished completions, and settles them."""
    await protocol.submit("expiring", count=_BATCH, ttl=0.001)
    await protocol.until("SELECT clock_timestamp() > max(expires_at) FROM expiring")
    ids = await _expired(protocol)
    assert len(ids) == _BATCH
    assert (await protocol.settle(*((i, 0) for i in ids))).count == _BATCH


async def _published_cancels(protocol: Protocol) -> None:
    await protocol.connection.execute(
        "INSERT INTO unpublished_cancel (execution_id, attempt, worker_id, recorded_at)"
        " SELECT n, 1, $1, now() FROM generate_series(1, $2::int) n",
        WORKER, _BATCH,
    )  # fmt: skip
    cancels = await protocol.due_cancels()
    assert len(cancels) == _BATCH
    await protocol.cancels_published(*cancels)


async def _handled_early_cancels(protocol: Protocol) -> None:
    ids = await _store_early_cancels(protocol, _BATCH)
    assert await _overdue_early_cancels(protocol) == ids
    await protocol.connection.execute("SELECT turnstile.delete_early_cancels($1)", ids)


_SWEEPS: dict[
    str, tuple[Callable[[Protocol], Awaitable[object]], Callable[[Protocol], Awaitable[object]]]
] = {
    "wake_due": (_due_delays, _woken),
    "expire_due": (_passed_deadlines, _expired),
    "due_completions": (_passed_deadlines, Protocol.due_completions),
    "due_cancels": (_published_cancels, Protocol.due_cancels),
    "due_pools": (_published_cancels, Protocol.due_pools),
    "overdue_early_cancels": (_handled_early_cancels, _overdue_early_cancels),
    "known_early_cancels": (_handled_early_cancels, _known_early_cancels),
}


@pytest.mark.parametrize("name", _SWEEPS)
async def test_a_sweep_does_not_read_what_it_handled_before(
    protocol: Protocol, old_snapshot: None, name: str
) -> None:
    leave, sweep = _SWEEPS[name]

    async def pages() -> int:
        async with protocol.transaction():
            return (await cost_of(protocol, sweep(protocol))).pages

    for ref in ("delayed", "expiring"):
        await protocol.put(ref, max_concurrent=0)
    # One runs, one is offered.
    await protocol.start(1)
    await protocol.submit()
    for _ in range(3):
        await sweep(protocol)
    first = await pages()
    for _ in range(_BATCHES):
        await leave(protocol)
    unbounded = await pages()
    for _ in range(5):
        await protocol.column(_MOVE_NOW)
        await protocol.column(_MOVE_DUE_NOW)
    last = await pages()
    print(f"{name}: {first} pages, {unbounded} before the bound moved, {last} after")
    assert last <= first * 1.2 + 10, (first, unbounded, last)
