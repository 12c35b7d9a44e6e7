"""`estimated_start` of executions with gates after their queue, for each kind of gate (P10)."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.gates import grant_all, put_resource, submit_and_grant, use
from tests.support.served import Served

RUN_SECONDS = 10
# One run after the other, until now; each passes all gates at once and is claimed at once.
HISTORY = """
INSERT INTO execution (action_id, queue_id, status, request_hash, attempt, worker_id, created_at, queued_at,
                       scheduled_at, started_at, completed_at, gates)
SELECT q.action_id, q.id, 'completed', gen_random_uuid(), 1, 'w', h.at, h.at, h.at, h.at,
       h.at + interval '10 s',
       (SELECT jsonb_agg(jsonb_build_object('gate', n, 'units', 1, 'arrived_at', h.at, 'passed_at', h.at))
        FROM jsonb_array_elements_text($2) n)
FROM action_queue q, LATERAL (
    SELECT now() - make_interval(secs => 10.0 * n) AS at FROM generate_series(50, 1, -1) n
) h
WHERE q.action_id = (SELECT id FROM action WHERE ref = $1)
ORDER BY h.at
"""


@pytest.fixture
async def api(api: Served) -> Served:
    await api.register_worker()
    return api


async def past(api: Served, ref: str, *gates: str, **fields: Any) -> None:
    """Give an action 50 runs of 10 s, which passed these gates."""
    (first,) = await api.submit_many(ref, 1, **fields)
    await grant_all(api.database)
    await api.run(first)
    await api.database.fetch(HISTORY, ref, json.dumps(["queue", *gates]))


async def expected(api: Served, execution_id: int) -> tuple[float, float] | None:
    """Return the expected start in seconds from now."""
    shown = (await api.get(f"/executions/{execution_id}"))["estimated_start"]
    if shown is None:
        return None
    ends = (datetime.fromisoformat(shown[end]) - datetime.now(UTC) for end in ("earliest", "latest"))
    earliest, latest = (each.total_seconds() for each in ends)
    return earliest, latest


async def is_near(api: Served, execution_id: int, seconds: float) -> bool:
    found = await expected(api, execution_id)
    assert found is not None
    return 0.6 * seconds < found[0] < seconds < found[1] < 1.6 * seconds


async def test_at_a_resource_the_start_follows_from_the_held_units_and_the_position(api: Served) -> None:
    await put_resource(api.database, "cad", 5)
    await api.define("a.b")
    await use(api.database, "a.b", ("cad", 2))
    await past(api, "a.b", "resource cad")
    ids = await submit_and_grant(api, "a.b", 7)
    # Two at once, and two rounds of 10 s for four of five.
    for position, execution_id in enumerate(ids[2:], start=1):
        assert await is_near(api, execution_id, (position + 1) // 2 * RUN_SECONDS)


async def test_at_a_resource_the_units_of_other_actions_count(api: Served) -> None:
    await put_resource(api.database, "cad", 4)
    for ref, units in (("heavy", 4), ("light", 1)):
        await api.define(ref)
        await use(api.database, ref, ("cad", units))
    await past(api, "heavy", "resource cad")
    await past(api, "light", "resource cad")
    await submit_and_grant(api, "heavy")
    (heavy,) = await submit_and_grant(api, "heavy")
    (light,) = await submit_and_grant(api, "light")
    (new,) = await submit_and_grant(api, "heavy")
    assert await is_near(api, heavy, RUN_SECONDS)
    assert await is_near(api, light, 2 * RUN_SECONDS)
    found = await expected(api, new)
    assert found is not None
    assert 12 < found[0] < 35
    # An action that has never run waits behind the runs of others.
    await api.define("first")
    await use(api.database, "first", ("cad", 4))
    (first,) = await submit_and_grant(api, "first")
    assert await expected(api, first) is not None


async def test_at_a_total_the_runs_of_all_keys_count(api: Served) -> None:
    await api.define("a.b", concurrency_key="/k", max_concurrent=1)
    await use(api.database, "a.b", max_concurrent_total=2)
    await past(api, "a.b", "total", parameters={"k": "x"})
    ids = [(await submit_and_grant(api, "a.b", parameters={"k": key}))[0] for key in "uvwxyz"]
    for position, execution_id in enumerate(ids[2:], start=1):
        assert await is_near(api, execution_id, (position + 1) // 2 * RUN_SECONDS)


async def test_at_a_fair_gate_the_position_follows_the_turns(api: Served) -> None:
    await put_resource(api.database, "cad", 1, order="fair")
    for ref in ("a.b", "c.d"):
        await api.define(ref)
        await use(api.database, ref, "cad")
        await past(api, ref, "resource cad")
    _, *rest = await submit_and_grant(api, "a.b", 4)
    (other,) = await submit_and_grant(api, "c.d")
    shown = await api.get(f"/executions/{other}")
    assert shown["waiting_on"]["position"] < len(rest) + 1
    assert await is_near(api, other, shown["waiting_on"]["position"] * RUN_SECONDS)


async def test_in_the_queue_of_a_gated_action_the_waits_at_its_gates_count(api: Served) -> None:
    await put_resource(api.database, "cad", 1)
    await api.define("a.b", max_concurrent=1)
    await use(api.database, "a.b", "cad")
    await past(api, "a.b", "resource cad")
    _, *waiting = await submit_and_grant(api, "a.b", 4)
    for position, execution_id in enumerate(waiting, start=1):
        assert await is_near(api, execution_id, position * RUN_SECONDS)
    # Each run waited 10 s more at the resource.
    await api.database.fetch(
        "UPDATE execution SET started_at = started_at + interval '10 s', scheduled_at = scheduled_at"
        " + interval '10 s', completed_at = completed_at + interval '10 s'"
        " WHERE completed_at - started_at = interval '10 s'"
    )
    assert await is_near(api, waiting[0], 3 * RUN_SECONDS)


async def test_a_delayed_execution_of_a_gated_action_starts_after_it_is_due(api: Served) -> None:
    await put_resource(api.database, "cad", 1)
    await api.define("a.b", max_concurrent=1)
    await use(api.database, "a.b", "cad")
    await past(api, "a.b", "resource cad")
    run_at = (datetime.now(UTC) + timedelta(seconds=100)).isoformat()
    (delayed,) = await submit_and_grant(api, "a.b", run_at=run_at)
    assert await is_near(api, delayed, 101)


async def test_at_a_rate_the_start_is_that_of_the_position(api: Served) -> None:
    await api.define("a.b")
    await use(api.database, "a.b", rate_starts=2, rate_per_seconds=60.0)
    ids = await submit_and_grant(api, "a.b", 7)
    # The first start was 20 s ago, the second just now: free again in 40 and 60 s.
    await api.database.fetch(
        "UPDATE rate_start SET granted_at = granted_at - interval '20 s' WHERE number = 1"
    )
    for execution_id, seconds in zip(ids[2:], (40, 60, 100, 120, 160), strict=True):
        found = await expected(api, execution_id)
        assert found is not None
        assert seconds - 1 < found[0] <= seconds
        assert seconds < found[1] < seconds + 2


async def test_at_a_shared_rate_others_may_take_turns(api: Served) -> None:
    await put_resource(api.database, "partner", None, rate={"starts": 1, "per": 60})
    for ref in ("a.b", "c.d"):
        await api.define(ref)
        await use(api.database, ref, "partner")
    _, own = await submit_and_grant(api, "a.b", 2)
    others = await submit_and_grant(api, "c.d", 5)
    found = await expected(api, own)
    assert found is not None
    assert 58 < found[0] <= 60
    assert 119 < found[1] < 122
    found = await expected(api, others[1])
    assert found is not None
    assert 118 < found[0] <= 120
    # One of the other action is before it, and only one waits.
    assert 179 < found[1] < 182


async def test_the_rate_that_is_free_last_decides(api: Served) -> None:
    await put_resource(api.database, "partner", None, rate={"starts": 1, "per": 300})
    await api.define("a.b")
    await use(api.database, "a.b", "partner", rate_starts=1, rate_per_seconds=60.0)
    _, second, third = await submit_and_grant(api, "a.b", 3)
    for execution_id, seconds in ((second, 300), (third, 600)):
        found = await expected(api, execution_id)
        assert found is not None
        assert seconds - 2 < found[0] <= seconds < found[1] + 1


async def test_at_a_closed_gate_there_is_no_estimate(api: Served) -> None:
    await put_resource(api.database, "cad", 2)
    await api.define("a.b")
    await use(api.database, "a.b", ("cad", 2))
    await past(api, "a.b", "resource cad")
    _, waiting = await submit_and_grant(api, "a.b", 2)
    hindrances: tuple[dict[str, Any], ...] = ({"paused": True}, {"capacity": 0}, {"capacity": 1})
    for hindrance in hindrances:
        assert await expected(api, waiting) is not None
        await put_resource(api.database, "cad", **{"capacity": 2, **hindrance})
        assert await expected(api, waiting) is None, hindrance
        await put_resource(api.database, "cad", 2)


async def test_before_a_run_has_ended_there_is_no_estimate_at_a_resource(api: Served) -> None:
    await put_resource(api.database, "cad", 1)
    await api.define("a.b")
    await use(api.database, "a.b", "cad")
    _, waiting = await submit_and_grant(api, "a.b", 2)
    assert await expected(api, waiting) is None
