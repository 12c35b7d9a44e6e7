"""Resources and gated actions for tests; and grants to all queues, as after an admit of gated actions."""

import json
from collections.abc import Sequence
from typing import Any

from tests.support.served import Served
from turnstile.common.database import Database
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import ResourceDefinition
from turnstile.executor.slot_grants import QueueManager

ADVANCES_MAX = 100


async def put_resource(database: Database, name: str, capacity: int | None = None, **fields: Any) -> None:
    """Create or change a resource, as a user does: fields that are not given get their defaults."""
    definition = ResourceDefinition(name=name, capacity=capacity, **fields)
    await QueueManager(database, lock_timeout_seconds=None).put_resource(
        definition, changed_by=Caller("alice")
    )


async def use(
    database: Database,
    ref: str,
    *resources: str | tuple[str, int],
    weights: Sequence[int] = (),
    **fields: Any,
) -> None:
    """Give an action its gates, let what waits return from those that it has no longer, and grant."""
    await route(database, ref, *resources, weights=weights, **fields)
    await advance(database)


async def route(
    database: Database,
    ref: str,
    *resources: str | tuple[str, int],
    weights: Sequence[int] = (),
    **fields: Any,
) -> None:
    """Give an action its gates: resources with units, and columns like `max_concurrent_total` and `fair`."""
    uses = [(each, 1) if isinstance(each, str) else each for each in resources]
    stored = [
        {"resource": name, "units": units, "weight": weights[index] if weights else 1}
        for index, (name, units) in enumerate(uses)
    ]
    given = {"uses": json.dumps(stored), **fields}
    changes = ", ".join(f"{name} = ${number}" for number, name in enumerate(given, start=2))
    await database.fetch(f"UPDATE action SET {changes} WHERE ref = $1", ref, *given.values())
    await database.fetch("SELECT turnstile.reroute(ARRAY(SELECT id FROM action WHERE ref = $1))", ref)


async def grant_all(database: Database) -> list[int]:
    """Let everything pass that can, from the queues on; return the granted executions."""
    row = await database.fetchrow(
        "SELECT ARRAY(SELECT (g).execution_id FROM unnest(granted) g) AS ids FROM turnstile.grant_slots("
        " ARRAY(SELECT id FROM action_queue ORDER BY id))"
    )
    assert row is not None
    return list(row["ids"])


async def submit_and_grant(api: Served, ref: str, count: int = 1, **fields: Any) -> list[int]:
    """Submit such executions over HTTP, then let everything pass that can; return their ids."""
    ids = await api.submit_many(ref, count, **fields)
    await grant_all(api.database)
    return ids


async def advance(database: Database) -> None:
    """Let executions return to their queues from gates that have closed or changed; then grant."""
    for _ in range(ADVANCES_MAX):
        if not await database.fetchval("SELECT remaining FROM turnstile.advance_gates(1000)"):
            break
    await grant_all(database)


async def admit_with_priority(database: Database, ref: str, priority: int) -> int:
    """Admit one execution and grant; return its id."""
    none = "ARRAY[NULL]"
    row = await database.fetchrow(
        f"SELECT (admitted[1]).execution_id FROM turnstile.admit(ARRAY[$1], ARRAY['{{}}'::jsonb],"
        f" {none}::text[], {none}::text[], {none}::uuid[], ARRAY[gen_random_uuid()], {none}::timestamptz[],"
        f" {none}::float8[], {none}::float8[], {none}::text[], ARRAY['{{}}'::jsonb], {none}::text[],"
        " in_priorities => ARRAY[$2::smallint])",
        ref,
        priority,
    )
    assert row is not None
    await grant_all(database)
    return int(row["execution_id"])
