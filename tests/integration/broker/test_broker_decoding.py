"""Odd properties: whoever reads them keeps the connection, and what stands behind them in the queue."""

from dataclasses import replace

import pytest

from tests.support.brokers import bodies, declares, message, running, take
from turnstile.common.broker import frames
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.subscription import Subscription

MICROSECONDS = 1_790_000_000_000_000
NOT_UTF_8 = b"na\xefve\xff"


def nested(levels: int) -> bytes:
    """A header table whose only value is a list in a list in a list ..."""
    value = b"A\0\0\0\0"
    for _ in range(levels):
        value = b"A" + len(value).to_bytes(4, "big") + value
    return len(b"\1k" + value).to_bytes(4, "big") + b"\1k" + value


def named_in_latin_1(name: bytes) -> bytes:
    value = bytes((len(name),)) + name + b"t\1"
    return len(value).to_bytes(4, "big") + value


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test put bytes on the wire that no library of ours would."""
    packed, tables = frames._short, {"deep": nested(10_000), "latin": named_in_latin_1(NOT_UTF_8)}
    monkeypatch.setattr(
        frames, "_short", lambda t: bytes((len(NOT_UTF_8),)) + NOT_UTF_8 if t == "NOT UTF-8" else packed(t)
    )
    packed_table = frames._header_table
    monkeypatch.setattr(frames, "_header_table", lambda items: tables.get(items[0][0]) or packed_table(items))


@pytest.mark.usefixtures("raw")
async def test_no_property_of_a_message_holds_up_what_comes_behind_it(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue: Subscription = consumer.subscribe("q", prefetch=10, declare=declares("q"))
    odd = [
        replace(message("q", b"microseconds"), timestamp=MICROSECONDS),
        replace(message("q", b"the last instant"), timestamp=2**64 - 1),
        message("q", b"a name that is no text", message_id="NOT UTF-8"),
        replace(message("q", b"headers without an end"), headers={"deep": True}),
        replace(message("q", b"a header that is no text"), headers={"latin": True}),
    ]
    async with running(publisher, consumer):
        await publisher.publish([*odd, message("q", b"plain")])
        taken = await take(queue, 6)
        queue.ack(taken)
    assert bodies(taken) == [*(each.body for each in odd), b"plain"]
    assert not any(each.redelivered for each in taken), "the connection was lost over one of them"
    assert [each.timestamp for each in taken] == [None] * 6
    assert taken[2].message_id == "na?ve?"
    assert [each.headers for each in taken[3:5]] == [{}, {}]
