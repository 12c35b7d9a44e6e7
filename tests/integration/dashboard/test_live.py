"""One reading for all who look, none when nobody does; bounded streams that go on where they ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.types import Message

from tests.support.protocol import Protocol
from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.api.events import EventsAsked, EventStream
from turnstile.executor.dashboard import Live, LiveTimes
from turnstile.executor.dashboard.lines import QueueName
from turnstile.executor.dashboard.live import STREAMS_MAX, Stream

DEADLINE_SECONDS = 30
TIMES = LiveTimes(interval=0.02, linger=0.1)


@pytest.fixture
async def live(database_url: str) -> AsyncIterator[Live]:
    database = Database(database_url, application_name="test", connections_max=2)
    await database.open()
    live = Live(database, lambda: {"database": None, "broker": None}, TIMES)
    yield live
    await ends(live)
    await database.close()


@pytest.fixture
async def cut_off() -> AsyncIterator[Live]:
    """A database that cannot be reached."""
    database = Database("postgresql://127.0.0.1:1/none", application_name="test")
    trouble = {"database": "refused", "broker": None}
    live = Live(database, lambda: trouble, LiveTimes(interval=0.02, linger=0.05, first=0.1))
    yield live
    await ends(live)


async def ends(live: Live) -> None:
    await truth(lambda: not live.is_reading, "the readings end")


async def truth(holds: Callable[[], bool], what: str) -> None:
    async def does() -> bool:
        return holds()

    await until(does, what, deadline_seconds=DEADLINE_SECONDS)


def events_in(batch: bytes) -> list[tuple[str, Any]]:
    """The events of a batch, as a browser would take them apart."""
    blocks = batch.decode().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in block.split("\n") if line) for block in blocks]
    return [(each["event"], json.loads(each["data"])) for each in fields if "event" in each]


def id_in(batch: bytes) -> str:
    return batch.rpartition(b"id: ")[2].decode().strip()


async def heard(stream: Stream, name: str, holds: Callable[[Any], bool] = lambda _: True) -> Any:
    """Wait for an event of this name that is as wanted."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            for event, body in events_in(await stream.batches.get()):
                if event == name and holds(body):
                    return body


async def test_nothing_is_read_until_somebody_looks_and_after_the_last_look(live: Live) -> None:
    assert (live.readings, live.is_reading) == (0, False)
    await live.board()
    await ends(live)
    assert live.readings >= 1


async def test_all_who_look_share_one_reading(live: Live) -> None:
    await asyncio.gather(*(live.board() for _ in range(500)))
    assert live.readings == 1


async def test_streams_alone_keep_the_readings_going_and_share_each_batch(
    live: Live, protocol: Protocol
) -> None:
    with live.stream([], last_event_id=None) as one, live.stream([], last_event_id=None) as other:
        await live.board()
        await protocol.put("a", max_concurrent=1)
        await protocol.submit("a", 3)
        bodies = [await heard(each, "queues", lambda body: bool(body["items"])) for each in (one, other)]
    assert bodies[0] == bodies[1]


async def test_a_batch_tells_the_queues_that_moved_as_the_record_has_them(
    live: Live, protocol: Protocol
) -> None:
    await protocol.put("a", max_concurrent=1)
    await protocol.put("still", max_concurrent=1)
    with live.stream([], last_event_id=None) as stream:
        await live.board()
        await protocol.submit("a", 3)
        told = await heard(stream, "queues", lambda body: any(i["queue_length"] == 2 for i in body["items"]))
    (queue,) = told["items"]
    assert (queue["action_ref"], queue["active_count"], queue["total_enqueued"]) == ("a", 1, 3)


async def test_the_board_agrees_with_a_recount_after_every_kind_of_move(
    live: Live, protocol: Protocol
) -> None:
    await protocol.put("a", max_concurrent=2)
    ids = await protocol.submit("a", 5)
    await protocol.claim(*ids[:2])
    await protocol.cancel(ids[4])
    board = await live.board()

    async def stands(**expected: object) -> None:
        def as_expected() -> bool:
            line = board.lines.get(QueueName("a", None))
            return line is not None and {name: getattr(line, name) for name in expected} == expected

        with live.stream([], last_event_id=None):
            await truth(as_expected, f"the board shows {expected}")

    head = (await protocol.execution(ids[2]))["queued_at"]
    await stands(depth=2, active_count=2, total_enqueued=5, oldest_enqueued_at=head, paused=False)
    await protocol.put("a", max_concurrent=3, paused=True)
    await stands(depth=2, max_concurrent=3, paused=True)
    await protocol.put("a", max_concurrent=3)
    await stands(depth=1, active_count=3, paused=False)


