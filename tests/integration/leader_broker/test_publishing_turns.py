"""What the leader publishes in a turn, and what a queue that takes nothing costs the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.brokers import hanging
from tests.support.leader_broker import Listener, leader_broker, listener
from tests.support.proxy import LinkState, proxy_to
from tests.support.traffic import until
from turnstile.common.broker.topology import session_queue
from turnstile.common.domain.errors import Code
from turnstile.common.worker_protocol import Heard, LeaderBody, ToSession
from turnstile.executor.leader.ports import BrokerUnavailable, Publication
from turnstile.localservers.rabbitmq import RabbitServer


def to_session(worker_id: str, number: int, body: LeaderBody | None = None) -> Publication:
    body = body or Heard(heartbeat=number, committed=0)
    return Publication(to=f"session {worker_id} 1", body=ToSession(epoch=1, number=number, body=body))


@asynccontextmanager
async def session(amqp_url: str, worker_id: str) -> AsyncIterator[Listener]:
    async with listener(amqp_url, session_queue(worker_id, 1)) as heard:
        yield heard


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
