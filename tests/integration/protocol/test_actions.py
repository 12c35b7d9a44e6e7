"""Action definitions: stored, registered by workers, rolled out to their queues."""

import json
from typing import Any

import asyncpg
import pytest

from tests.support.protocol import COUNT_QUEUES, Protocol
from turnstile.common.action_definition import ActionDefinition, RetryDefinition, action_columns
from turnstile.common.domain.durations import SECONDS_MAX


async def test_a_new_request_does_not_overtake_the_queue_when_a_slot_is_free(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=3)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    (newcomer,) = await protocol.submit()
    assert await protocol.held() == ids[:1]
    assert await protocol.status(newcomer) == "queued"


async def test_many_definitions_are_stored_together_and_repeating_them_changes_nothing(
    protocol: Protocol,
) -> None:
    definitions = [ActionDefinition(ref=ref, max_concurrent=n) for n, ref in enumerate("dcba")]
    for _ in range(2):
        await protocol.queue_manager.put_actions(definitions)
    rows = await protocol.connection.fetch("SELECT ref, max_concurrent FROM action ORDER BY ref")
    assert [tuple(row) for row in rows] == [("a", 3), ("b", 2), ("c", 1), ("d", 0)]
    await protocol.queue_manager.put_actions([])


async def test_a_new_action_has_one_instant_of_creation_and_change(protocol: Protocol) -> None:
    await protocol.queue_manager.put_actions([ActionDefinition(ref=f"new.{number}") for number in range(500)])
    changed = "SELECT count(*) FROM action WHERE created_at <> updated_at"
    assert await protocol.connection.fetchval(changed) == 0


# --- registration by workers


async def test_a_worker_s_declaration_never_changes_a_stored_limit(protocol: Protocol) -> None:
    limits: dict[str, int | None] = {"a": None, "b": 0, "c": 7}
    for ref, limit in limits.items():
        await protocol.put(ref, max_concurrent=limit, timeout=60)
        await protocol.submit(ref)
    declared = [ActionDefinition(ref=ref, max_concurrent=3, timeout=60) for ref in limits]
    differences = await protocol.register_actions(*declared, ActionDefinition(ref="new", max_concurrent=3))
    assert [(each.ref, each.fields) for each in differences] == [(ref, ("max_concurrent",)) for ref in limits]
    assert [(await protocol.queue(ref))["max_concurrent"] for ref in limits] == [*limits.values()]
    stored = await protocol.connection.fetch("SELECT ref, max_concurrent FROM action ORDER BY ref")
    assert [tuple(row) for row in stored] == [*limits.items(), ("new", 3)]


async def test_declaring_the_stored_definition_is_no_difference(protocol: Protocol) -> None:
    definition = ActionDefinition(
        ref="a", max_concurrent=3, timeout=1.5, ttl=60, concurrency_key="/x/0",
        retry=RetryDefinition(max_attempts=3, delay=0.1, jitter=0.3), pool="gpu", max_queued=9,
    )  # fmt: skip
    assert await protocol.register_actions(definition) == []
    assert await protocol.register_actions(definition) == []
    assert await protocol.register_actions() == []


