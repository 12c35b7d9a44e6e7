"""One poll for all clients, none without clients; bounded streams that continue where they ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from starlette.types import Message

from tests.support.served import FixedHealth, Served
from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.api.events import EventStream, StreamParameters
from turnstile.executor.asking.asker import Asker
from turnstile.executor.dashboard.live import STREAMS_MAX, Live, LiveTimes, Stream
from turnstile.executor.dashboard.state import QueueName
from turnstile.executor.questions.protocol import Unanswered

DEADLINE_SECONDS = 30
TIMES = LiveTimes(interval=0.02, linger=0.1)


@pytest.fixture
def health() -> FixedHealth:
    return FixedHealth()


@pytest.fixture
async def live(api: Served, health: FixedHealth) -> AsyncIterator[Live]:
    live = Live(api.database, api.leader.asker(), health, TIMES)
    yield live
    await ends(live)


class NoLeader:
    """Asks in vain."""

    async def ask(self, question: object, seconds: float = 2.0) -> Unanswered:
        return Unanswered(why="no_answer", message="no leader answered within 2 s")


@pytest.fixture
async def cut_off() -> AsyncIterator[Live]:
    """The live state without a leader and a database."""
    database = Database("postgresql://127.0.0.1:1/none", application_name="test")
    times = LiveTimes(interval=0.02, linger=0.05, first=0.1)
    live = Live(database, cast("Asker", NoLeader()), FixedHealth(database="refused"), times)
    yield live
    await ends(live)


async def ends(live: Live) -> None:
    await until(lambda: not live.is_polling, "the polls end")


def events_in(batch: bytes) -> list[tuple[str, Any]]:
    """The events of a batch, as a browser parses them."""
    blocks = batch.decode().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in block.split("\n") if line) for block in blocks]
    return [(each["event"], json.loads(each["data"])) for each in fields if "event" in each]


def id_in(batch: bytes) -> str:
    return batch.rpartition(b"id: ")[2].decode().strip()


async def heard(stream: Stream, name: str, holds: Callable[[Any], bool] = lambda _: True) -> Any:
    """Wait for a matching event of this name."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            for event, body in events_in(await stream.batches.get()):
                if event == name and holds(body):
                    return body


async def test_all_clients_share_one_poll_and_without_clients_there_is_none(live: Live) -> None:
    assert (live.polls, live.is_polling) == (0, False)
    await asyncio.gather(*(live.state() for _ in range(500)))
    assert live.polls == 1
    await ends(live)


async def test_streams_keep_the_polls_going_and_share_batches_of_what_changed(
    live: Live, api: Served
) -> None:
    await api.define("a", max_concurrent=1)
    await api.define("still", max_concurrent=1)
    api.join()
    with live.stream([], last_event_id=None) as one, live.stream([], last_event_id=None) as other:
        await live.state()
        await api.submit_many("a", 3)
        bodies = [
            await heard(
                each,
                "queues",
                lambda body: any((i["queue_length"], i["active_count"]) == (2, 1) for i in body["items"]),
            )
            for each in (one, other)
        ]
    assert bodies[0] == bodies[1]
    queue = next(each for each in bodies[0]["items"] if each["active_count"])
    assert (queue["action_ref"], queue["served"]) == ("a", True)


