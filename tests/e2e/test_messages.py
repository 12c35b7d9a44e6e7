"""The wire with real processes: plain AMQP is enough, bad input is answered and kept, copies are harmless."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aio_pika
import httpx

from tests.support.history import history_of
from tests.support.ledger import ledger_kept, read_ledger
from tests.support.processes import running
from tests.support.tap import tapped
from tests.support.traffic import ask, publishing, request, submit
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.common.messages import COMPLETED


async def test_one_line_of_json_over_bare_amqp_runs_an_action(database_url: str, amqp_url: str) -> None:
    async with running(database_url, amqp_url), history_of(database_url) as history:
        connection = await aio_pika.connect(amqp_url)
        async with connection:
            channel = await connection.channel()
            ended = await channel.declare_queue(exclusive=True)
            await ended.bind(EXECUTIONS, COMPLETED)
            exchange = await channel.get_exchange(EXECUTIONS, ensure=False)
            body = b'{"action_ref": "noop", "parameters": {"number": 7}}'
            await exchange.publish(aio_pika.Message(body), routing_key="execution.requested")
            async with asyncio.timeout(20), ended.iterator() as messages:
                message = await anext(messages)
                await message.ack()
        await history.ended(1)
    told = json.loads(message.body)
    assert told["status"] == "completed"
    assert told["result"] == 7
    assert told["error"] is None
    assert set(told) == {
        "execution_id", "action_id", "action_ref", "status", "result", "error", "attempt", "completed_at",
    }  # fmt: skip
    assert message.type == COMPLETED
    assert message.app_id == "worker"
    assert message.correlation_id == str(told["execution_id"])
    assert message.content_type == "application/json"
    assert message.headers["schema_version"] == 1
    assert message.message_id
    assert message.timestamp


async def test_the_trace_context_travels_from_the_request_to_the_completion(
    database_url: str, amqp_url: str
) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with running(database_url, amqp_url), history_of(database_url) as history:
        connection = await aio_pika.connect(amqp_url)
        async with connection, publishing(amqp_url) as publisher:
            channel = await connection.channel()
            ended = await channel.declare_queue(exclusive=True)
            await ended.bind(EXECUTIONS, COMPLETED)
            await publisher.publish([request({"action_ref": "noop"}, headers={"traceparent": traceparent})])
            async with asyncio.timeout(20), ended.iterator() as messages:
                message = await anext(messages)
        await history.ended(1)
    assert message.headers["traceparent"] == traceparent


async def test_an_accepted_request_is_answered_with_id_status_and_position(
    database_url: str, amqp_url: str
) -> None:
    async with running(database_url, amqp_url) as system, history_of(database_url) as history:
        replies = await ask(
            amqp_url, lambda to: [request({"action_ref": "hold"}, reply_to=to) for _ in range(3)]
        )
        async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http:
            for _, body in replies:
                await http.post(f"/executions/{body['execution_id']}/cancel")
        await history.ended(3)
    assert [kind for kind, _ in replies] == ["execution.accepted"] * 3
    assert [body["position"] for _, body in replies] == [None, 1, 2]
    assert [body["status"] for _, body in replies] == ["scheduled", "queued", "queued"]
    assert not any(body["duplicate"] for _, body in replies)


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
    ("an unknown action", b'{"action_ref": "nobody"}', {}, "unknown_action", "nobody"),
    ("an unknown version", b'{"action_ref": "noop"}', {"headers": {"schema_version": 9}},
     "unsupported_schema_version", "schema_version"),
    ("a wrong duration", b'{"action_ref": "noop", "timeout": "soon"}', {}, "invalid_message", "timeout"),
    ("a far date", b'{"action_ref": "noop", "run_at": "tomorrow"}', {}, "invalid_message", "run_at"),
    ("parameters that are a list", b'{"action_ref": "noop", "parameters": []}', {},
     "invalid_parameters", "parameters"),
]  # fmt: skip


async def test_bad_requests_are_answered_and_kept_and_a_thousand_good_ones_around_them_run(
    database_url: str, amqp_url: str
) -> None:
    good = [request({"action_ref": "noop", "parameters": {"number": n}}) for n in range(1000)]

    def mixed(reply_to: str) -> list[Any]:
        return [request(body, reply_to=reply_to, **properties) for _, body, properties, _, _ in BAD]

    async with running(database_url, amqp_url), history_of(database_url) as history:
        async with publishing(amqp_url) as publisher:
            await publisher.publish(good[:500])
            replies = await ask(amqp_url, mixed)
            await publisher.publish(good[500:])
        await history.ended(1000)
        dead = await history.dead_letters(len(BAD))
        results = await history.rows("SELECT result::text::int AS number FROM execution ORDER BY id")
    reasons = {(letter["body"][:1000], letter["code"]): letter["error"] for letter in dead}
    for (name, body, _, code, word), (kind, reply) in zip(BAD, replies, strict=True):
        assert kind == "execution.rejected", name
        assert reply["code"] == code, (name, reply)
        assert word in reply["message"], (name, reply)
        assert word in reasons[body[:1000], code], name
    assert [row["number"] for row in results] == list(range(1000))


async def test_one_bad_item_in_a_batch_of_ten_leaves_the_nine_alone(database_url: str, amqp_url: str) -> None:
    raw = [json.dumps({"action_ref": "noop", "parameters": {"number": n}}).encode() for n in range(10)]
    # It passes every check of ours and only the database can refuse it: the batch is split around it.
    raw[4] = b'{"action_ref": "noop", "parameters": {"number": 1e400}}'
    async with running(database_url, amqp_url), history_of(database_url) as history:
        replies = await ask(amqp_url, lambda to: [request(body, reply_to=to) for body in raw])
        await history.ended(9)
        (dead,) = await history.dead_letters(1)
    assert [kind for kind, _ in replies].count("execution.accepted") == 9
    assert replies[4][0] == "execution.rejected"
    assert dead["body"] == raw[4]


async def test_fifty_submitters_with_one_idempotency_key_get_one_execution(
    database_url: str, amqp_url: str
) -> None:
    body = {"action_ref": "noop", "parameters": {"number": 1}, "idempotency_key": "one"}
    other = {**body, "parameters": {"number": 2}}
    async with running(database_url, amqp_url, executors=2) as system, history_of(database_url) as history:
        async with httpx.AsyncClient() as http:
            over_http = [
                http.post(f"{executor.http_url}/api/v1/executions", json=body)
                for executor in system.executors
                for _ in range(10)
            ]
            over_amqp = [ask(amqp_url, lambda to: [request(body, reply_to=to)]) for _ in range(30)]
            responses, replies = await asyncio.gather(asyncio.gather(*over_http), asyncio.gather(*over_amqp))
            conflict = await http.post(f"{system.http_url}/api/v1/executions", json=other)
        ((kind, refused),) = await ask(amqp_url, lambda to: [request(other, reply_to=to)])
        await history.ended(1)
        count = await history.value("SELECT count(*) FROM execution")
    ids = {response.json()["id"] for response in responses} | {r[0][1]["execution_id"] for r in replies}
    assert len(ids) == 1
    assert count == 1
    assert conflict.status_code == 409
    assert conflict.json()["code"] == "idempotency_conflict"
    assert (kind, refused["code"]) == ("execution.rejected", "idempotency_conflict")


async def test_a_message_delivered_twice_is_one_execution(database_url: str, amqp_url: str) -> None:
    message = request({"action_ref": "noop"})
    async with running(database_url, amqp_url), history_of(database_url) as history:
        async with publishing(amqp_url) as publisher:
            await publisher.publish([message, message])
            await publisher.publish([message, request({"action_ref": "noop"})])
        await history.ended(2)
        assert await history.value("SELECT count(*) FROM execution") == 2


async def test_completions_that_come_often_and_out_of_order_free_each_slot_once(
    database_url: str, amqp_url: str
) -> None:
    async with (
        running(database_url, amqp_url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
        tapped(amqp_url, COMPLETED) as tap,
        ledger_kept(database_url),
        publishing(amqp_url) as publisher,
    ):
        await http.patch("/actions/hold", json={"max_concurrent": 2})
        answer = await http.post("/executions", json=[{"action_ref": "hold"}] * 7 + [{"action_ref": "noop"}])
        *held, _ = [item["id"] for item in answer.json()["items"]]
        for execution_id in held[:3]:
            await http.post(f"/executions/{execution_id}/cancel")
        await history.ended(4)
        told = [message.body for message in tap.heard]
        # Another action's end, told in the name of one that runs.
        strangers = [{**body, "execution_id": held[3]} for body in told if body["action_ref"] == "noop"]
        copies = [json.dumps(body).encode() for body in [*told, *strangers] * 10]
        random.Random(14).shuffle(copies)
        # The last one speaks of nothing and is given up at once: by then the others have been judged.
        last = json.dumps({**told[0], "execution_id": 2**60}).encode()
        messages = [request(copy) for copy in copies] + [request(last, headers={"x-tries": 30})]
        await publisher.publish([replace(m, type=COMPLETED, routing_key=COMPLETED) for m in messages])
        await history.dead_letters(1)
        stats = (await http.get("/actions/hold/queue-stats")).json()
        assert (stats["active_count"], stats["queue_length"]) == (2, 2)
        for execution_id in held[3:]:
            await http.post(f"/executions/{execution_id}/cancel")
        await history.ended(8)
        ledger = await read_ledger(history)
    for execution_id in held:
        assert ledger.slots_of(execution_id) in ([1, -1], []), execution_id


async def test_every_status_change_is_announced_to_whoever_binds(database_url: str, amqp_url: str) -> None:
    async with running(database_url, amqp_url), history_of(database_url) as history:
        connection = await aio_pika.connect(amqp_url)
        async with connection:
            channel = await connection.channel()
            changes = await channel.declare_queue(exclusive=True)
            await changes.bind(EXECUTIONS, "execution.status_changed")
            await submit(amqp_url, [{"action_ref": "noop"}])
            seen = []
            async with asyncio.timeout(20), changes.iterator() as messages:
                async for message in messages:
                    seen.append(json.loads(message.body))
                    if len(seen) == 4:
                        break
        await history.ended(1)
    moves = {(change["previous_status"], change["status"]) for change in seen}
    assert moves == {
        (None, "queued"),
        ("queued", "scheduled"),
        ("scheduled", "running"),
        ("running", "completed"),
    }
