"""Exchanges and bindings that are deleted under a leader: it creates them again without any traffic."""

import asyncio
from contextlib import suppress

import pytest

from tests.support.brokers import bare_channel, message, publishing
from tests.support.leader_broker import leading
from tests.support.traffic import until
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Publication
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EXECUTIONS,
    EXECUTOR,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REPORTS,
    EXECUTOR_REQUESTS,
)
from turnstile.executor.leader import amqp

_DEADLINE_SECONDS = 10.0
"""Below the quiet time after which a consumer declares its queue again."""
_ROUTES = (
    (EXECUTIONS, "execution.requested", EXECUTOR_REQUESTS),
    (EXECUTIONS, "execution.cancel_requested", EXECUTOR_REQUESTS),
    (EXECUTIONS, EXECUTOR_REQUESTS, EXECUTOR_REQUESTS),
    (EXECUTOR_REQUESTS, "#", EXECUTOR_REQUESTS),
    (EXECUTOR, EXECUTOR_COMPLETIONS, EXECUTOR_COMPLETIONS),
    (EXECUTOR, EXECUTOR_HEARTBEATS, EXECUTOR_HEARTBEATS),
    (EXECUTOR, EXECUTOR_REPORTS, EXECUTOR_REPORTS),
    (DEAD_LETTER_EXCHANGE, DEAD_LETTERS, DEAD_LETTERS),
)
"""Exchange, routing key, queue."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the leader look often."""
    monkeypatch.setattr(amqp, "_ROUTES_SECONDS", 0.2)


async def test_every_exchange_and_binding_that_is_deleted_is_soon_back(amqp_url: str) -> None:
    async with leading(amqp_url), bare_channel(amqp_url) as channel:
        for exchange, key, queue in _ROUTES:
            await channel.queue_unbind(queue, exchange, key)
        await _until_routed(amqp_url, "bindings")
        for exchange in dict.fromkeys(exchange for exchange, _, _ in _ROUTES):
            await channel.exchange_delete(exchange)
        await _until_routed(amqp_url, "exchanges")


async def _until_routed(amqp_url: str, what: str) -> None:
    """Wait until a message for each route is confirmed, by a client that declares none of them."""

    async def are_routed() -> bool:
        with suppress(BrokerUnavailable):
            sent = [message(key, exchange=exchange) for exchange, key, _ in _ROUTES]
            return await client.publish(sent) == [Publication.CONFIRMED] * len(sent)
        return False

    async with asyncio.timeout(60), publishing(amqp_url) as client:
        await until(are_routed, f"all {what} are back", deadline_seconds=_DEADLINE_SECONDS)
