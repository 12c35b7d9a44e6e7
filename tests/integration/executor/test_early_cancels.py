"""Cancels of unknown executions: kept in bounded number, acted on whatever the broker does, and given up."""

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
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import DEAD_LETTERS, EXECUTOR_REQUESTS, declare_executor
from turnstile.executor import early_cancels
from turnstile.executor.cancelling import Canceller
from turnstile.executor.early_cancels import EarlyCancels
from turnstile.executor.hand_over import HandOver
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.request_listener import RequestListener

UNKNOWN = 2**60


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)


def parts_over(protocol: Protocol, publisher: Publisher) -> tuple[RequestListener, EarlyCancels]:
    queue_manager = QueueManager(protocol.database)
    hand_over = HandOver(publisher, queue_manager, "quorum", publisher)
    canceller = Canceller(queue_manager)
    early = EarlyCancels(protocol.database, canceller, hand_over)
    return RequestListener(queue_manager, canceller, early, hand_over, parameters_bytes_max=1024), early


async def take_in(protocol: Protocol, amqp_url: str, *messages: Outgoing) -> list[Outgoing]:
    """Publish these, have them decided, and return what would be told."""
    consumer = ConsumerConnection(amqp_url, name="test")
    requests = consumer.subscribe(EXECUTOR_REQUESTS, prefetch=100, declare=declare_executor)
    async with publishing(amqp_url) as publisher, running(consumer):
        await publisher.publish(messages)
        listener, _ = parts_over(protocol, publisher)
        told: list[Outgoing] = []
        left = len(messages)
        while left:
            deliveries = await requests.next_batch(left)
            left -= len(deliveries)
            decided = await listener.decide(deliveries)
            told += [*decided.messages, *(letter.message for letter in decided.letters)]
            requests.ack(deliveries)
    return told


async def give_up_one(protocol: Protocol, amqp_url: str) -> None:
    strangers = Publisher(amqp_url, name="strangers", declare=declare_executor)
    async with publishing(amqp_url) as publisher:
        hand_over = HandOver(publisher, QueueManager(protocol.database), "quorum", strangers)
        early = EarlyCancels(protocol.database, Canceller(QueueManager(protocol.database)), hand_over)
        carrying = asyncio.create_task(hand_over.courier.run(), name="courier")
        assert await early.cancel_early() == 1
        carrying.cancel()
        await asyncio.wait({carrying})


async def keep(protocol: Protocol, *cancels: tuple[int | None, str | None], **given: Any) -> int:
    count = await protocol.connection.fetchval(
        "SELECT turnstile.keep_early_cancels($1, $2, $3, $4, $5, $6, $7)",
        [execution_id for execution_id, _ in cancels],
        [key for _, key in cancels],
        ["enough"] * len(cancels),
        given.get("message_keys", [None] * len(cancels)),
        [b"[]"] * len(cancels),
        [given.get("keep_seconds", 30.0)] * len(cancels),
        given.get("rows_max", 100),
    )
    return int(count)


async def kept(protocol: Protocol) -> list[int | str]:
    return await protocol.column(
        "SELECT coalesce(execution_id::text, idempotency_key) FROM early_cancel ORDER BY id"
    )


async def test_so_many_are_kept_and_no_more(protocol: Protocol) -> None:
    assert await keep(protocol, (1, None), (None, "k"), rows_max=3) == 2
    assert await keep(protocol, (3, None), (4, None), rows_max=3) == 1
    assert await keep(protocol, (5, None), rows_max=3) == 0
    assert await kept(protocol) == ["1", "k", "3"]


async def test_a_message_delivered_twice_is_one_row(protocol: Protocol) -> None:
    one, other = UUID(int=1), UUID(int=2)
    assert await keep(protocol, (7, None), (7, None), (8, None), message_keys=[one, one, other]) == 3
    assert await keep(protocol, (7, None), message_keys=[one]) == 1
    assert await kept(protocol) == ["7", "8"]


