"""The reader on the transport: our frames reach our channels, all others the library, cut anywhere."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from random import Random

import aiormq
import hypothesis.strategies as st
import pytest
import trustme
import uvloop
from aio_pika.abc import AbstractChannel
from hypothesis import given
from pamqp import base, commands, frame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from tests.support.brokers import linked, message, publishing, unused
from tests.support.traffic import until
from turnstile.common.broker import reader
from turnstile.common.broker.channel import BulkChannel
from turnstile.common.broker.confirms import Confirms
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Publication
from turnstile.common.broker.reader import FrameReader

OURS, THEIRS = 5, 7
FRAME_BYTES_MAX = 4096
BODY_BYTES_MAX = FRAME_BYTES_MAX - 8
CONFIRMED = Publication.CONFIRMED

Event = tuple[object, ...]


class _Transport(asyncio.Transport):
    """A transport that only notes what its protocols do with it."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol = asyncio.BaseProtocol()
        self.aborted = False
        self.paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def receive(self, data: bytes) -> None:
        assert isinstance(self.protocol, asyncio.Protocol)
        self.protocol.data_received(data)


class _Confirms(Confirms):
    """Notes the answers of the broker."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__()
        self._events = events

    def settle(self, tag: int, outcome: Publication, *, multiple: bool) -> None:
        self._events.append((outcome, tag, multiple))

    def note_return(self, message_id: str | None, exchange: str, routing_key: str) -> None:
        self._events.append(("return", message_id, exchange, routing_key))


@dataclass(kw_only=True)
class _Bench:
    """A reader with one channel of ours, between a transport without a socket and the library's stream."""

    transport: _Transport
    reader: FrameReader
    stream: asyncio.StreamReader
    library: asyncio.StreamReaderProtocol
    channel: BulkChannel
    deliveries: list[Delivery] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    async def passed_on(self) -> bytes:
        """What the library received."""
        self.library.eof_received()
        return await self.stream.read()

    def note(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self.events.append(_seen(delivery))


@asynccontextmanager
async def _bench(*, keeps_bytes_max: int = 1 << 30) -> AsyncIterator[_Bench]:
    transport, stream = _Transport(), asyncio.StreamReader()
    library = asyncio.StreamReaderProtocol(stream)
    transport.set_protocol(library)
    library.connection_made(transport)
    frame_reader = FrameReader(transport)
    frame_reader.frame_bytes_max = FRAME_BYTES_MAX
    connection = aiormq.Connection("amqp://unconnected")
    connection.connection_tune = commands.Connection.Tune(frame_max=FRAME_BYTES_MAX)
    channel = BulkChannel(
        connection,
        OURS,
        transport=transport,
        reader=frame_reader,
        confirms=False,
        on_delivery=None,
        keeps=lambda size_bytes: size_bytes <= keeps_bytes_max,
    )
    bench = _Bench(transport=transport, reader=frame_reader, stream=stream, library=library, channel=channel)
    channel.on_delivery, channel.confirms = bench.note, _Confirms(bench.events)
    try:
        yield bench
    finally:
        await channel.close()


def _seen(delivery: Delivery) -> Event:
    return (
        "delivery",
        delivery.tag,
        delivery.redelivered,
        delivery.exchange,
        delivery.routing_key,
        delivery.message_id,
        delivery.body,
    )


def _content(
    method: Basic.Deliver | Basic.Return,
    body: bytes,
    piece_bytes: int = BODY_BYTES_MAX,
    *,
    number: int = OURS,
) -> list[bytes]:
    properties = Basic.Properties(message_id=f"id of {len(body)} bytes", priority=3, headers={"n": len(body)})
    frames: list[frame.FrameTypes] = [method, ContentHeader(body_size=len(body), properties=properties)]
    frames += [ContentBody(body[at : at + piece_bytes]) for at in range(0, len(body), piece_bytes)]
    return [frame.marshal(each, number) for each in frames]


def _deliver(tag: int, *, redelivered: bool = False) -> Basic.Deliver:
    return Basic.Deliver("consumer", tag, redelivered, "executions", f"key.{tag}")


def _method(method: base.Frame, number: int = OURS) -> list[bytes]:
    return [frame.marshal(method, number)]


HEARTBEAT = frame.marshal(Heartbeat(), 0)
MIXED = [
    *_method(Basic.ConsumeOk("consumer")),
    *_content(_deliver(1), b"one"),
    HEARTBEAT,
    *_content(_deliver(2, redelivered=True), b"in three pieces", 6),
    *_method(commands.Connection.Blocked("memory"), 0),
    *_method(Basic.Ack(1, True)),
    *_content(_deliver(3), b""),
    *_content(_deliver(4), b"of another channel", number=THEIRS),
    *_content(Basic.Return(312, "NO_ROUTE", "executions", "nowhere"), b"returned"),
    *_method(Basic.Nack(2, False, False)),
    HEARTBEAT,
    *_method(Basic.Cancel("consumer", True)),
]


def _expected(frames: Iterable[bytes]) -> tuple[list[Event], bytes]:
    """Read frames by the library's parser: what our channel gets, and what the library gets."""
    events: list[Event] = []
    left: list[bytes] = []
    method: Basic.Deliver | Basic.Return | None = None
    header, body = ContentHeader(), b""
    for each in frames:
        _, number, parsed = frame.unmarshal(each)
        if number != OURS:
            left.append(each)
        elif isinstance(parsed, Basic.Deliver | Basic.Return):
            method = parsed
        elif isinstance(parsed, Basic.Ack):
            events.append((Publication.CONFIRMED, parsed.delivery_tag, parsed.multiple))
        elif isinstance(parsed, Basic.Nack):
            events.append((Publication.REFUSED, parsed.delivery_tag, parsed.multiple))
        elif method is not None and isinstance(parsed, ContentHeader | ContentBody):
            header, body = (
                (parsed, b"") if isinstance(parsed, ContentHeader) else (header, body + parsed.value)
            )
            if len(body) == header.body_size:
                events.append(_content_event(method, header.properties.message_id, body))
                method = None
        else:
            left.append(each)
    return events, b"".join(left)


def _content_event(method: Basic.Deliver | Basic.Return, message_id: str | None, body: bytes) -> Event:
    if isinstance(method, Basic.Return):
        return "return", message_id, method.exchange, method.routing_key
    address = method.exchange, method.routing_key
    return (
        "delivery",
        method.delivery_tag,
        method.redelivered,
        *address,
        message_id,
        body,
    )


async def _read(pieces: Iterable[bytes]) -> tuple[list[Event], bytes]:
    async with _bench() as bench:
        for piece in pieces:
            bench.transport.receive(piece)
        return bench.events, await bench.passed_on()


_SHORT = st.text(max_size=60)
_EXCHANGE = st.text("abz.-_:", max_size=20)
_TAGS = st.integers(0, 2**63 - 1)
_CONTENTS = st.builds(
    _content,
    st.one_of(
        st.builds(Basic.Deliver, _SHORT, _TAGS, st.booleans(), _EXCHANGE, _SHORT),
        st.builds(Basic.Return, st.integers(0, 600), _SHORT, _EXCHANGE, _SHORT),
    ),
    st.binary(max_size=200) | st.integers(0, 5000).map(lambda size: b"x" * size),
    st.integers(50, 3000),
)
_METHODS = st.builds(
    _method,
    st.one_of(
        st.builds(Basic.Ack, _TAGS, st.booleans()),
        st.builds(Basic.Nack, _TAGS, st.booleans(), st.booleans()),
        st.builds(Basic.ConsumeOk, _SHORT),
        st.just(Basic.QosOk()),
    ),
)
_ASKED_FOR = st.builds(
    lambda body: [*_method(Basic.GetOk(1, False, "", "q", 0)), *_content(_deliver(1), body)[1:]],
    st.binary(max_size=200),
)
_OURS = st.lists(_CONTENTS | _METHODS | _ASKED_FOR, max_size=6).map(lambda each: list(chain(*each)))
_FOREIGN = st.one_of(
    st.just([HEARTBEAT]),
    st.builds(_content, st.builds(_deliver, _TAGS), st.binary(max_size=200), number=st.just(THEIRS)),
    st.just(_method(commands.Connection.Blocked("memory"), 0)),
)


@given(
    ours=_OURS,
    theirs=st.lists(_FOREIGN, max_size=5).map(lambda each: list(chain(*each))),
    seed=st.integers(0, 2**32),
    read_bytes=st.sampled_from([1, 7, 64, 1000, 70_000]),
)
def test_any_stream_is_read_as_the_library_reads_it(
    ours: list[bytes], theirs: list[bytes], seed: int, read_bytes: int
) -> None:
    order = Random(seed)
    frames = []
    while ours or theirs:
        first, second = (ours, theirs) if order.random() < 0.5 else (theirs, ours)
        frames.append((first or second).pop(0))
    stream = b"".join(frames)
    pieces = []
    while stream:
        size_bytes = order.randint(1, read_bytes)
        pieces.append(stream[:size_bytes])
        stream = stream[size_bytes:]
    assert asyncio.run(_read(pieces)) == _expected(frames)


async def test_a_frame_larger_than_agreed_ends_the_connection_before_it_is_in_memory() -> None:
    async with _bench() as bench:
        bench.transport.receive(frame.marshal(ContentBody(bytes(BODY_BYTES_MAX + 1)), OURS)[:100])
        assert bench.transport.aborted


async def test_the_body_that_is_not_kept_takes_no_memory() -> None:
    async with _bench(keeps_bytes_max=100) as bench:
        for piece in _content(_deliver(1), bytes(100_000)) + _content(_deliver(2), b"small"):
            bench.transport.receive(piece)
        assert [(each.body_bytes, each.body, each.kept) for each in bench.deliveries] == [
            (100_000, b"", False),
            (5, b"small", True),
        ]


async def test_a_frame_without_its_end_and_one_that_the_stream_cuts_short_are_left_to_the_library() -> None:
    method, header, body = _content(_deliver(1), b"body")
    broken = body[:-1] + b"\0"
    assert await _read([method, header, broken]) == ([], broken)
    async with _bench() as bench:
        bench.transport.receive(method + header + body[:-1])
        bench.reader.eof_received()
        assert bench.events == []
        assert await bench.stream.read() == body[:-1]


async def test_a_delivery_interrupted_by_the_end_of_its_channel_is_dropped() -> None:
    method, header, _ = _content(_deliver(1), b"body")
    close = _method(commands.Channel.Close(406, "PRECONDITION_FAILED", 60, 80))[0]
    next_one = _content(_deliver(1), b"for the next channel of this number")
    async with _bench() as bench:
        for piece in [method, header, close, *next_one]:
            bench.transport.receive(piece)
        assert bench.events == []
        assert not bench.channel.usable
        assert await bench.passed_on() == close + b"".join(next_one)


async def test_a_full_stream_of_the_library_pauses_the_transport() -> None:
    async with _bench() as bench:
        theirs = _content(_deliver(1), bytes(10_000_000), number=THEIRS)
        sent = b""
        while not bench.transport.paused:
            sent += theirs[0]
            bench.transport.receive(theirs.pop(0))
        assert len(sent) < 1 << 20
        await bench.stream.readexactly(len(sent))
        assert not bench.transport.paused


async def test_the_library_gets_a_heartbeat_between_frames_while_it_gets_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "_SIGN_OF_LIFE_SECONDS", 0.0)
    ours = b"".join(_content(_deliver(1), b"one"))
    blocked = _method(commands.Connection.Blocked("memory"), 0)[0]
    _, passed_on = await _read([ours + blocked[:5], blocked[5:] + ours, ours[:9], ours[9:]])
    assert passed_on == HEARTBEAT + blocked + HEARTBEAT


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_every_transport_of_the_services_takes_the_reader(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tls: bool
) -> None:
    authority = trustme.CA()
    server_tls, client_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    authority.configure_trust(client_tls)
    frames = [*MIXED, *_content(_deliver(9), bytes(300_000)), HEARTBEAT]
    taken: list[bytes] = []

    async def serve(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # As in AMQP, the client speaks first.
        await stream.readexactly(1)
        writer.write(b"".join(frames))
        await writer.drain()
        writer.close()

    def take(_: int, data: bytes, start: int, end: int) -> bool:
        taken.append(data[start:end])
        return True

    async def receive() -> bytes:
        async with await asyncio.start_server(
            serve, "127.0.0.1", 0, ssl=server_tls if tls else None
        ) as server:
            port = server.sockets[0].getsockname()[1]
            stream, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_tls if tls else None)
            FrameReader(writer.transport).add_channel(OURS, take)
            writer.write(b"?")
            passed_on = await stream.read()
            writer.close()
            await writer.wait_closed()
            return passed_on

    with asyncio.Runner(loop_factory=new_loop) as runner:
        passed_on = runner.run(receive())
    ours = [each for each in frames if each[1:3] == OURS.to_bytes(2, "big")]
    assert taken == [each[7:-1] for each in ours]
    assert passed_on == b"".join(each for each in frames if each not in ours)


