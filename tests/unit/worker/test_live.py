"""Logs and progress of running attempts: in batches, each piece once, the rest with the end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.traffic import in_background, until
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import Grant
from turnstile.common.report_wire import (
    EXECUTION_LOG,
    LogPiece,
    ProgressReport,
    decode_log,
    decode_progress,
)
from turnstile.common.worker_protocol import Offer, Sender
from turnstile.worker.live import LiveReports
from turnstile.worker.logs import LogTail
from turnstile.worker.progress import Progress

SENDER = Sender(worker_id="w", session=1, secret="s")


class Published:
    """What was published; or nothing, while the broker is out."""

    def __init__(self) -> None:
        self.pieces: list[LogPiece] = []
        self.progress: list[ProgressReport] = []
        self.tries = 0
        self.is_out = False
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        self.live = LiveReports(self.publish, lambda: SENDER, call_soon, log_seconds=0.01)

    async def publish(self, kind: str, body: bytes) -> None:
        await asyncio.sleep(0)
        self.tries += 1
        if self.is_out:
            raise Unavailable("out")
        if kind == EXECUTION_LOG:
            self.pieces += decode_log(body)[1]
        else:
            self.progress += decode_progress(body)[1]


def offer(number: int) -> Offer:
    return Offer(execution_id=number, grant=Grant(1, number), attempt=1, action_ref="a", parameters=b"{}")


@pytest.fixture
async def published() -> AsyncIterator[Published]:
    published = Published()
    async with in_background(published.live.run()):
        yield published


async def test_a_log_is_published_in_pieces_and_its_rest_goes_with_the_end(published: Published) -> None:
    log = LogTail(1000)
    published.live.watch(offer(1), log)
    log.write_line("one")
    await until(lambda: len(published.pieces) == 1)
    log.write_line("two")
    await until(lambda: len(published.pieces) == 2)
    log.write_line("three")
    rest = published.live.rest_of(Grant(1, 1))
    assert [(each.start, each.text) for each in published.pieces] == [(0, "one\n"), (4, "two\n")]
    assert rest is not None
    assert (rest.start, rest.text) == (8, "three\n")
    assert published.live.rest_of(Grant(1, 1)) is None


async def test_a_piece_that_may_not_have_arrived_is_repeated_from_the_same_character(
    published: Published,
) -> None:
    published.is_out = True
    log = LogTail(1000)
    published.live.watch(offer(1), log)
    log.write_line("one")
    await until(lambda: published.tries >= 2)
    log.write_line("two")
    published.is_out = False
    await until(lambda: len(published.pieces) == 2)
    assert [(each.start, each.text) for each in published.pieces] == [(0, "one\n"), (4, "two\n")]


async def test_what_was_not_confirmed_goes_with_the_end_too(published: Published) -> None:
    published.is_out = True
    log = LogTail(1000)
    published.live.watch(offer(1), log)
    log.write_line("one")
    await until(lambda: published.tries >= 1)
    log.write_line("two")
    rest = published.live.rest_of(Grant(1, 1))
    assert rest is not None
    assert (rest.start, rest.text) == (0, "one\ntwo\n")


async def test_of_several_progress_reports_the_newest_is_published(published: Published) -> None:
    published.is_out = True
    for done in range(5):
        published.live.report(offer(1), Progress(done=done, total=5.0))
    await until(lambda: published.tries >= 1)
    published.is_out = False
    await published.live.finish()
    assert [each.done for each in published.progress] == [4.0]


async def test_after_the_lease_nothing_of_its_runs_is_published(published: Published) -> None:
    log = LogTail(1000)
    published.live.watch(offer(1), log)
    published.live.report(offer(1), Progress(done=1.0))
    published.live.clear()
    log.write_line("late")
    other = LogTail(1000)
    published.live.watch(offer(2), other)
    other.write_line("one")
    await until(lambda: bool(published.pieces))
    await published.live.finish()
    assert {each.execution_id for each in published.pieces} == {2}
    assert not published.progress


async def test_the_newest_progress_goes_with_the_end_whether_it_was_published_or_not(
    published: Published,
) -> None:
    live = published.live
    live.watch(offer(1), LogTail(1000))
    for done in (1.0, 2.0):
        live.report(offer(1), Progress(done=done, total=3.0, message="m"))
    await until(lambda: bool(published.progress), "a progress")
    last = live.last_progress_of(offer(1).grant)
    assert last is not None
    assert (last.done, last.total, last.message) == (2.0, 3.0, "m")
    live.rest_of(offer(1).grant)
    live.report(offer(1), Progress(done=3.0))
    assert live.last_progress_of(offer(1).grant) is None
