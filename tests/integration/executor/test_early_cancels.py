"""Cancels of unknown executions are stored in bounded number, applied later, or given up."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.integration.executor.page_counts import cost_of
from tests.support.brokers import running
from tests.support.protocol import Protocol
from tests.support.traffic import cancel_request, drain_queue, publishing
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import DEAD_LETTERS, EXECUTOR_REQUESTS, declare_executor
from turnstile.executor import cancellation
from turnstile.executor.cancellation import Canceller, EarlyCancels
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.request_listener import RequestListener
from turnstile.executor.slot_grants import QueueManager

UNKNOWN = 2**60


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)


def parts_over(protocol: Protocol, publisher: Publisher) -> tuple[RequestListener, EarlyCancels]:
    queue_manager = QueueManager(protocol.database)
    dispatcher = Dispatcher(publisher, queue_manager, "quorum", publisher)
    canceller = Canceller(queue_manager)
    early = EarlyCancels(protocol.database, canceller, dispatcher)
    return RequestListener(queue_manager, canceller, early, dispatcher, parameters_bytes_max=1024), early


async def take_in(protocol: Protocol, amqp_url: str, *messages: Outgoing) -> list[Outgoing]:
    """Publish these, process them, and return the resulting messages."""
    consumer = ConsumerConnection(amqp_url, name="test")
    requests = consumer.subscribe(EXECUTOR_REQUESTS, prefetch=100, declare=declare_executor)
    async with publishing(amqp_url) as publisher, running(consumer):
        await publisher.publish(messages)
        listener, _ = parts_over(protocol, publisher)
        published: list[Outgoing] = []
        left = len(messages)
        while left:
            deliveries = await requests.next_batch(left)
            left -= len(deliveries)
            decided = await listener.process(deliveries)
            published += [*decided.messages, *(letter.message for letter in decided.replies)]
            requests.ack(deliveries)
    return published


async def give_up_one(protocol: Protocol, amqp_url: str) -> None:
    replies = Publisher(amqp_url, name="replies", declare=declare_executor)
    async with publishing(amqp_url) as publisher:
        dispatcher = Dispatcher(publisher, QueueManager(protocol.database), "quorum", replies)
        early = EarlyCancels(protocol.database, Canceller(QueueManager(protocol.database)), dispatcher)
        carrying = asyncio.create_task(dispatcher.best_effort.run(), name="best effort")
        assert await early.cancel_early() == 1
        carrying.cancel()
        await asyncio.wait({carrying})


async def store(protocol: Protocol, *cancels: tuple[int | None, str | None], **given: Any) -> int:
    count = await protocol.connection.fetchval(
        "SELECT turnstile.store_early_cancels($1, $2, $3, $4, $5, $6, $7)",
        [execution_id for execution_id, _ in cancels],
        [key for _, key in cancels],
        ["enough"] * len(cancels),
        given.get("message_keys", [None] * len(cancels)),
        [b"[]"] * len(cancels),
        [given.get("keep_seconds", 30.0)] * len(cancels),
        given.get("rows_max", 100),
    )
    return int(count)


async def stored(protocol: Protocol) -> list[int | str]:
    return await protocol.column(
        "SELECT coalesce(execution_id::text, idempotency_key) FROM early_cancel ORDER BY id"
    )


async def test_a_bounded_number_of_cancels_is_stored(protocol: Protocol) -> None:
    assert await store(protocol, (1, None), (None, "k"), rows_max=3) == 2
    assert await store(protocol, (3, None), (4, None), rows_max=3) == 1
    assert await store(protocol, (5, None), rows_max=3) == 0
    assert await stored(protocol) == ["1", "k", "3"]


async def test_a_message_delivered_twice_is_one_row(protocol: Protocol) -> None:
    one, other = UUID(int=1), UUID(int=2)
    assert await store(protocol, (7, None), (7, None), (8, None), message_keys=[one, one, other]) == 3
    assert await store(protocol, (7, None), message_keys=[one]) == 1
    assert await stored(protocol) == ["7", "8"]


async def test_a_cancel_above_the_bound_is_answered_and_dead_lettered_at_once(
    protocol: Protocol, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "EARLY_CANCELS_MAX", 2)
    cancels = [
        cancel_request(
            {"execution_id": UNKNOWN + n},
            message_id=f"cancel-{n}",
            correlation_id=f"cancel-{n}",
            reply_to="replies",
        )
        for n in range(4)
    ]
    published = await take_in(protocol, amqp_url, *cancels)
    assert [(m.exchange, m.routing_key, m.correlation_id) for m in published if m.exchange == ""] == [
        ("", "replies", f"cancel-{n}") for n in (2, 3)
    ]
    letters = [m for m in published if m.exchange]
    assert [(m.message_id, m.exchange) for m in letters] == [
        (f"cancel-{n}", "executions.dlx") for n in (2, 3)
    ]
    assert {(m.headers or {})["x-error-code"] for m in letters} == {"unknown_execution"}
    assert await stored(protocol) == [str(UNKNOWN), str(UNKNOWN + 1)]


async def test_unusual_properties_are_stored_unchanged(protocol: Protocol, amqp_url: str) -> None:
    odd = cancel_request(
        {"execution_id": UNKNOWN, "reason": "é"},
        message_id="nul \0 and é",
        headers={"nul": "\0", "yes": True, "number": 2**40},
    )
    assert await take_in(protocol, amqp_url, odd) == []
    await protocol.connection.execute("UPDATE early_cancel SET kept_until = now()")
    await give_up_one(protocol, amqp_url)
    (letter,) = await drain_queue(amqp_url, DEAD_LETTERS, 1)
    assert (letter.message_id, letter.body, letter.timestamp) == (odd.message_id, odd.body, odd.timestamp)
    assert [letter.headers[name] for name in ("nul", "yes", "number")] == ["\0", True, 2**40]


async def test_without_a_broker_known_executions_are_cancelled_and_overdue_cancels_are_kept(
    protocol: Protocol, amqp_url: str
) -> None:
    nothing = cancel_request({"execution_id": UNKNOWN})
    await take_in(protocol, amqp_url, nothing)
    await protocol.connection.execute("UPDATE early_cancel SET kept_until = now()")
    running_id, waiting_id = await protocol.submit("a", 2)
    await protocol.claim(running_id)
    await store(protocol, (waiting_id, None), (running_id, None))
    # One that was never connected: publishing waits while there is no broker.
    unconnected = Publisher("amqp://127.0.0.1:1/", name="test", timeouts=BrokerTimeouts(wait_seconds=60))
    _, early = parts_over(protocol, unconnected)
    assert await early.cancel_early() == 2
    assert await stored(protocol) == [str(UNKNOWN)]
    statuses = await protocol.column("SELECT status::text FROM turnstile.current_execution ORDER BY id")
    assert statuses == ["running", "cancelled"]
    assert await protocol.column("SELECT overdue_at <= now() FROM slot") == [True]
    # Leased for a while: no other executor dead-letters it a second time.
    assert await early.cancel_early() == 0
    await protocol.connection.execute("UPDATE early_cancel SET kept_until = now()")
    await give_up_one(protocol, amqp_url)
    (letter,) = await drain_queue(amqp_url, DEAD_LETTERS, 1)
    assert letter.message_id == nothing.message_id
    assert await stored(protocol) == []


async def test_a_cancel_whose_execution_arrives_at_the_last_moment_is_not_given_up(
    protocol: Protocol,
) -> None:
    (by_id, by_key) = await protocol.submit("a", 2)
    await protocol.connection.execute("UPDATE execution SET idempotency_key = 'k' WHERE id = $1", by_key)
    await store(protocol, (by_id, None), (None, "k"), (UNKNOWN, None), keep_seconds=0.0)
    overdue = "SELECT id FROM turnstile.overdue_early_cancels(30, 100)"
    unknown_row = await protocol.connection.fetchval(
        "SELECT id FROM early_cancel WHERE execution_id = $1", UNKNOWN
    )
    assert await protocol.column(overdue) == [unknown_row]
    assert await protocol.column(overdue) == []
    known = await protocol.connection.fetch("SELECT * FROM turnstile.known_early_cancels(100)")
    assert [(row["execution_id"], row["reason"]) for row in known] == [(by_id, "enough"), (by_key, "enough")]


async def test_a_sweep_over_early_cancels_uses_indexes(protocol: Protocol) -> None:
    await protocol.submit("a", 500)
    await store(protocol, *((UNKNOWN + n, None) for n in range(50)), *((None, f"k{n}") for n in range(50)))
    for statement in (
        "SELECT * FROM turnstile.known_early_cancels(1000)",
        "SELECT * FROM turnstile.overdue_early_cancels(30, 1000)",
    ):
        async with protocol.transaction():
            cost = await cost_of(protocol, protocol.connection.fetch(statement))
        assert cost.full_scans == {}
        assert "execution" not in cost.by_relation
