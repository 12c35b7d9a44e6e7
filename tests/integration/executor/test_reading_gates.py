"""Gates after the queue are explained: where an execution waits, what it lacks, what it passed (P10)."""

import re
from datetime import datetime, timedelta
from typing import Any

from tests.support.gates import admit_with_priority, advance, put_resource, submit_and_grant, use
from tests.support.served import Served
from turnstile.executor.queries.schemas import CAUSES_MAX
from turnstile.executor.sql import query


async def waiting_on(api: Served, execution_id: int) -> dict[str, Any]:
    return dict((await api.get(f"/executions/{execution_id}"))["waiting_on"])


async def gated(api: Served, *uses: str | tuple[str, int], ref: str = "a.b", **fields: Any) -> None:
    await api.define(ref)
    await use(api.database, ref, *uses, **fields)


async def test_a_resource_names_units_holders_and_position(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "autocad", 5)
    await gated(api, ("autocad", 2))
    ids = await submit_and_grant(api, "a.b", 5)
    for position, execution_id in enumerate(ids[2:], start=1):
        shown = await api.get(f"/executions/{execution_id}")
        assert (shown["status"], shown["position"], shown["queue_length"]) == ("queued", None, None)
        assert shown["waiting_on"] == {
            "gate": "resource autocad", "closed": None, "units": 2, "free": 1, "capacity": 5,
            "position": position, "position_of": "gate", "waiting": 3,
            "holders": [{"id": ids[0], "units": 2}, {"id": ids[1], "units": 2}], "reason": "resource",
            "root_cause": None,
        }  # fmt: skip
    await api.run(ids[0])
    assert (await api.get(f"/executions/{ids[2]}"))["status"] == "scheduled"
    assert (await waiting_on(api, ids[3]))["position"] == 1


async def test_a_total_counts_over_all_keys(api: Served) -> None:
    await api.register_worker()
    await api.define("a.b", concurrency_key="/k", max_concurrent=1)
    await use(api.database, "a.b", max_concurrent_total=2)
    first, second, third = [(await submit_and_grant(api, "a.b", parameters={"k": key}))[0] for key in "xyz"]
    (behind,) = await submit_and_grant(api, "a.b", parameters={"k": "z"})
    shown = await waiting_on(api, third)
    assert (shown["reason"], shown["gate"], shown["units"], shown["free"]) == ("total", "total", 1, 0)
    assert shown["holders"] == [{"id": first, "units": 1}, {"id": second, "units": 1}]
    page = await api.get("/actions/a.b/queue")
    assert [(each["id"], each["status"], each["attempt"]) for each in page["holders"]] == [
        (first, "scheduled", 1), (second, "scheduled", 1), (third, "queued", 1)
    ]  # fmt: skip
    # Of its queue the slot is held by what waits at the total.
    assert await waiting_on(api, behind) == {
        "reason": "limit", "max_concurrent": 1, "active_count": 1, "holders": [third],
        "root_cause": {"ids": [third], "on": shown},
    }  # fmt: skip


NO_GPU_WORKER = {"reason": "no_worker", "pool": "gpu", "other_pools": []}


async def register_gpu_worker(api: Served, worker_id: str = "gpu-1") -> None:
    await api.database.fetch(
        "SELECT turnstile.register_worker($1, 'test', 'localhost', 1, '{gpu}', 4, 60)", worker_id
    )


async def lose_gpu_worker(api: Served, worker_id: str = "gpu-1") -> None:
    await api.database.fetch("SELECT turnstile.sign_off($1)", worker_id)


async def test_a_resource_or_total_whose_holder_waits_for_a_worker_names_that(api: Served) -> None:
    await api.register_worker()
    await register_gpu_worker(api)
    await put_resource(api.database, "cad", 2)
    await api.define("a.gpu", pool="gpu")
    await use(api.database, "a.gpu", ("cad", 2), max_concurrent_total=1)
    await gated(api, "cad")
    holder, of_same_action = await submit_and_grant(api, "a.gpu", 2)
    (waiting,) = await submit_and_grant(api, "a.b")
    on = await waiting_on(api, waiting)
    assert (on["gate"], on["holders"]) == ("resource cad", [{"id": holder, "units": 2}])
    # The holder is about to be dispatched.
    assert on["root_cause"] is None
    await lose_gpu_worker(api)
    assert (await waiting_on(api, waiting))["root_cause"] == {"ids": [holder], "on": NO_GPU_WORKER}
    # Without a worker for its own action an execution names only that.
    assert await waiting_on(api, of_same_action) == NO_GPU_WORKER
    await register_gpu_worker(api, "gpu-2")
    on = await waiting_on(api, of_same_action)
    assert (on["gate"], on["root_cause"]) == ("total", None)
    verdict = await api.database.fetchval(
        "SELECT verdict FROM turnstile.claim('gpu-2', ARRAY[$1::bigint], ARRAY[1])", holder
    )
    assert verdict == "claimed"
    await lose_gpu_worker(api, "gpu-2")
    # The holder runs.
    assert (await waiting_on(api, waiting))["root_cause"] is None


