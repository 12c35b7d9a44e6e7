"""The rights of a client's account, and that using all of them delays no other client."""

import json
from collections.abc import Callable
from uuid import uuid4

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractQueue
from aiormq.exceptions import ChannelLockedResource
from pamqp.common import FieldTable

from tests.integration.security.fortress import Fortress
from tests.integration.security.test_fortress import read, submit, until_status
from tests.integration.security.test_stolen_accounts import (
    Act,
    accepted_acts,
    channel_of,
    declares,
    deletes,
    publishes,
    purges,
    reads,
)
from turnstile.common.broker import topology

pytestmark = pytest.mark.asyncio(loop_scope="package")


def own_name(kind: str = "ends") -> str:
    """A name that a client's account may give to a queue or an exchange."""
    return f"client.{uuid4()}.{kind}"


async def refusing_queue(channel: AbstractChannel, binding_key: str) -> AbstractQueue:
    """Bind a queue that accepts one message and rejects the next; it ends with its connection."""
    refuses: FieldTable = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = await channel.declare_queue(own_name(), exclusive=True, arguments=refuses)
    await queue.bind(topology.EXECUTIONS, binding_key)
    return queue


async def test_a_client_may_receive_completions_and_status_events_in_a_queue_that_rejects(
    fortress: Fortress,
) -> None:
    async with channel_of(fortress, "client") as channel:
        for binding_key in (
            "execution.completed", "execution.completed.guarded.echo.*", "execution.status_changed",
        ):  # fmt: skip
            queue = await refusing_queue(channel, binding_key)
            await queue.unbind(topology.EXECUTIONS, binding_key)
            assert queue.declaration_result.message_count == 0


def binds_a_queue(binding_key: str) -> Act:
    return lambda channel: refusing_queue(channel, binding_key)


def binds_an_exchange(binding_key: str) -> Act:
    async def act(channel: AbstractChannel) -> None:
        exchange = await channel.declare_exchange(own_name(), "fanout", auto_delete=True)
        await exchange.bind(topology.EXECUTIONS, binding_key)

    return act


PRIVATE_KEYS = (
    *("#", "*.*", "execution.*", "execution.#", "execution.requested", "execution.cancel_requested"),
    *("execution.scheduled.default", "execution.scheduled.#", "executor.requests", ""),
)
OTHER_ADDRESSES = (
    ("executions", "executor.completions"),
    ("executions", "execution.status_changed"),
    ("executions", "execution.completed"),
    ("executions.dlx", "execution.requested"),
    ("executor", "executor.completions"),
    ("executor", "executor.heartbeats"),
    ("executor.questions", ""),
    ("", "executor.requests"),
    ("", "executor.completions"),
    ("", "worker.6f1f3a52-0000-4000-8000-000000000000.1"),
)


@pytest.mark.parametrize("binds", [binds_a_queue, binds_an_exchange])
async def test_a_client_receives_no_requests_no_offers_and_nothing_by_a_wildcard(
    fortress: Fortress, binds: Callable[[str], Act]
) -> None:
    assert await accepted_acts(fortress, "client", [(key, binds(key)) for key in PRIVATE_KEYS]) == []


async def test_a_client_reads_creates_and_deletes_no_queue_of_the_system(fortress: Fortress) -> None:
    acts = [
        (f"{act.__name__} {queue}", act(queue))
        for queue in ("executor.requests", "executor.completions", "executions.dead_letters")
        for act in (reads, purges, declares, deletes)
    ]
    assert await accepted_acts(fortress, "client", acts) == []


async def test_a_client_publishes_nothing_but_requests_and_cancels_under_their_keys(
    fortress: Fortress,
) -> None:
    acts = [(f"{exchange} {key}", publishes(exchange, key)) for exchange, key in OTHER_ADDRESSES]
    assert await accepted_acts(fortress, "client", acts) == []


async def test_a_client_neither_reads_nor_deletes_the_queues_of_another_one(fortress: Fortress) -> None:
    """The names cannot be guessed, and a queue belongs to its connection."""
    async with channel_of(fortress, "client") as owner:
        queue = await owner.declare_queue(own_name("answers"), exclusive=True)
        acts = [(act.__name__, act(queue.name)) for act in (reads, purges, deletes)]
        assert await accepted_acts(fortress, "client", acts, ChannelLockedResource) == []


async def test_a_forged_completion_changes_no_execution_and_frees_no_slot(fortress: Fortress) -> None:
    """An exchange of its own bypasses the routing keys that the client may publish with; listeners hear it.

    The leader does not: nothing of workers comes over this exchange.
    """
    async with fortress.http() as http:
        held, behind = await submit(http, "guarded.hold"), await submit(http, "guarded.hold")
        try:
            await until_status(http, held, "running")
            async with channel_of(fortress, "client") as channel:
                exchange = await channel.declare_exchange(own_name(), "fanout", auto_delete=True)
                await (await channel.get_exchange(topology.EXECUTIONS, ensure=False)).bind(exchange)
                for execution_id in (held, behind):
                    body = {"execution_id": execution_id, "status": "completed", "result": "made up"}
                    message = aio_pika.Message(json.dumps(body).encode(), type="execution.completed")
                    await exchange.publish(message, "execution.completed", mandatory=False)
            # The second of these starts when the end of the first was processed after the forged messages.
            for child in [await submit(http, "guarded.child", number=number) for number in range(2)]:
                await until_status(http, child, "completed")
            assert (await read(http, held))["status"] == "running"
            assert (await read(http, behind))["status"] == "queued"
        finally:
            for execution_id in (behind, held):
                await http.post(f"/executions/{execution_id}/cancel", json={})
        await until_status(http, held, "cancelled")


async def test_a_client_may_cancel_executions_of_other_clients(fortress: Fortress) -> None:
    """A client that may submit may cancel any execution."""
    async with fortress.http() as http:
        held = await submit(http, "guarded.hold")
        await until_status(http, held, "running")
        async with channel_of(fortress, "client") as channel:
            cancel = aio_pika.Message(
                json.dumps({"execution_id": held}).encode(), type="execution.cancel_requested"
            )
            executions = await channel.get_exchange(topology.EXECUTIONS, ensure=False)
            await executions.publish(cancel, "execution.cancel_requested")
        await until_status(http, held, "cancelled")
