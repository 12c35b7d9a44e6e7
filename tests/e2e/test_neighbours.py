"""P9: queues and addresses of one client stop no other client, and are named.

Whole services: what must go on is the work of other clients of the same broker.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from pamqp.common import FieldTable

from tests.support.broker_administration import delete_policy, set_policy
from tests.support.environment import Environment, until_logged
from tests.support.traffic import publishing, request, until
from turnstile.client import AsyncClient
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.localservers import BrokerServer

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXECUTIONS_EACH = 40
PROMPT_SECONDS = 60.0
"""Without the neighbour it takes less than one."""
REFUSING: FieldTable = {"x-max-length": 5, "x-overflow": "reject-publish"}


@asynccontextmanager
async def neighbour(amqp_url: str) -> AsyncIterator[AbstractChannel]:
    """Lend a channel of the plain library."""
    async with await aio_pika.connect(amqp_url) as connection:
        yield await connection.channel()


def noops(count: int = EXECUTIONS_EACH, **properties: Any) -> list[Outgoing]:
    return [request({"action_ref": "noop", "parameters": {"number": n}}, **properties) for n in range(count)]


async def run_all(env: Environment, messages: Sequence[Outgoing], count: int | None = None) -> None:
    """Publish requests and wait until as many more executions have ended and hold nothing."""
    wanted = len(messages) if count is None else count
    ended = "SELECT count(*) FROM ledger.execution e WHERE completed_at IS NOT NULL"
    before = int(await env.history.value(ended))
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish(list(messages))

    async def have() -> bool:
        return int(await env.history.value(ended)) >= before + wanted

    await until(have, f"{wanted} executions end", deadline_seconds=PROMPT_SECONDS)


async def test_a_reply_queue_that_refuses_delays_no_execution_and_is_named(env: Environment) -> None:
    async with neighbour(env.amqp_url) as channel:
        await channel.declare_queue("neighbour.replies", durable=True, arguments=REFUSING)
        await run_all(env, noops(reply_to="neighbour.replies"))
        await run_all(env, noops())
        await until_logged(env.executor, "neighbour.replies")
        metrics = (await env.http.get(f"{env.system.http_url}/metrics")).text
        assert 'turnstile_undelivered_total{kind="reply"}' in metrics


async def test_dead_letters_that_are_refused_delay_no_execution_and_are_logged(
    env: Environment, rabbitmq: BrokerServer
) -> None:
    async with neighbour(env.amqp_url) as channel:
        executions = await channel.get_exchange("executions.dlx")
        full = await channel.declare_queue("neighbour.letters", durable=True, arguments=REFUSING)
        await full.bind(executions, "#")
        vhost = urlsplit(env.amqp_url).path.removeprefix("/")
        bound: dict[str, str | int] = {"max-length": 4, "overflow": "reject-publish"}
        set_policy(rabbitmq, vhost, "full", r"^executions\.dead_letters$", bound)
        bad = [
            replace(message, body=f'{{"nope": "letter {n}"}}'.encode()) for n, message in enumerate(noops(12))
        ]
        await run_all(env, [*bad, *noops()], EXECUTIONS_EACH)
        await run_all(env, noops())
        await until_logged(env.executor, "dead_letter_undelivered")
        await until_logged(env.executor, "letter 11")
        delete_policy(rabbitmq, vhost, "full")
        await channel.queue_delete("neighbour.letters")


async def test_a_client_submits_though_a_listener_refuses_requests(env: Environment) -> None:
    async with neighbour(env.amqp_url) as channel:
        before = int(await env.history.value("SELECT count(*) FROM ledger.execution"))
        full = await channel.declare_queue("neighbour.full", durable=True, arguments=REFUSING)
        await full.bind(EXECUTIONS, "#")
        async with AsyncClient(amqp_url=env.amqp_url, http_url=env.system.http_url) as client:
            async with asyncio.timeout(PROMPT_SECONDS):
                results = [await client.run("noop", {"number": n}) for n in range(20)]
        assert results == list(range(20))
        assert int(await env.history.value("SELECT count(*) FROM ledger.execution")) == before + 20
        await channel.queue_delete("neighbour.full")


async def test_a_direct_reply_to_is_answered(env: Environment) -> None:
    async with neighbour(env.amqp_url) as channel:
        answers: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        direct = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await direct.consume(answers.put, no_ack=True)
        executions = await channel.get_exchange(EXECUTIONS)
        message = aio_pika.Message(b'{"action_ref": "noop"}', reply_to="amq.rabbitmq.reply-to")
        await executions.publish(message, routing_key="execution.requested")
        async with asyncio.timeout(PROMPT_SECONDS):
            answer = await answers.get()
        assert answer.type == "execution.accepted"