async def test_the_state_follows_every_kind_of_change(live: Live, api: Served) -> None:
    await api.define("a", max_concurrent=2)
    api.join()
    ids = await api.submit_many("a", 5)
    await api.start(*ids[:2])
    assert (await api.http.post(f"/api/v1/executions/{ids[4]}/cancel")).status_code == 202
    state = await live.state()

    async def shows(**expected: object) -> None:
        def as_expected() -> bool:
            queue = state.queues.get(QueueName("a", None))
            return queue is not None and {name: getattr(queue, name) for name in expected} == expected

        with live.stream([], last_event_id=None):
            await until(as_expected, f"the page shows {expected}")

    async def patched(**fields: object) -> None:
        assert (await api.http.patch("/api/v1/actions/a", json=fields)).status_code == 200

    await shows(depth=2, active_count=2, head_id=ids[2], paused=False)
    sums, _ = state.total()
    assert (sums.total_enqueued, sums.total_completed) == (5, 1)
    assert (state.workers.live, state.workers.capacity) == (1, 4)
    await patched(max_concurrent=3, paused=True)
    await shows(depth=2, max_concurrent=3, paused=True)
    await patched(paused=False)
    await shows(depth=1, active_count=3, paused=False)
    await api.define("gone")
    with live.stream([], last_event_id=None):
        await until(lambda: QueueName("gone", None) in state.queues, "a new action")
    assert (await api.http.delete("/api/v1/actions/gone")).status_code in (200, 204)
    with live.stream([], last_event_id=None):
        await until(lambda: QueueName("gone", None) not in state.queues, "a deleted action")
    await ends(live)
    assert [name.action_ref for name in (await live.state()).queues] == ["a"]


async def test_a_stream_gets_status_and_each_stored_progress_of_its_watched_executions(
    live: Live, api: Served
) -> None:
    await api.define("a", max_concurrent=2)
    api.join()
    watched, other = await api.submit_many("a", 2)

    async def report(execution_id: int, done: float) -> None:
        await api.database.fetch(
            "INSERT INTO ledger.progress VALUES ($1, 1, $2, 10, $3, now())"
            " ON CONFLICT (execution_id, attempt, is_last)"
            " DO UPDATE SET done = $2, message = $3, updated_at = now()",
            execution_id,
            done,
            f"page {done:g}",
        )

    with live.stream([watched], last_event_id=None) as stream:
        await live.state()
        await api.start(watched, other)
        received = await heard(stream, "executions", lambda body: body["items"][0]["status"] == "running")
        assert received == {"items": [{"id": watched, "status": "running", "attempt": 1, "progress": None}]}
        for done in (1.0, 2.0):
            await report(other, done=9.0)
            await report(watched, done=done)
            body = await heard(stream, "executions", lambda body: body["items"][0]["progress"] is not None)
            (item,) = body["items"]
            assert (item["id"], item["status"]) == (watched, "running")
            assert item["progress"].pop("updated_at")
            assert item["progress"] == {"done": done, "total": 10, "message": f"page {done:g}"}


async def test_a_client_that_does_not_keep_up_is_dropped_and_the_others_continue(
    live: Live, api: Served
) -> None:
    await api.define("a", max_concurrent=1)
    with live.stream([], last_event_id=None) as slow, live.stream([], last_event_id=None) as quick:
        # What the first poll finds is no change.
        await live.state()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not slow.dropped.is_set():
                await api.submit("a")
                await heard(quick, "queues")
        assert slow.batches.full()
        assert not quick.dropped.is_set()


async def test_without_a_leader_the_rows_are_shown_and_the_page_says_so(
    live: Live, api: Served, health: FixedHealth
) -> None:
    await api.define("a", max_concurrent=1)
    await api.define("k", concurrency_key="/key")
    api.join()
    await api.submit_many("k", 1, parameters={"key": "x"}, run_at="2100-01-01T00:00:00Z")
    ids = await api.submit_many("a", 3)
    await api.until_offered(ids[0])
    asked = await live.state()
    shown = {name: (queue.depth, queue.active_count, queue.head_id) for name, queue in asked.queues.items()}
    without = Live(api.database, cast("Asker", NoLeader()), health, TIMES)
    try:
        state = await without.state()
        of_rows = {name: (each.depth, each.active_count, each.head_id) for name, each in state.queues.items()}
        assert of_rows[QueueName("a", None)] == shown[QueueName("a", None)] == (2, 1, ids[1])
        assert state.workers.live == 1
        assert without.degraded()["leader"].startswith("no leader answered within 2 s")
        with without.stream([], last_event_id=None) as stream:
            overview = await heard(stream, "overview")
        assert overview["trouble"].keys() == {"leader"}
        assert (overview["queue_length"], overview["total_enqueued"]) == (2, None)
    finally:
        await ends(without)


