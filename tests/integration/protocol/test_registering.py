"""What a worker declares is stored only where it can be read again."""

import json
from typing import Any

import asyncpg
import pytest

from tests.support.protocol import Protocol
from turnstile.common.action_definition import ActionDefinition, RetryDefinition, action_columns
from turnstile.common.domain.durations import SECONDS_MAX

MISFITS: list[tuple[str, dict[str, Any]]] = [
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


async def test_what_no_definition_can_have_is_refused_with_its_field(protocol: Protocol) -> None:
    fits = action_columns(ActionDefinition(ref="odd"))
    for field, columns in MISFITS:
        declared = json.dumps([{**fits, **columns}])
        with pytest.raises(asyncpg.CheckViolationError, match=f"no definition has such a value in {field}$"):
            await protocol.connection.fetch("SELECT turnstile.register_actions($1)", declared)
    assert await protocol.column("SELECT ref FROM action") == []


async def test_whatever_a_definition_may_be_is_stored(protocol: Protocol) -> None:
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


async def test_a_service_of_an_earlier_version_leaves_the_field_that_it_does_not_know(
    protocol: Protocol,
) -> None:
    columns = action_columns(ActionDefinition(ref="a"))
    del columns["submitter_keys"]
    earlier = json.dumps([columns])
    await protocol.connection.fetch("SELECT turnstile.register_actions($1)", earlier)
    assert await protocol.column("SELECT submitter_keys FROM action") == [False]
    await protocol.put("a", submitter_keys=True)
    noted = await protocol.column("SELECT id FROM action_change")
    await protocol.connection.fetch("SELECT turnstile.put_actions($1)", earlier)
    assert await protocol.column("SELECT submitter_keys FROM action") == [True]
    assert await protocol.column("SELECT id FROM action_change") == noted