INVALID: list[tuple[str, dict[str, Any]]] = [
    ("ref", {"ref": "a\nb"}),
    ("ref", {"ref": ""}),
    ("ref", {"ref": "a" * 201}),
    ("entrypoint", {"entrypoint": 5}),
    ("entrypoint", {"entrypoint": {"a": 1}}),
    ("entrypoint", {"entrypoint": ["wc"]}),
    ("entrypoint", {"runner": "command"}),
    ("entrypoint", {"runner": "command", "entrypoint": "wc"}),
    ("entrypoint", {"runner": "command", "entrypoint": []}),
    ("entrypoint", {"runner": "command", "entrypoint": ["wc", 5]}),
    ("entrypoint", {"runner": "command", "entrypoint": ["wc", [["-w"]]]}),
    ("entrypoint", {"runner": "http"}),
    ("entrypoint", {"runner": "http", "entrypoint": "file:///etc/passwd"}),
    ("max_concurrent", {"max_concurrent": 1_000_001}),
    ("concurrency_key", {"concurrency_key": "/a"}),
    ("concurrency_key", {"concurrency_key_path": ["a"]}),
    ("concurrency_key", {"concurrency_key": "a", "concurrency_key_path": ["a"]}),
    ("concurrency_key", {"concurrency_key": "/a", "concurrency_key_path": ["b"]}),
    ("max_concurrent_total", {"max_concurrent_total": 1_000_001}),
    ("order", {"fair": True}),
    ("rate", {"rate_starts": 100_001, "rate_per_seconds": 1}),
    ("rate", {"rate_starts": 1, "rate_per_seconds": 86_401}),
    ("rate", {"rate_starts": 1}),
    *(
        ("uses", {"uses": uses})
        for uses in (
            "cad",
            ["cad"],
            {"cad": 1},
            [{"resource": "cad", "units": 1}],
            [{"resource": "cad", "units": 0, "weight": 1}],
            [{"resource": "cad", "units": 1.5, "weight": 1}],
            [{"resource": "cad", "units": "1", "weight": 1}],
            [{"resource": "cad", "units": 1, "weight": 17}],
            [{"resource": "c d", "units": 1, "weight": 1}],
            [{"resource": "cad", "units": 1, "weight": 1, "more": 1}],
            [{"resource": "cad", "units": 1, "weight": 1}] * 2,
            [{"resource": name, "units": 1, "weight": 1} for name in "ba"],
        )
    ),
    ("priority_min", {"priority_min": 6}),
    # Only an operator gives them.
    ("parameters_schema", {"parameters_schema": {}}),
    ("result_schema", {"result_schema": {}}),
    ("timeout", {"timeout_seconds": SECONDS_MAX + 1}),
    ("ttl", {"ttl_seconds": "NaN"}),
    ("keep_for", {"keep_for_seconds": "Infinity"}),
    ("keep_count", {"keep_count": 2_000_000_000}),
    ("retry.max_attempts", {"retry_max_attempts": 1001}),
    ("retry.delay", {"retry_delay_seconds": "-Infinity"}),
    ("retry.factor", {"retry_factor": "NaN"}),
    ("retry.max_delay", {"retry_max_delay_seconds": SECONDS_MAX + 1}),
    ("retry.jitter", {"retry_jitter": 2}),
    ("max_reclaims", {"max_reclaims": 1001}),
    ("pool", {"pool": "gpu\n"}),
    ("pool", {"pool": "retry"}),
    ("max_queued", {"max_queued": 2_000_000_000}),
    ("callback_url", {"callback_url": "file:///etc/passwd"}),
    ("callback_url", {"callback_url": "https://name:word@example.org/"}),
]


async def test_an_invalid_definition_is_refused_with_its_field(protocol: Protocol) -> None:
    valid = action_columns(ActionDefinition(ref="odd"))
    for field, columns in INVALID:
        declared = json.dumps([{**valid, **columns}])
        with pytest.raises(asyncpg.CheckViolationError, match=f"invalid value in {field}$"):
            await protocol.connection.fetch("SELECT turnstile.register_actions($1)", declared)
    assert await protocol.column("SELECT ref FROM action") == []


async def test_every_valid_definition_is_stored(protocol: Protocol) -> None:
    for definition in (
        ActionDefinition(ref="a" * 200, runner="command", entrypoint=["wc", "-w"], pool="p" * 64),
        ActionDefinition(ref="a2", runner="http", entrypoint="https://example.org/hook", pool="A_-9"),
        ActionDefinition(ref="a3", entrypoint="module:function", max_concurrent=0, max_queued=0),
        ActionDefinition(ref="_.-", max_concurrent=1_000_000, max_queued=1_000_000_000, max_reclaims=1000),
        ActionDefinition(ref="a4", concurrency_key="/"),
        ActionDefinition(ref="a5", concurrency_key="/a~1b/0//~01/\n/é"),
        ActionDefinition(ref="a6", timeout=0, ttl=SECONDS_MAX, keep_for=SECONDS_MAX, keep_count=10**9),
        ActionDefinition(
            ref="a7",
            retry=RetryDefinition(max_attempts=1000, delay=SECONDS_MAX, factor=100, max_delay=0, jitter=1),
        ),
        ActionDefinition(ref="a8", callback_url="HTTPS://münchen.example:65535/a?b=c"),
    ):
        assert await protocol.register_actions(definition) == []