async def test_the_rows_say_the_limit_of_a_key_and_what_holds_a_slot_while_it_waits(
    live: Live, api: Served, health: FixedHealth
) -> None:
    for name, capacity, rank in (("first", 9, 1), ("last", 1, 2)):
        resource = {"capacity": capacity, "rank": rank}
        assert (await api.http.put(f"/api/v1/resources/{name}", json=resource)).is_success
    await api.define("k", concurrency_key="/key", max_concurrent=2, uses=["first", "last"])
    await api.define("open", max_concurrent=None)
    assert (await api.http.put("/api/v1/actions/k/keys/own", json={"max_concurrent": 3})).is_success
    api.join(concurrency=10)
    ids = await api.submit_many("k", 4, parameters={"key": "own"})
    free = await api.submit("open")
    await api.until_offered(ids[0], free["id"])
    found = []
    for asker in (api.leader.asker(), cast("Asker", NoLeader())):
        page = Live(api.database, asker, health, TIMES)
        try:
            queues = (await page.state()).queues
            found.append([queues[QueueName(*name)] for name in (("k", "own"), ("open", None))])
        finally:
            await ends(page)
    for own, unlimited in found:
        assert (own.active_count, own.held_waiting, own.max_concurrent, own.depth) == (1, 2, 3, 3)
        assert own.head_id == ids[1]
        assert (unlimited.active_count, unlimited.held_waiting, unlimited.max_concurrent) == (1, 0, None)


async def test_streams_are_bounded(cut_off: Live) -> None:
    streams = [cut_off.stream([], last_event_id=None) for _ in range(STREAMS_MAX)]
    for stream in streams:
        stream.__enter__()
    with pytest.raises(Unavailable, match="64 streams"), cut_off.stream([], last_event_id=None):
        pass
    for stream in streams:
        stream.__exit__(None, None, None)


async def test_a_stream_that_reconnects_continues_behind_its_last_event_unless_the_polls_had_ended(
    live: Live, api: Served
) -> None:
    await api.define("a", max_concurrent=1)
    with live.stream([], last_event_id=None) as one:
        await live.state()
        async with asyncio.timeout(DEADLINE_SECONDS):
            batch = await one.batches.get()
            await api.submit_many("a", 3)
            missed = await one.batches.get()
        with live.stream([], last_event_id=id_in(batch)) as again:
            assert again.batches.get_nowait() == missed
    await ends(live)
    with live.stream([], last_event_id=id_in(batch)) as later:
        assert events_in(later.batches.get_nowait())[0][0] == "opening"


@pytest.mark.parametrize("unknown", [None, "", "x", "abcd-1", "-", "12345678-99999999999999999999", "ä-²"])
async def test_a_stream_with_an_unknown_id_has_to_load_the_current_state(
    cut_off: Live, unknown: str | None
) -> None:
    with cut_off.stream([], last_event_id=unknown) as stream:
        assert events_in(stream.batches.get_nowait())[0][0] == "opening"


async def test_an_unreachable_database_is_reported_and_ends_no_stream(cut_off: Live) -> None:
    with cut_off.stream([], last_event_id=None) as stream:
        received = await heard(stream, "overview")
        assert received["trouble"].keys() == {"database", "leader"}
        with pytest.raises(Unavailable, match="cannot be read at the moment; database: refused"):
            await cut_off.state()
        assert not stream.dropped.is_set()


async def test_old_values_do_not_pass_for_new_ones_in_an_outage(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cannot(*_: object, **__: object) -> None:
        raise Unavailable("gone")

    with live.stream([], last_event_id=None):
        await live.state()
        monkeypatch.setattr("turnstile.executor.dashboard.live.read_queues", cannot)
        monkeypatch.setattr(live._leader, "_asker", NoLeader())
        readings = live.polls
        await until(lambda: live.polls > readings + 1, "a reading after the outage began")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await live.state()


async def test_a_stream_ends_after_its_duration(cut_off: Live) -> None:
    stream = EventStream(
        cut_off,
        StreamParameters(),
        last_event_id=None,
        stopping=asyncio.Event(),
        refused=asyncio.Event().wait,
        duration_seconds=0.1,
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