async def test_the_cause_is_followed_from_holder_to_holder(api: Served) -> None:
    await api.register_worker()
    await register_gpu_worker(api)
    await put_resource(api.database, "first", 2, rank=1)
    await put_resource(api.database, "then", 1, rank=2)
    await api.define("a.gpu", pool="gpu")
    await use(api.database, "a.gpu", "then")
    await api.define("a.both", max_concurrent=1)
    await use(api.database, "a.both", "first", "then")
    await gated(api, "first")
    (blocker,) = await submit_and_grant(api, "a.gpu")
    one, behind = await submit_and_grant(api, "a.both", 2)
    dispatched, other = await submit_and_grant(api, "a.b", 2)
    await lose_gpu_worker(api)
    on_then = {
        "reason": "resource", "gate": "resource then", "closed": None, "units": 1, "free": 0, "capacity": 1,
        "position": 1, "position_of": "gate", "waiting": 1, "holders": [{"id": blocker, "units": 1}],
        "root_cause": {"ids": [blocker], "on": NO_GPU_WORKER},
    }  # fmt: skip
    assert await waiting_on(api, one) == on_then
    on = await waiting_on(api, other)
    assert on["holders"] == [{"id": one, "units": 1}, {"id": dispatched, "units": 1}]
    assert (on["gate"], on["root_cause"]) == ("resource first", {"ids": [one], "on": on_then})
    on = await waiting_on(api, behind)
    assert (on["reason"], on["holders"], on["root_cause"]) == ("limit", [one], {"ids": [one], "on": on_then})


async def test_a_holder_that_waits_for_a_rate_is_the_cause_and_one_before_a_paused_resource_holds_nothing(
    api: Served,
) -> None:
    await api.register_worker()
    await put_resource(api.database, "first", 1, rank=1)
    await put_resource(api.database, "then", 10, rank=2, rate={"starts": 1, "per": 3600})
    await api.define("a.both", max_concurrent=1)
    await use(api.database, "a.both", "first", "then")
    await gated(api, "first")
    (started,) = await submit_and_grant(api, "a.both")
    await api.run(started)
    holder, behind = await submit_and_grant(api, "a.both", 2)
    (other,) = await submit_and_grant(api, "a.b")
    cause = (await waiting_on(api, other))["root_cause"]
    assert (cause["ids"], cause["on"]["reason"]) == ([holder], "rate")
    assert cause["on"]["rate_of"] == "resource then"
    on = await waiting_on(api, behind)
    assert (on["reason"], on["root_cause"]) == ("limit", cause)
    await put_resource(api.database, "then", 10, rank=2, paused=True)
    # The holder returns to its queue: what needs only the first resource passes, and all others name the
    # paused one.
    for each in (holder, behind):
        on = await waiting_on(api, each)
        assert (on["gate"], on["closed"], on["root_cause"]) == ("resource then", "paused", None)
    assert (await api.get(f"/executions/{other}"))["status"] == "scheduled"


async def test_a_bounded_number_of_holders_is_asked_for_the_cause(api: Served) -> None:
    await api.register_worker()
    count = CAUSES_MAX + 2
    for number in range(1, count + 1):
        await put_resource(api.database, f"r{number}", 1, rank=number)
    holders = {}
    # Each holds its resource and waits for that of the one before; the last one may start.
    for number in range(count, 0, -1):
        uses = [f"r{each}" for each in (number, number + 1) if each <= count]
        await gated(api, *uses, ref=f"a.uses{number}")
        (holders[number],) = await submit_and_grant(api, f"a.uses{number}")
    await gated(api, "r1")
    (waiting,) = await submit_and_grant(api, "a.b")
    on, chain = await waiting_on(api, waiting), []
    while on["root_cause"] is not None:
        chain += on["root_cause"]["ids"]
        on = on["root_cause"]["on"]
    assert chain == [holders[number] for number in range(1, CAUSES_MAX + 1)]


