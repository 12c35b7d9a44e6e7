"""Frames between the two processes: whole or not at all, and bounded."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from turnstile.executor.asking import asker as frames_module
from turnstile.executor.asking.asker import Frame, FrameStream, LocalAsker

SECONDS = 10.0


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[FrameStream, FrameStream]]:
    ours, theirs = socket.socketpair()
    one, other = await FrameStream.over(ours), await FrameStream.over(theirs)
    try:
        yield one, other
    finally:
        one.close()
        other.close()
        await asyncio.gather(one.writer.wait_closed(), other.writer.wait_closed())


def text(size: int) -> msgspec.Raw:
    return msgspec.Raw(b'"' + b"x" * size + b'"')


async def test_frames_arrive_whole_and_in_order_whatever_their_size() -> None:
    async with connected() as (one, other):
        sent = [Frame("ask", number, 1.5, text(size)) for number, size in enumerate((0, 1, 100_000, 5))]
        for each in sent:
            assert one.write(each)
        read = [await asyncio.wait_for(other.read(), SECONDS) for _ in sent]
        assert [(each and each.id, each and bytes(each.data)) for each in read] == [
            (each.id, bytes(each.data)) for each in sent
        ]


async def test_the_end_of_the_other_process_is_read_as_the_end() -> None:
    async with connected() as (one, other):
        one.close()
        assert await asyncio.wait_for(other.read(), SECONDS) is None


async def test_half_a_frame_is_the_end() -> None:
    async with connected() as (one, other):
        one.writer.write(b"\0\0\1\0half")
        one.close()
        assert await asyncio.wait_for(other.read(), SECONDS) is None


async def test_who_does_not_read_costs_bounded_memory() -> None:
    async with connected() as (one, _):
        written = [one.write(Frame("reply", 1, data=text(8 << 20))) for _ in range(20)]
        assert not written[-1]
        assert one.writer.transport.get_write_buffer_size() < 2 * frames_module.BUFFER_BYTES_MAX
        assert not one.write(Frame("reply", 1, data=text(frames_module.FRAME_BYTES_MAX)))
        one.writer.transport.abort()


async def test_replies_find_their_askers_in_any_order() -> None:
    async with connected() as (one, other):
        asker = LocalAsker()
        asker.connect(one)
        first, second = (asyncio.create_task(asker.ask(data, SECONDS)) for data in (b"1", b"2"))
        asked = [await asyncio.wait_for(other.read(), SECONDS) for _ in range(2)]
        for frame in reversed(asked):
            assert frame is not None
            asker.take_reply(Frame("reply", frame.id, data=msgspec.Raw(bytes(frame.data) * 2)))
        # Of a question whose asker gave up.
        asker.take_reply(Frame("reply", 99))
        assert (await first, await second) == (b"11", b"22")


async def test_an_asker_hears_at_once_that_the_process_is_gone() -> None:
    async with connected() as (one, _):
        asker = LocalAsker()
        assert await asker.ask(b"1", SECONDS) is None
        asker.connect(one)
        asking = asyncio.create_task(asker.ask(b"1", SECONDS))
        await asyncio.sleep(0)
        asker.connect(None)
        async with asyncio.timeout(1.0):
            assert await asking is None


async def test_an_asker_waits_no_longer_than_it_said() -> None:
    async with connected() as (one, _):
        asker = LocalAsker()
        asker.connect(one)
        async with asyncio.timeout(SECONDS):
            assert await asker.ask(b"1", 0.05) is None
