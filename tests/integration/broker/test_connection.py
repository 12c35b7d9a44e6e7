"""What is closed while it connects to the broker leaves no connection and no task."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiormq
import pytest

from tests.support.brokers import declares, linked
from tests.support.proxy import proxy_to
from tests.support.traffic import in_background, until
from turnstile.common.broker import connection as connection_module
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Link
from turnstile.common.broker.errors import BrokerUnavailable


@pytest.mark.parametrize(
    ("owner", "step"),
    [(connection_module._TransportKeeper, "create"), (aiormq.Connection, "ready")],
    ids=["at-the-handshake", "at-the-last-step"],
)
async def test_what_is_cancelled_while_it_connects_leaves_nothing(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    reached = asyncio.Event()
    original: Callable[..., Any] = getattr(owner, step)

    async def observed(self: object, *arguments: object, **options: object) -> object:
        answer = await original(self, *arguments, **options)
        reached.set()
        await asyncio.sleep(0)
        return answer

    monkeypatch.setattr(owner, step, observed)
    connection = BrokerConnection(amqp_url, name="test", timeouts=BrokerTimeouts())
    before = asyncio.all_tasks()
    async with in_background(connection.run(_never_serve)):
        await reached.wait()
    assert asyncio.all_tasks() == before


async def test_a_broker_that_is_gone_without_a_word_is_noticed_also_with_heartbeat_0_in_the_url(
    amqp_url: str,
) -> None:
    timeouts = BrokerTimeouts(heartbeat_seconds=1)
    async with (
        proxy_to(amqp_url) as proxy,
        linked(f"{proxy.url}?heartbeat=0", timeouts=timeouts) as (link, _),
    ):
        proxy.freeze()
        await until(link.gone.done, "the end of the connection", deadline_seconds=15)


async def test_declarations_on_a_connection_that_is_being_closed_are_those_of_a_lost_one(
    amqp_url: str,
) -> None:
    async with linked(amqp_url) as (link, _):
        await link.close()
        with pytest.raises(BrokerUnavailable):
            await link.declare(declares("q"))


async def _never_serve(_: Link) -> None:
    raise AssertionError("it was cancelled before it was connected")