async def test_a_closed_gate_is_named_by_what_waits_in_its_queue(api: Served) -> None:
    await put_resource(api.database, "first", 1)
    await put_resource(api.database, "later", 4)
    await gated(api, "first", ("later", 2))
    ids = await submit_and_grant(api, "a.b", 3)
    changes: dict[str, dict[str, Any]] = {
        "paused": {"capacity": 4, "paused": True}, "capacity_zero": {"capacity": 0},
        "capacity_too_low": {"capacity": 1},
    }  # fmt: skip
    for closed, change in changes.items():
        await put_resource(api.database, "later", **change)
        for position, execution_id in enumerate(ids[1:], start=1):
            shown = await api.get(f"/executions/{execution_id}")
            assert (shown["position"], shown["queue_length"]) == (position, 2)
            on = shown["waiting_on"]
            assert (on["reason"], on["gate"], on["closed"]) == ("resource", "resource later", closed)
            assert (on["units"], on["capacity"]) == (2, change["capacity"])
            assert (on["position"], on["position_of"], on["waiting"]) == (position, "queue", None)
            assert on["holders"] == [{"id": ids[0], "units": 2}]
    await api.database.fetch("UPDATE action_queue SET paused = true")
    assert await waiting_on(api, ids[1]) == {"reason": "paused"}


async def test_a_rate_names_the_time_of_the_next_start(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "partner", 10, rate={"starts": 2, "per": 3600})
    await gated(api, "partner", rate_starts=5, rate_per_seconds=60.0)
    ids = await submit_and_grant(api, "a.b", 4)
    started = datetime.fromisoformat((await api.get(f"/executions/{ids[0]}"))["scheduled_at"])
    for position, execution_id in enumerate(ids[2:], start=1):
        on = await waiting_on(api, execution_id)
        next_start = datetime.fromisoformat(on.pop("next_start_at"))
        assert next_start - started == timedelta(hours=1)
        assert on == {
            "reason": "rate", "gate": "rate", "rate_of": "resource partner", "starts": 2,
            "per_seconds": 3600.0, "position": position, "position_of": "action", "waiting": 2,
        }  # fmt: skip


async def test_the_position_at_a_fair_gate_is_the_order_in_which_executions_pass(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "shared", 3, order="fair")
    for ref, units, weight in (("a.a", 1, 1), ("a.b", 2, 3), ("a.c", 1, 2)):
        await api.define(ref)
        await use(api.database, ref, ("shared", units), weights=[weight])
    held = await submit_and_grant(api, "a.a", 3)
    waiting = [
        *await submit_and_grant(api, "a.a", 4),
        *await submit_and_grant(api, "a.b", 5),
        *await submit_and_grant(api, "a.c", 4),
    ]
    waiting += await submit_and_grant(api, "a.a", 2)
    expected = await order_at(api, waiting)
    listed = await api.get("/resources/shared/queue", limit=100)
    assert [item["id"] for item in listed["items"]] == expected
    pages = await api.pages("/resources/shared/queue", limit=4)
    assert [item["id"] for page in pages for item in page] == expected
    assert [item["position"] for page in pages for item in page] == [*range(1, len(expected) + 1)]
    passed: list[int] = []
    running = [*held]
    while len(passed) < len(waiting):
        await api.run(running.pop(0))
        before = [*passed, *running]
        started = [
            row["execution_id"]
            for row in await api.database.fetch("SELECT execution_id FROM slot")
            if row["execution_id"] not in (*before, *held)
        ]
        # One decision may let several pass; the slots do not say in which order.
        assert set(started) == set(expected[len(passed) : len(passed) + len(started)])
        passed += started
        running += started
        assert (
            await order_at(api, [each for each in waiting if each not in passed]) == expected[len(passed) :]
        )


async def order_at(api: Served, ids: list[int]) -> list[int]:
    positions = {each: (await waiting_on(api, each))["position"] for each in ids}
    assert sorted(positions.values()) == list(range(1, len(ids) + 1))
    return sorted(positions, key=lambda each: int(positions[each]))


async def test_an_urgent_execution_is_first_at_every_gate(api: Served) -> None:
    await api.register_worker()
    for fair in (False, True):
        name = f"r{fair}".lower()
        await put_resource(api.database, name, 1, order="fair" if fair else "arrival")
        ref = f"a.{name}"
        await api.define(ref)
        await use(api.database, ref, name)
        first, second, third = await submit_and_grant(api, ref, 3)
        urgent = await admit_with_priority(api.database, ref, 1)
        late = await admit_with_priority(api.database, ref, 5)
        assert await order_at(api, [second, third, urgent, late]) == [urgent, second, third, late]
        page = await api.get(f"/resources/{name}/queue")
        assert [(item["id"], item["priority"]) for item in page["items"]] == [
            (urgent, 1), (second, 3), (third, 3), (late, 5)
        ]  # fmt: skip
        assert [holder["id"] for holder in page["holders"]] == [first]


