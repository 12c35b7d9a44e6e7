"""Invalid messages of any client are rejected and stored, and the valid ones around them run.

Whole services: a message passes the broker, the leader and the dead letters.
"""

from typing import Any

import pytest

from tests.support.environment import Environment
from tests.support.traffic import ask, publishing, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

BAD: list[tuple[str, bytes, str, str]] = [
    ("not JSON", b"{nope", "invalid_message", "JSON"),
    ("an unknown field", b'{"action_ref": "noop", "prio": 1}', "unknown_field", "prio"),
    ("depth 10,000", b'{"action_ref": "noop", "parameters": {"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}",
     "invalid_message", "JSON"),
    ("10 MB", b'{"action_ref": "noop", "parameters": {"a": "' + b"x" * 10_000_000 + b'"}}',
     "too_large", "bytes"),
    ("an unknown action", b'{"action_ref": "missing"}', "unknown_action", "missing"),
]  # fmt: skip
"""One for each part that refuses; all other bodies are in `tests/unit/leader/test_door.py`."""


async def test_invalid_requests_are_answered_or_stored_and_the_valid_ones_around_them_run(
    env: Environment,
) -> None:
    good = [request({"action_ref": "noop", "parameters": {"number": n}}) for n in range(200)]

    def mixed(reply_to: str) -> list[Any]:
        return [request(body, reply_to=reply_to) for _, body, _, _ in BAD]

    before = await env.history.value("SELECT coalesce(max(id), 0) FROM ledger.execution")
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish(good[:100])
        replies = await ask(env.amqp_url, mixed)
        # Without an address for an answer.
        await publisher.publish([request(body) for _, body, _, _ in BAD])
        await publisher.publish(good[100:])
    dead = await env.history.dead_letters(len(BAD))
    finished = "SELECT count(*) = 200 FROM ledger.execution WHERE id > $1 AND completed_at IS NOT NULL"
    await env.history.until(finished, before)
    results = "SELECT result::text::int AS number FROM ledger.execution WHERE id > $1 ORDER BY id"
    assert [row["number"] for row in await env.history.rows(results, before)] == list(range(200))
    reasons = {(letter["body"][:1000], letter["code"]): letter["error"] for letter in dead}
    for (name, body, code, word), (kind, reply) in zip(BAD, replies, strict=True):
        assert kind == "execution.rejected", name
        assert reply["code"] == code, (name, reply)
        assert word in reply["message"], (name, reply)
        assert word in reasons[body[:1000], code], name