async def test_the_totals_of_the_board_hold_what_deleted_queues_counted(
    live: Live, protocol: Protocol
) -> None:
    await protocol.put("a", concurrency_key="/key")
    await protocol.register()
    for key in ("x", "y"):
        (one,) = await protocol.submit("a", parameters={"key": key})
        await protocol.run(one)
        await protocol.settle((one, 1))
    assert await protocol.delete_idle_queues() == 2
    (one,) = await protocol.submit("a", parameters={"key": "x"})
    sums, _ = (await live.board()).total()
    assert (sums.total_enqueued, sums.total_completed, sums.active_count) == (3, 2, 1)


async def test_a_stream_hears_how_the_executions_that_it_watches_move(live: Live, protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    first, second = await protocol.submit("a", 2)
    with live.stream([first], last_event_id=None) as stream:
        await live.board()
        await truth(lambda: live.readings >= 2, "it was read with the watch")
        await protocol.claim(first)
        told = await heard(stream, "executions")
    assert told == {"items": [{"id": first, "status": "running", "attempt": 1}]}
    assert second != first


async def test_a_reader_that_does_not_keep_up_is_dropped_and_the_others_go_on(
    live: Live, protocol: Protocol
) -> None:
    await protocol.put("a", max_concurrent=1)
    with live.stream([], last_event_id=None) as slow, live.stream([], last_event_id=None) as quick:
        # What the first reading finds has not moved.
        await live.board()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not slow.dropped.is_set():
                await protocol.submit("a")
                await heard(quick, "queues")
        assert slow.batches.full()
        assert not quick.dropped.is_set()


async def test_streams_are_bounded(cut_off: Live) -> None:
    streams = [cut_off.stream([], last_event_id=None) for _ in range(STREAMS_MAX)]
    for stream in streams:
        stream.__enter__()
    with pytest.raises(Unavailable, match="64 streams"), cut_off.stream([], last_event_id=None):
        pass
    for stream in streams:
        stream.__exit__(None, None, None)


async def test_a_stream_that_comes_back_goes_on_behind_the_last_event_it_had(
    live: Live, protocol: Protocol
) -> None:
    await protocol.put("a", max_concurrent=1)
    with live.stream([], last_event_id=None) as one:
        await live.board()
        async with asyncio.timeout(DEADLINE_SECONDS):
            batch = await one.batches.get()
            await protocol.submit("a", 3)
            missed = await one.batches.get()
        with live.stream([], last_event_id=id_in(batch)) as again:
            assert again.batches.get_nowait() == missed


@pytest.mark.parametrize("unknown", [None, "", "x", "abcd-1", "-", "12345678-99999999999999999999", "ä-²"])
async def test_a_stream_with_nothing_to_go_on_from_is_told_to_load_what_it_shows(
    cut_off: Live, unknown: str | None
) -> None:
    with cut_off.stream([], last_event_id=unknown) as stream:
        assert events_in(stream.batches.get_nowait())[0][0] == "opening"


async def test_after_a_time_without_anybody_an_old_place_is_no_place_to_go_on_from(live: Live) -> None:
    with live.stream([], last_event_id=None) as stream:
        await live.board()
        batch = await stream.batches.get()
    await ends(live)
    with live.stream([], last_event_id=id_in(batch)) as again:
        assert events_in(again.batches.get_nowait())[0][0] == "opening"


async def test_a_database_out_of_reach_is_told_and_does_not_end_the_streams(cut_off: Live) -> None:
    with cut_off.stream([], last_event_id=None) as stream:
        told = await heard(stream, "overview")
        assert told["trouble"] == {"database": "refused"}
        with pytest.raises(Unavailable, match="readyz"):
            await cut_off.board()
        assert not stream.dropped.is_set()


async def test_what_was_read_before_an_outage_does_not_pass_for_new(
    live: Live, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cannot(*_: object, **__: object) -> None:
        raise Unavailable("gone")

    with live.stream([], last_event_id=None):
        await live.board()
        monkeypatch.setattr("turnstile.executor.dashboard.live.read", cannot)
        readings = live.readings
        await truth(lambda: live.readings > readings + 1, "a reading after the outage began")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await live.board()


async def test_a_deleted_action_leaves_the_board(live: Live, protocol: Protocol) -> None:
    await protocol.put("there")
    await protocol.put("gone")
    await protocol.connection.execute("UPDATE action SET deleted_at = now() WHERE ref = 'gone'")
    board = await live.board()
    assert [name.action_ref for name in board.lines] == ["there"]


async def test_a_stream_ends_after_its_time_and_the_reader_comes_again(live: Live) -> None:
    stream = EventStream(
        live, EventsAsked(), last_event_id=None, stopping=asyncio.Event(), lasting_seconds=0.1
    )
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(DEADLINE_SECONDS):
        await stream({"type": "http"}, receive, send)
    assert sent[0]["type"] == "http.response.start"
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