async def test_the_gates_are_kept_from_the_queue_to_the_end(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "first", 1, rank=1)
    await put_resource(api.database, "then", 1, rank=2)
    await gated(api, "first", ("then", 1))
    await api.define("a.c")
    await use(api.database, "a.c", "then")
    (blocker,) = await submit_and_grant(api, "a.c")
    one, other = await submit_and_grant(api, "a.b", 2)
    steps = (await api.get(f"/executions/{one}"))["gates"]
    assert [(step["gate"], step["passed_at"] is None) for step in steps] == [
        ("queue", False), ("resource first", False), ("resource then", True)
    ]  # fmt: skip
    assert [step["units"] for step in steps] == [1, 1, 1]
    assert steps[1]["arrived_at"] == steps[0]["passed_at"]
    page = await api.get("/resources/first/queue")
    assert (page["held"], page["held_waiting"], page["free"], page["waiting"]) == (1, 1, 0, 1)
    assert [(holder["id"], holder["status"]) for holder in page["holders"]] == [(one, "queued")]
    assert (await waiting_on(api, other))["holders"] == [{"id": one, "units": 1}]
    await api.run(blocker)
    granted = (await api.get(f"/executions/{one}"))["gates"]
    assert granted[:2] == steps[:2]
    assert granted[2]["passed_at"] is not None
    await api.run(one)
    assert (await api.get(f"/executions/{one}"))["gates"] == granted


async def test_the_gates_are_kept_of_executions_that_end_without_a_start(api: Served) -> None:
    """Cancelled or expired at a gate, in the queue, and granted but not claimed; unchanged by their end."""
    await put_resource(api.database, "first", 2, rank=1)
    await put_resource(api.database, "then", 1, rank=2)
    await api.define("a.b", max_concurrent=2)
    await use(api.database, "a.b", ("first", 1), "then", weights=[1, 1])
    ids = await submit_and_grant(api, "a.b", 4)
    late = (await submit_and_grant(api, "a.b", run_at="2100-01-01T00:00:00Z"))[0]
    before = {each: (await api.get(f"/executions/{each}"))["gates"] for each in ids}
    assert [[step["passed_at"] is not None for step in before[each]] for each in ids] == [
        [True, True, True], [True, True, False], [False], [False]
    ]  # fmt: skip
    expired = ids[1]
    await api.database.fetch(
        "UPDATE execution SET expires_at = now() - interval '1 s' WHERE id = $1", expired
    )
    await api.database.fetch(
        "INSERT INTO expiring (execution_id, queue_id, expires_at) SELECT e.id, e.queue_id, b.first_at"
        " FROM execution e CROSS JOIN turnstile.due_bound b WHERE e.id = $1",
        expired,
    )
    ended = await api.database.fetch("SELECT * FROM turnstile.expire_due(10)")
    assert [row["execution_id"] for row in ended] == [expired]
    for each in (*ids[:1], *ids[2:], late):
        assert (await api.http.post(f"/api/v1/executions/{each}/cancel")).status_code == 202
    for each in (*ids, late):
        shown = await api.get(f"/executions/{each}")
        assert shown["status"] == ("expired" if each == expired else "cancelled")
        assert shown.get("gates") == before.get(each)
    for each in ids:
        await api.settle(each)
    assert [(await api.get(f"/executions/{each}"))["gates"] for each in ids] == list(before.values())
    assert (await api.get("/resources/then/queue"))["held"] == 0


async def test_the_gates_are_kept_of_executions_that_end_with_their_action(api: Served) -> None:
    await put_resource(api.database, "r", 1)
    await gated(api, "r", ref="other")
    await submit_and_grant(api, "other")
    await gated(api, "r")
    (waiting,) = await submit_and_grant(api, "a.b")
    before = (await api.get(f"/executions/{waiting}"))["gates"]
    assert [(step["gate"], step["passed_at"] is None) for step in before] == [
        ("queue", False), ("resource r", True)
    ]  # fmt: skip
    deleted = await api.http.delete("/api/v1/actions/a.b", params={"waiting": "cancel"})
    assert deleted.status_code == 200, deleted.text
    shown = await api.get(f"/executions/{waiting}")
    assert (shown["status"], shown["gates"]) == ("cancelled", before)