async def test_a_connection_that_carries_only_deliveries_is_not_taken_for_dead(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After two seconds without a frame, instead of six.
    monkeypatch.setattr(aiormq.Connection, "HEARTBEAT_GRACE_MULTIPLIER", 1)
    received: list[Delivery] = []
    async with (
        publishing(amqp_url) as publisher,
        linked(amqp_url, timeouts=BrokerTimeouts(heartbeat_seconds=1)) as (link, _),
    ):
        consuming = await link.open_channel(on_delivery=received.append)
        await consuming.basic_consume("q", unused, no_ack=True)
        for number in range(50):
            await publisher.publish([message("q", str(number).encode())])
            await asyncio.sleep(0.1)
        await until(lambda: len(received) == 50)
        assert link.is_open


async def test_a_free_channel_number_serves_the_library_again(amqp_url: str) -> None:
    async with linked(amqp_url) as (link, channel):
        number = channel.number
        answers = channel.publish_all([message("q", b"for the library"), message("q", exchange="no such")])
        await asyncio.wait({answers})
        await until(lambda: number not in channel.connection.channels)
        taken: list[tuple[int, bytes]] = []

        async def get(library: AbstractChannel) -> None:
            underlay = await library.get_underlay_channel()
            answer = await underlay.basic_get("q", no_ack=True)
            taken.append((underlay.number, answer.body))

        await link.declare(get)
        assert taken == [(number, b"for the library")]
