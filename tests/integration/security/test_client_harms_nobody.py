"""Whatever the least-privileged account of the broker may do, the executions of others go on (P9)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import uuid4

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from tests.integration.security.fortress import TOKENS, Fortress
from tests.integration.security.test_client_account import own_name, refusing_queue
from tests.integration.security.test_stolen_accounts import channel_of
from turnstile.client import AsyncClient
from turnstile.common.broker import topology

pytestmark = pytest.mark.asyncio(loop_scope="package")

OTHERS = 10
OTHERS_SECONDS = 20.0
"""A stuck system takes for ever; a loaded machine does not take so long."""
HEADERS_BYTES = 130_900

Neighbour = Callable[[AbstractChannel], AbstractAsyncContextManager[None]]


def listens(binding_key: str) -> Neighbour:
    @asynccontextmanager
    async def neighbour(channel: AbstractChannel) -> AsyncIterator[None]:
        await refusing_queue(channel, binding_key)
        yield

    return neighbour


def asks(
    *addresses: str | None, body: Any = None, kind: str = "execution.requested", **properties: Any
) -> Neighbour:
    """Ask with each address for the answer; None is a queue that takes one and refuses the next."""

    @asynccontextmanager
    async def neighbour(channel: AbstractChannel) -> AsyncIterator[None]:
        full = await channel.declare_queue(
            own_name("answers"), exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        executions = await channel.get_exchange(topology.EXECUTIONS, ensure=False)
        asked = {"action_ref": "guarded.echo", "parameters": {"number": 1}} if body is None else body
        for address in addresses:
            for _ in range(3):
                message = aio_pika.Message(
                    asked if isinstance(asked, bytes) else json.dumps(asked).encode(),
                    type=kind,
                    message_id=str(uuid4()),
                    reply_to=full.name if address is None else address,
                    **properties,
                )
                await executions.publish(message, kind)
        yield

    return neighbour


NEIGHBOURS = {
    "listens-to-ends": listens("execution.completed"),
    "listens-to-moves": listens("execution.status_changed"),
    "full-reply-queue": asks(None),
    "missing-reply-queue": asks("client.no-such-queue"),
    "direct-reply-to": asks("amq.rabbitmq.reply-to.x.y", "amq.rabbitmq.reply-to."),
    "our-own-queues": asks("executor.requests", "executor.completions", "worker.default", "executor.retry"),
    "malformed-address": asks("x" * 255, "\r\n", "\u202e"),
    "unknown-cancels": asks(
        *["client.no-such-queue"] * 300, body={"execution_id": 10**15}, kind="execution.cancel_requested"
    ),
    "not-json": asks("client.no-such-queue", body=b"\xff"),
    "headers-of-a-frame": asks(
        "client.no-such-queue", body=b"not json", headers={"x-note": "h" * HEADERS_BYTES}
    ),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
async def test_beside_what_a_client_may_do_others_go_on(fortress: Fortress, name: str) -> None:
    async with (
        AsyncClient(
            amqp_url=fortress.environments["client"]["TURNSTILE_AMQP_URL"],
            http_url=fortress.api_url,
            token=TOKENS["ci"][1],
            ca_file=str(fortress.ca_file),
        ) as client,
        channel_of(fortress, "client") as channel,
        NEIGHBOURS[name](channel),
    ):
        async with asyncio.timeout(OTHERS_SECONDS):
            for number in range(OTHERS):
                assert await client.run("guarded.echo", {"number": number}) == number