async def test_the_gates_are_kept_of_a_run_that_the_watchdog_ends(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "r", 1)
    await gated(api, "r")
    (execution_id,) = await submit_and_grant(api, "a.b")
    await api.claim(execution_id)
    before = (await api.get(f"/executions/{execution_id}"))["gates"]
    await api.database.fetch("UPDATE slot SET overdue_at = now() - interval '1 minute', cancels_sent = 9")
    await api.database.fetch("SELECT * FROM turnstile.stop_overdue(1, 3, 10)")
    shown = await api.get(f"/executions/{execution_id}")
    assert (shown["status"], shown["gates"]) == ("timeout", before)


async def test_the_list_has_the_gates_of_what_has_ended_and_passed_gates(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "r", 2)
    await gated(api, "r")
    await api.define("plain")
    (plain,) = await submit_and_grant(api, "plain")
    one, running = await submit_and_grant(api, "a.b", 2)
    await api.run(one)
    await api.run(plain)
    listed = {item["id"]: item for item in (await api.get("/executions"))["items"]}
    assert listed[one]["gates"] == (await api.get(f"/executions/{one}"))["gates"] != []
    assert not any("gates" in listed[each] for each in (plain, running))


async def test_what_leaves_a_changed_route_is_explained_until_it_has_left(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "r", 1)
    await gated(api, "r")
    ids = await submit_and_grant(api, "a.b", 2)
    await api.database.fetch("UPDATE action SET uses = '[]'")
    await api.database.fetch("SELECT turnstile.reroute(ARRAY(SELECT id FROM action))")
    assert (await waiting_on(api, ids[1]))["gate"] == "resource r"
    await advance(api.database)
    assert (await api.get(f"/executions/{ids[1]}"))["status"] == "scheduled"


async def test_the_gauges_show_resources_and_count_what_waits_at_gates(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "closed", 1, paused=True)
    await put_resource(api.database, "first", 3, rank=1)
    await put_resource(api.database, "then", 1, rank=2)
    await put_resource(api.database, "unlimited", None)
    await gated(api, "first", "then", "unlimited")
    await submit_and_grant(api, "a.b", 5)
    shown = (await api.http.get("/metrics")).text
    for line in (
        'turnstile_resource_held{resource="first"} 3',
        'turnstile_resource_capacity{resource="first"} 3',
        'turnstile_resource_waiting{resource="first"} 2',
        'turnstile_resource_held_waiting{resource="first"} 2',
        'turnstile_resource_waiting{resource="then"} 2',
        'turnstile_resource_held_waiting{resource="then"} 0',
        'turnstile_resource_held{resource="unlimited"} 1',
        'turnstile_resource_paused{resource="closed"} 1',
        'turnstile_resource_paused{resource="first"} 0',
        'turnstile_queue_depth{action_ref="a.b"} 4',
        'turnstile_waiting{action_ref="a.b",reason="resource"} 4',
        'turnstile_waiting{action_ref="a.b",reason="limit"} 0',
        'turnstile_slots_held{action_ref="a.b"} 1',
    ):
        assert re.search(rf"^{re.escape(line)}(\.0)?$", shown, re.MULTILINE), line
    assert 'turnstile_resource_capacity{resource="unlimited"}' not in shown


async def test_the_gauge_of_a_pool_counts_what_more_workers_would_start(api: Served) -> None:
    """Also without any worker, so that an autoscaler can start the first."""
    await api.define("a.b", max_concurrent=2)
    await api.define("a.c")
    await api.database.fetch("UPDATE action SET served = false")
    await submit_and_grant(api, "a.b", 5)
    await submit_and_grant(api, "a.c", 3)
    shown = (await api.http.get("/metrics")).text
    assert re.search(r'^turnstile_pool_waiting{pool="default"} 5(\.0)?$', shown, re.MULTILINE)


async def test_the_dashboard_sees_what_passes_a_later_gate(api: Served) -> None:
    await api.register_worker()
    await put_resource(api.database, "r", 1)
    for ref in ("a.b", "a.c"):
        await gated(api, "r", ref=ref)
    (first,) = await submit_and_grant(api, "a.b")
    await submit_and_grant(api, "a.c", 2)

    async def counted(since: datetime | None) -> dict[str, tuple[int, int]]:
        rows = await api.database.fetch(query("dashboard_queues"), since, 100)
        return {row["action_ref"]: (row["depth"], row["active_count"]) for row in rows}

    assert await counted(None) == {"a.b": (0, 1), "a.c": (2, 0)}
    await api.claim(first)
    await api.finish(first)
    before = await api.database.fetchval("SELECT clock_timestamp()")
    assert await counted(before) == {}
    await api.settle(first)
    assert await counted(before) == {"a.b": (0, 0), "a.c": (1, 1)}
