"""What strangers do with queues, addresses and messages of their own stops nobody else (P9)."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from pamqp.common import FieldTable

from tests.support.stage import Stage, staged
from tests.support.traffic import publishing, request, until
from turnstile.client import AsyncClient
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.common.messages import COMPLETED
from turnstile.localservers import BrokerServer

EXECUTIONS_EACH = 100
PROMPT_SECONDS = 60.0
"""Generous: without the neighbour it takes less than one."""
REFUSING: FieldTable = {"x-max-length": 5, "x-overflow": "reject-publish"}
POISON = (
    "amq.rabbitmq.reply-to.x.y",
    "amq.rabbitmq.reply-to.",
    "amq.rabbitmq.reply-to.g1h3AA5yYWJiaXRAbm93aGVyZQAAAAAAAAAAAAAAAA==.key",
    "amq.gen-nothing",
    "executor.completions",
    "worker.default",
)


@asynccontextmanager
async def stranger(amqp_url: str) -> AsyncIterator[AbstractChannel]:
    """Lend a channel of the plain library."""
    async with await aio_pika.connect(amqp_url) as connection:
        yield await connection.channel()


def noops(count: int = EXECUTIONS_EACH, **properties: Any) -> list[Outgoing]:
    return [request({"action_ref": "noop", "parameters": {"number": n}}, **properties) for n in range(count)]


def poisoned() -> list[Outgoing]:
    return [message for address in POISON for message in noops(3, reply_to=address)]


async def run_all(stage: Stage, messages: Sequence[Outgoing], count: int | None = None) -> None:
    """Publish requests and wait until as many more executions have ended and hold nothing."""
    wanted = len(messages) if count is None else count
    ended = "SELECT count(*) FROM execution e WHERE completed_at IS NOT NULL" + _SETTLED
    before = int(await stage.history.value(ended))
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish(list(messages))

    async def have() -> bool:
        return int(await stage.history.value(ended)) >= before + wanted

    await until(have, f"{wanted} executions end", deadline_seconds=PROMPT_SECONDS)


_SETTLED = " AND NOT EXISTS (SELECT FROM slot s WHERE s.execution_id = e.id)"


@pytest.mark.parametrize("key", [COMPLETED, "#"])
async def test_a_listener_whose_queue_refuses_holds_up_nobody(
    database_url: str, amqp_url: str, key: str
) -> None:
    async with staged(database_url, amqp_url) as stage, stranger(amqp_url) as channel:
        executions = await channel.get_exchange(EXECUTIONS)
        full = await channel.declare_queue("stranger.full", durable=True, arguments=REFUSING)
        await full.bind(executions, key)
        await run_all(stage, noops())
        # A listener that can take them hears of every end.
        ids = await stage.history.rows("SELECT id FROM execution")
        for row in ids:
            await stage.told(row["id"])
        # The refusing queue took what it could.
        count = (await channel.declare_queue("stranger.full", passive=True)).declaration_result.message_count
        assert (count or 0) >= 5


async def test_a_reply_queue_that_refuses_holds_up_nobody_and_is_named(
    database_url: str, amqp_url: str
) -> None:
    async with staged(database_url, amqp_url) as stage, stranger(amqp_url) as channel:
        await channel.declare_queue("stranger.replies", durable=True, arguments=REFUSING)
        await run_all(stage, noops(reply_to="stranger.replies"))
        await run_all(stage, noops())
        log = stage.system.executors[0].log

        async def named() -> bool:
            return "stranger.replies" in log.read_text()

        await until(named, "the log names the queue")
        metrics = (await stage.http.get(f"{stage.system.http_url}/metrics")).text
        assert 'turnstile_undelivered_total{kind="reply"}' in metrics


async def test_replies_that_end_their_connection_cost_no_other_request(
    database_url: str, amqp_url: str
) -> None:
    async with staged(database_url, amqp_url) as stage, stranger(amqp_url) as channel:
        answers = await channel.declare_queue(exclusive=True)
        await run_all(stage, [*poisoned(), *noops(50, reply_to=answers.name), *poisoned(), *noops(50)])
        heard = 0
        async with asyncio.timeout(PROMPT_SECONDS), answers.iterator() as messages:
            async for message in messages:
                assert json.loads(message.body)["status"]
                await message.ack()
                heard += 1
                if heard == 50:
                    break


async def test_headers_as_large_as_a_frame_are_bounded_where_a_message_is_forwarded(
    database_url: str, amqp_url: str
) -> None:
    huge = {"x-large": "h" * 130_000, "note": "kept"}
    bad = [replace(message, body=b"{nope", headers=huge) for message in noops(5)]
    async with staged(database_url, amqp_url) as stage:
        await run_all(stage, [*bad, *noops()], EXECUTIONS_EACH)

        async def kept() -> bool:
            return int(await stage.history.value("SELECT count(*) FROM dead_letter")) == len(bad)

        await until(kept, "the dead letters are rows", deadline_seconds=PROMPT_SECONDS)
        for item in (await stage.http.get("/dead-letters")).json()["items"]:
            letter = (await stage.http.get(f"/dead-letters/{item['id']}")).json()
            assert letter["code"] == "invalid_message"
            assert letter["headers"]["note"] == "kept"
            assert len(letter["headers"]["x-large"]) < 10_000


async def test_dead_letters_that_are_refused_hold_up_nobody_and_are_in_the_log(
    database_url: str, amqp_url: str, rabbitmq: BrokerServer
) -> None:
    async with staged(database_url, amqp_url) as stage, stranger(amqp_url) as channel:
        executions = await channel.get_exchange("executions.dlx")
        full = await channel.declare_queue("stranger.letters", durable=True, arguments=REFUSING)
        await full.bind(executions, "#")
        rabbitmq.set_policy(
            urlsplit(amqp_url).path.removeprefix("/"),
            "full",
            r"^executions\.dead_letters$",
            {"max-length": 4, "overflow": "reject-publish"},
        )
        bad = [
            replace(message, body=f'{{"nope": "letter {n}"}}'.encode()) for n, message in enumerate(noops(12))
        ]
        await run_all(stage, [*bad, *noops()], EXECUTIONS_EACH)
        await run_all(stage, noops())
        log = stage.system.executors[0].log

        async def whole() -> bool:
            return "dead_letter_undelivered" in log.read_text() and "letter 11" in log.read_text()

        await until(whole, "the log has the last bad message whole")


async def test_a_pool_whose_queue_cannot_be_declared_holds_up_itself_alone_and_is_named(
    database_url: str, amqp_url: str
) -> None:
    async with staged(database_url, amqp_url) as stage, stranger(amqp_url) as channel:
        await channel.declare_queue("worker.gpu", durable=True, arguments={"x-queue-type": "classic"})
        await stage.put("train", runner="command", entrypoint=["true"], pool="gpu")
        gpu = await stage.submit("train")
        await run_all(stage, noops())
        assert await stage.status(gpu) in ("queued", "scheduled")
        ready = (await stage.http.get(f"{stage.system.http_url}/readyz")).json()
        assert "worker.gpu" in ready["degraded"]["pool gpu"]
        waiting_on = (await stage.get(gpu))["waiting_on"]
        assert "worker.gpu" in waiting_on["message"], waiting_on
        metrics = (await stage.http.get(f"{stage.system.http_url}/metrics")).text
        assert 'turnstile_pool_unusable{pool="gpu"} 1' in metrics
        log = stage.system.executors[0].log.read_text()
        assert "pool_unusable" in log
        await channel.queue_delete("worker.gpu")
        await stage.start_worker(TURNSTILE_WORKER_POOLS="gpu")
        await stage.ended(gpu)


async def test_a_client_submits_though_a_listener_refuses_requests(database_url: str, amqp_url: str) -> None:
    async with staged(database_url, amqp_url) as stage, stranger(amqp_url) as channel:
        full = await channel.declare_queue("stranger.full", durable=True, arguments=REFUSING)
        await full.bind(EXECUTIONS, "#")
        async with AsyncClient(amqp_url=amqp_url, http_url=stage.system.http_url) as client:
            async with asyncio.timeout(PROMPT_SECONDS):
                results = [await client.run("noop", {"number": n}) for n in range(20)]
        assert results == list(range(20))
        assert int(await stage.history.value("SELECT count(*) FROM execution")) == 20


async def test_a_direct_reply_to_is_answered(database_url: str, amqp_url: str) -> None:
    async with staged(database_url, amqp_url), stranger(amqp_url) as channel:
        answers: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        direct = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await direct.consume(answers.put, no_ack=True)
        executions = await channel.get_exchange(EXECUTIONS)
        message = aio_pika.Message(b'{"action_ref": "noop"}', reply_to="amq.rabbitmq.reply-to")
        await executions.publish(message, routing_key="execution.requested")
        async with asyncio.timeout(PROMPT_SECONDS):
            answer = await answers.get()
        assert answer.type == "execution.accepted"