async def test_what_comes_while_the_bound_is_reached_is_answered_and_a_dead_letter_at_once(
    protocol: Protocol, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_cancels, "KEPT_MAX", 2)
    cancels = [
        cancel_request(
            {"execution_id": UNKNOWN + n},
            message_id=f"cancel-{n}",
            correlation_id=f"cancel-{n}",
            reply_to="asker",
        )
        for n in range(4)
    ]
    told = await take_in(protocol, amqp_url, *cancels)
    assert [(m.exchange, m.routing_key, m.correlation_id) for m in told if m.exchange == ""] == [
        ("", "asker", f"cancel-{n}") for n in (2, 3)
    ]
    letters = [m for m in told if m.exchange]
    assert [(m.message_id, m.exchange) for m in letters] == [
        (f"cancel-{n}", "executions.dlx") for n in (2, 3)
    ]
    assert {(m.headers or {})["x-error-code"] for m in letters} == {"unknown_execution"}
    assert await kept(protocol) == [str(UNKNOWN), str(UNKNOWN + 1)]


async def test_odd_properties_are_kept_as_they_came(protocol: Protocol, amqp_url: str) -> None:
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


async def test_without_a_broker_what_is_known_is_cancelled_and_what_is_overdue_is_kept_and_told_later(
    protocol: Protocol, amqp_url: str
) -> None:
    nothing = cancel_request({"execution_id": UNKNOWN})
    await take_in(protocol, amqp_url, nothing)
    await protocol.connection.execute("UPDATE early_cancel SET kept_until = now()")
    running_id, waiting_id = await protocol.submit("a", 2)
    await protocol.claim(running_id)
    await keep(protocol, (waiting_id, None), (running_id, None))
    # One that was never connected: as long as there is no broker, whoever tells waits.
    unconnected = Publisher("amqp://127.0.0.1:1/", name="test", timeouts=BrokerTimeouts(wait_seconds=60))
    _, early = parts_over(protocol, unconnected)
    assert await early.cancel_early() == 2
    assert await kept(protocol) == [str(UNKNOWN)]
    statuses = await protocol.column("SELECT status::text FROM execution ORDER BY id")
    assert statuses == ["running", "cancelled"]
    assert await protocol.column("SELECT overdue_at <= now() FROM slot") == [True]
    # It is this executor's for a while: nobody puts it to the dead letters a second time meanwhile.
    assert await early.cancel_early() == 0
    await protocol.connection.execute("UPDATE early_cancel SET kept_until = now()")
    await give_up_one(protocol, amqp_url)
    (letter,) = await drain_queue(amqp_url, DEAD_LETTERS, 1)
    assert letter.message_id == nothing.message_id
    assert await kept(protocol) == []


async def test_one_whose_execution_came_at_the_last_moment_is_not_given_up(protocol: Protocol) -> None:
    (by_id, by_key) = await protocol.submit("a", 2)
    await protocol.connection.execute("UPDATE execution SET idempotency_key = 'k' WHERE id = $1", by_key)
    await keep(protocol, (by_id, None), (None, "k"), (UNKNOWN, None), keep_seconds=0.0)
    overdue = "SELECT id FROM turnstile.overdue_early_cancels(30, 100)"
    unknown_row = await protocol.connection.fetchval(
        "SELECT id FROM early_cancel WHERE execution_id = $1", UNKNOWN
    )
    assert await protocol.column(overdue) == [unknown_row]
    assert await protocol.column(overdue) == []
    known = await protocol.connection.fetch("SELECT * FROM turnstile.known_early_cancels(100)")
    assert [(row["execution_id"], row["reason"]) for row in known] == [(by_id, "enough"), (by_key, "enough")]


async def test_a_look_reads_the_record_by_its_indexes(protocol: Protocol) -> None:
    await protocol.submit("a", 500)
    await keep(protocol, *((UNKNOWN + n, None) for n in range(50)), *((None, f"k{n}") for n in range(50)))
    for statement in (
        "SELECT * FROM turnstile.known_early_cancels(1000)",
        "SELECT * FROM turnstile.overdue_early_cancels(30, 1000)",
    ):
        async with protocol.transaction():
            cost = await cost_of(protocol, protocol.connection.fetch(statement))
        assert cost.full_scans == {}
        assert "execution" not in cost.by_relation
