"""The wire format with real processes: plain AMQP is enough, invalid messages are rejected and stored, copies
are harmless.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import Environment
from tests.support.processes import Service
from tests.support.traffic import ask, publishing, request

pytestmark = pytest.mark.asyncio(loop_scope="module")


BAD: list[tuple[str, bytes, Mapping[str, Any], str, str]] = [
    ("not JSON", b"{nope", {}, "invalid_message", "JSON"),
    ("not UTF-8", b'{"action_ref": "\xff\xfe"}', {}, "invalid_message", "JSON"),
    ("a list", b"[1]", {}, "invalid_message", "object"),
    ("no action", b"{}", {}, "invalid_message", "action_ref"),
    ("a wrong type", b'{"action_ref": 5}', {}, "invalid_message", "action_ref"),
    ("an unknown field", b'{"action_ref": "noop", "prio": 1}', {}, "unknown_field", "prio"),
    ("NaN", b'{"action_ref": "noop", "parameters": {"number": NaN}}', {}, "invalid_message", "JSON"),
    ("NUL", b'{"action_ref": "noop", "parameters": {"a": "\\u0000"}}', {},
     "invalid_parameters", "U+0000"),
    ("depth 10,000",
     b'{"action_ref": "noop", "parameters": {"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}", {},
     "invalid_message", "JSON"),
    ("10 MB", b'{"action_ref": "noop", "parameters": {"a": "' + b"x" * 10_000_000 + b'"}}', {},
     "too_large", "bytes"),
    ("an unknown action", b'{"action_ref": "missing"}', {}, "unknown_action", "missing"),
    ("an unknown version", b'{"action_ref": "noop"}', {"headers": {"schema_version": 9}},
     "unsupported_schema_version", "schema_version"),
    ("a wrong duration", b'{"action_ref": "noop", "timeout": "soon"}', {}, "invalid_message", "timeout"),
    ("a priority out of range", b'{"action_ref": "noop", "priority": 6}', {}, "invalid_message", "priority"),
    ("a priority that is a word", b'{"action_ref": "noop", "priority": "high"}', {},
     "invalid_message", "1 (first) to 5 (last)"),
    ("a far date", b'{"action_ref": "noop", "run_at": "tomorrow"}', {}, "invalid_message", "run_at"),
    ("parameters that are a list", b'{"action_ref": "noop", "parameters": []}', {},
     "invalid_parameters", "parameters"),
]  # fmt: skip


async def test_invalid_requests_are_rejected_and_stored_and_the_valid_ones_around_them_run(
    env: Environment,
) -> None:
    good = [request({"action_ref": "noop", "parameters": {"number": n}}) for n in range(200)]

    def mixed(reply_to: str) -> list[Any]:
        return [request(body, reply_to=reply_to, **properties) for _, body, properties, _, _ in BAD]

    before = await env.history.value("SELECT coalesce(max(id), 0) FROM ledger.execution")
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish(good[:100])
        replies = await ask(env.amqp_url, mixed)
        await publisher.publish(good[100:])
    dead = await env.history.dead_letters(len(BAD))
    finished = "SELECT count(*) = 200 FROM ledger.execution WHERE id > $1 AND completed_at IS NOT NULL"
    await env.history.until(finished, before)
    results = "SELECT result::text::int AS number FROM ledger.execution WHERE id > $1 ORDER BY id"
    assert [row["number"] for row in await env.history.rows(results, before)] == list(range(200))
    reasons = {(letter["body"][:1000], letter["code"]): letter["error"] for letter in dead}
    for (name, body, _, code, word), (kind, reply) in zip(BAD, replies, strict=True):
        assert kind == "execution.rejected", name
        assert reply["code"] == code, (name, reply)
        assert word in reply["message"], (name, reply)
        assert word in reasons[body[:1000], code], name


async def test_what_waits_while_the_code_changes_is_checked_by_the_worker_and_not_retried(
    env: Environment, tmp_path: Path
) -> None:
    source = """
from turnstile import action

@action("checked", pool="checked", paused=True, retry={"max_attempts": 3, "delay": "1ms"})
async def checked(number: KIND) -> str:
    return str(number)
"""

    async def start_version(kind: str) -> Service:
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "checked_actions.py").write_text(source.replace("KIND", kind))
        return await env.system.start_worker("checked_actions", PYTHONPATH=str(folder))

    wide = await start_version("str")
    fits, fits_no_more = [await env.submit("checked", parameters={"number": text}) for text in ("7", "many")]
    assert await wide.stop() == 0
    await start_version("int")
    await env.patch("checked", paused=False)
    assert await env.ended(fits, fits_no_more) == ["completed", "failed"]
    failure = await env.get(fits_no_more)
    assert (failure["error"]["type"], failure["attempt"]) == ("InvalidParameters", 1)
    assert failure["error"]["message"].startswith("number: expected a whole number")


async def test_one_bad_item_in_a_batch_of_ten_leaves_the_nine_alone(env: Environment) -> None:
    raw = [json.dumps({"action_ref": "noop", "parameters": {"number": n}}).encode() for n in range(10)]
    # Only the database can refuse it: the batch is split around it.
    raw[4] = b'{"action_ref": "noop", "parameters": {"number": 1e400}}'
    replies = await ask(env.amqp_url, lambda to: [request(body, reply_to=to) for body in raw])
    (dead,) = await env.history.dead_letters(1)
    assert [kind for kind, _ in replies].count("execution.accepted") == 9
    assert replies[4][0] == "execution.rejected"
    assert dead["body"] == raw[4]
    await env.ended(*(body["execution_id"] for kind, body in replies if kind == "execution.accepted"))
