"""What the leader publishes in a turn, and what a queue that takes nothing costs the others."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.brokers import hanging, publishing
from tests.support.leader_broker import Listener, leader_broker, leading, listener, taken
from tests.support.proxy import LinkState, proxy_to
from tests.support.traffic import request, until
from turnstile.common.broker import delivery as broker_delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTOR_REQUESTS, declare_executor, session_queue
from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import dead_letter, reply
from turnstile.common.messages import ExecutionAccepted, ExecutionRejected
from turnstile.common.worker_protocol import Heard, LeaderBody, Offer, Offers, ToSession
from turnstile.common.worker_wire import LEADER_MESSAGES, decode_to_session
from turnstile.executor.leader.deliveries import Message
from turnstile.executor.leader.ports import BrokerUnavailable, Delivery, Publication
from turnstile.executor.leader.publications import client_message
from turnstile.localservers.rabbitmq import RabbitServer


def to_session(worker_id: str, number: int, body: LeaderBody | None = None) -> Publication:
    body = body or Heard(heartbeat=number, committed=0)
    return Publication(to=f"session {worker_id} 1", body=ToSession(epoch=1, number=number, body=body))


def offers(size_bytes: int) -> Offers:
    offer = Offer(execution_id=1, grant=Grant(1, 1), attempt=1, action_ref="a", parameters=b"1" * size_bytes)
    return Offers(queue="a", at_once=None, offers=(offer,))


@asynccontextmanager
async def session(amqp_url: str, worker_id: str) -> AsyncIterator[Listener]:
    async with listener(amqp_url, session_queue(worker_id, 1)) as heard:
        yield heard


def numbers(heard: Listener) -> list[list[int]]:
    return [[each.number for each in decode_to_session(body)] for body in heard.bodies]


async def test_the_messages_of_one_turn_to_a_session_are_one_message_in_order(amqp_url: str) -> None:
    turn = [to_session(worker_id, number) for number in range(1, 6) for worker_id in ("w1", "w2")]
    async with leader_broker(amqp_url) as broker, session(amqp_url, "w1") as first:
        async with session(amqp_url, "w2") as second:
            assert await broker.publish(turn) == [True] * 10
            await first.until(1)
            await second.until(1)
        assert numbers(first) == numbers(second) == [[1, 2, 3, 4, 5]]
        properties = first.messages[0].header.properties
        assert (properties.message_type, properties.app_id) == (LEADER_MESSAGES, "executor")


async def test_large_offers_to_a_session_are_several_messages_in_order(amqp_url: str) -> None:
    turn = [to_session("w1", number, offers(600_000)) for number in range(1, 4)]
    async with leader_broker(amqp_url) as broker, session(amqp_url, "w1") as heard:
        assert await broker.publish(turn) == [True] * 3
        await heard.until(3)
        assert numbers(heard) == [[1], [2], [3]]


async def test_a_message_to_a_session_that_is_gone_is_not_routed_and_the_others_are(amqp_url: str) -> None:
    turn = [to_session("gone", 1), to_session("w1", 1), to_session("gone", 2)]
    async with leader_broker(amqp_url) as broker, session(amqp_url, "w1"):
        assert await broker.publish(turn) == [False, True, False]


async def test_without_a_connection_a_turn_fails_at_once_and_works_again_behind_a_new_one(
    amqp_url: str,
) -> None:
    now = asyncio.get_running_loop().time
    async with proxy_to(amqp_url) as proxy, leader_broker(proxy.url) as broker, session(amqp_url, "w1"):
        proxy.state = LinkState(refuses=True)
        await until(lambda: not broker.connected)
        began_at = now()
        for turn in ([], [to_session("w1", 1)]):
            with pytest.raises(BrokerUnavailable):
                await broker.publish(turn)
        assert now() - began_at < 1.0
        proxy.state = LinkState()
        await until(lambda: broker.connected)
        assert await broker.publish([to_session("w1", 1)]) == [True]


async def test_during_an_alarm_of_the_broker_a_turn_fails_within_its_time(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    now = asyncio.get_running_loop().time
    async with leader_broker(controlled_amqp_url) as broker, session(controlled_amqp_url, "w1"):
        await asyncio.to_thread(controlled_broker.ctl, "set_vm_memory_high_watermark", "0.000001")
        try:
            # The broker says so to a connection that publishes.
            for _ in range(2):
                began_at = now()
                with pytest.raises(BrokerUnavailable):
                    await broker.publish([to_session("w1", 1)])
                assert now() - began_at < 3.0
            assert broker.blocked
        finally:
            await asyncio.to_thread(controlled_broker.ctl, "set_vm_memory_high_watermark", "0.4")
        await until(lambda: not broker.blocked)
        assert await broker.publish([to_session("w1", 1)]) == [True]


QUORUM = {"x-queue-type": "quorum"}


async def test_a_session_whose_queue_never_confirms_delays_the_others_once(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    now = asyncio.get_running_loop().time
    turn = [to_session("hangs", 1), to_session("w1", 1)]
    name = session_queue("hangs", 1)
    async with (
        leader_broker(controlled_amqp_url) as broker,
        session(controlled_amqp_url, "w1") as heard,
        listener(controlled_amqp_url, name, consumes=False, arguments=QUORUM),
    ):
        assert await broker.publish(turn) == [True, True]
        async with hanging(controlled_broker, controlled_amqp_url, name):
            assert await broker.publish(turn) == [False, True]
            began_at = now()
            for _ in range(5):
                assert await broker.publish(turn) == [False, True]
            assert now() - began_at < 1.0
            await heard.until(7)


async def test_a_reply_queue_that_never_confirms_delays_no_turn(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    now = asyncio.get_running_loop().time
    rejected = {
        "type": "execution.rejected", "code": Code.QUEUE_FULL, "message": "full", "correlation_id": "c",
    }  # fmt: skip
    async with (
        leader_broker(controlled_amqp_url) as broker,
        session(controlled_amqp_url, "w1"),
        listener(controlled_amqp_url, "replies hang", consumes=False, arguments=QUORUM),
        hanging(controlled_broker, controlled_amqp_url, "replies hang"),
    ):
        began_at = now()
        for number in range(1, 6):
            turn = [Publication(to="reply replies hang", body=rejected), to_session("w1", number)]
            assert await broker.publish(turn) == [True, True]
        assert now() - began_at < 1.0


async def test_replies_reach_the_client_as_they_always_did(amqp_url: str) -> None:
    answers: list[dict[str, Any]] = [
        {"type": "execution.accepted", "execution_id": 7, "status": Status.QUEUED, "position": 1,
         "duplicate": False},
        {"type": "execution.rejected", "code": Code.UNKNOWN_ACTION, "message": "no such action"},
        {"type": "execution.cancel_accepted", "execution_id": 7, "status": Status.CANCELLED},
    ]  # fmt: skip
    async with leader_broker(amqp_url) as broker, listener(amqp_url, "client") as heard:
        for answer in answers:
            await broker.publish([Publication(to="reply client", body={**answer, "correlation_id": "c"})])
        await heard.until(3)
    assert [each.header.properties.message_type for each in heard.messages] == [a["type"] for a in answers]
    assert json.loads(heard.bodies[2]) == {"execution_id": 7, "status": "cancelled"}


async def request_taken(amqp_url: str, sent: Outgoing) -> Delivery:
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as client:
        await client.publish([sent])
        return (await taken(broker, EXECUTOR_REQUESTS, 1))[0]


def assert_same(found: Outgoing | None, expected: Outgoing | None, *, but: Sequence[str] = ()) -> None:
    assert found is not None
    assert expected is not None
    for name in Outgoing.__slots__:
        if name not in ("message_id", "headers", *but):
            assert getattr(found, name) == getattr(expected, name), name
    headers = {name: value for name, value in (found.headers or {}).items() if name != "x-died-at"}
    assert headers == {n: v for n, v in (expected.headers or {}).items() if n != "x-died-at"}


async def test_replies_and_dead_letters_have_the_properties_of_today(amqp_url: str) -> None:
    sent = request({"action_ref": "a"}, reply_to="client", correlation_id=None)
    delivery = await request_taken(amqp_url, sent)
    message: Message = delivery.tag
    raw: broker_delivery.Delivery = message.delivery
    accepted = ExecutionAccepted(execution_id=7, status=Status.QUEUED, position=1, duplicate=False)
    rejected = ExecutionRejected(code=Code.UNKNOWN_ACTION, message="no such action")
    for answer, kind in ((accepted, "execution.accepted"), (rejected, "execution.rejected")):
        body = {**answer.model_dump(), "type": kind, "correlation_id": delivery.correlation_id}
        published = client_message(Publication(to=f"reply {delivery.reply_to}", body=body, of=delivery))
        assert_same(published, reply(raw, answer), but=["timestamp"])
    body = {"x-error-code": Code.UNKNOWN_ACTION, "x-error": "no such action", "request": delivery.body}
    letter = client_message(Publication(to="dead letters", body=body, of=delivery))
    expected = dead_letter(raw, Code.UNKNOWN_ACTION, "no such action", app_id="executor")
    assert_same(letter, expected)