async def test_a_service_of_the_previous_version_leaves_unknown_fields_unchanged(
    protocol: Protocol,
) -> None:
    columns = action_columns(ActionDefinition(ref="a"))
    del columns["submitter_keys"], columns["parameters_schema"]
    earlier = json.dumps([columns])
    await protocol.connection.fetch("SELECT turnstile.register_actions($1)", earlier)
    assert await protocol.column("SELECT submitter_keys FROM action") == [False]
    await protocol.put("a", submitter_keys=True, parameters_schema={"type": "object"})
    logged = await protocol.column("SELECT id FROM action_change")
    await protocol.connection.fetch("SELECT turnstile.put_actions($1)", earlier)
    assert await protocol.column("SELECT submitter_keys FROM action") == [True]
    assert await protocol.column("SELECT parameters_schema::text FROM action") == ['{"type": "object"}']
    assert await protocol.column("SELECT id FROM action_change") == logged


# --- roll_out

_KEYS = (
    "INSERT INTO action_queue (action_id, concurrency_key, max_concurrent)"
    " SELECT a.id, lpad(n::text, 6, '0'), a.max_concurrent FROM action a, generate_series(1, 2500) n"
)


async def put_limit(protocol: Protocol, limit: int) -> None:
    await protocol.put(max_concurrent=limit, concurrency_key="/key")


async def limits(protocol: Protocol) -> dict[int | None, int]:
    rows = await protocol.connection.fetch("SELECT max_concurrent, count(*) FROM action_queue GROUP BY 1")
    return {row[0]: row[1] for row in rows}


@pytest.fixture
async def many(protocol: Protocol) -> Protocol:
    """An action with 2,500 queues of limit 1."""
    await put_limit(protocol, 1)
    await protocol.connection.execute(_KEYS)
    await protocol.connection.execute(COUNT_QUEUES)
    return protocol


async def test_a_change_reaches_the_first_thousand_queues_at_once_and_the_rest_in_slices(
    many: Protocol,
) -> None:
    await put_limit(many, 2)
    assert await limits(many) == {1: 1500, 2: 1000}
    assert await many.drifted_queues(limit=5000) == []
    assert await many.roll_out() == [(1000, 1000, [])]
    assert await many.roll_out() == [(500, 500, [])]
    assert await many.roll_out() == []
    assert await limits(many) == {2: 2500}
    assert await many.drifted_queues(limit=5000) == []


async def test_a_queue_that_is_created_during_a_rollout_has_the_new_limit(many: Protocol) -> None:
    await put_limit(many, 2)
    first = await many.submit(count=3, parameters={"key": "new"})
    assert await many.statuses(*first) == ["scheduled", "scheduled", "queued"]
    # Until its slice comes, the limit in a queue's row applies (P1).
    last = await many.submit(count=3, parameters={"key": "002500"})
    assert await many.statuses(*last) == ["scheduled", "queued", "queued"]
    await many.roll_out()
    assert [granted for *_, granted in await many.roll_out()] == [last[1:2]]


async def test_a_second_change_starts_the_rollout_again(many: Protocol) -> None:
    await put_limit(many, 2)
    await many.roll_out()
    await put_limit(many, 3)
    while await many.roll_out():
        pass
    assert await limits(many) == {3: 2500}


async def test_a_locked_queue_is_skipped_and_changed_when_it_is_free(many: Protocol, other: Protocol) -> None:
    async with other.transaction():
        await other.connection.execute("SELECT FROM action_queue ORDER BY id LIMIT 1 FOR UPDATE")
        await put_limit(many, 2)
        for _ in range(3):
            await many.roll_out()
        assert await limits(many) == {1: 1, 2: 2499}
        assert await many.drifted_queues(limit=5000) == []
    assert await many.roll_out() == [(1, 1, [])]
    assert await many.roll_out() == []
    assert await limits(many) == {2: 2500}
