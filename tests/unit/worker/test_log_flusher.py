"""Logs come to the record while attempts run; neither an outage nor a talkative one holds up the others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

import pytest

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import Attempt, ExecutionId, WorkerId
from turnstile.worker import log_flusher
from turnstile.worker.attempt_log import LogPiece, LogTail
from turnstile.worker.log_flusher import LogFlusher
from turnstile.worker.record import Offer, Record

_NUMBERS = count(1)
_DEADLINE_SECONDS = 10.0


class Kept(Record):
    """Keeps what it is told; fails as often as it is asked to."""

    def __init__(self) -> None:
        super().__init__(Database("postgresql://nowhere/", application_name="test"), WorkerId("w"))
        self.calls: list[list[tuple[Offer, LogPiece]]] = []
        self.answers: list[bool | Exception] = []

    async def append_logs(self, pieces: Sequence[tuple[Offer, LogPiece]]) -> bool:
        self.calls.append(list(pieces))
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def flushing(record: Kept) -> AsyncIterator[LogFlusher]:
    flusher = LogFlusher(record, interval_seconds=0.001)
    task = asyncio.create_task(flusher.run())
    try:
        yield flusher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while not holds():
            await asyncio.sleep(0.001)


def written(flusher: LogFlusher, text: str) -> tuple[Offer, LogTail]:
    offer, log = Offer(execution_id=ExecutionId(next(_NUMBERS)), attempt=Attempt(1)), LogTail(10_000)
    log.write(text.encode())
    flusher.watch(offer, log)
    return offer, log


async def test_what_the_record_did_not_answer_for_is_said_again_as_it_was() -> None:
    record = Kept()
    record.answers = [Unavailable("out"), False, True]
    async with flushing(record) as flusher:
        offer, log = written(flusher, "one\n")
        await until(lambda: len(record.calls) == 3)
        log.write(b"two\n")
        await until(lambda: len(record.calls) == 4)
    assert record.calls[:3] == [[(offer, LogPiece(start=0, text="one\n"))]] * 3
    assert record.calls[3] == [(offer, LogPiece(start=4, text="two\n"))]


async def test_what_has_nothing_new_is_not_said_and_what_is_forgotten_neither() -> None:
    record = Kept()
    async with flushing(record) as flusher:
        quiet, _ = written(flusher, "")
        gone, log = written(flusher, "gone\n")
        flusher.forget(gone)
        other, _ = written(flusher, "other\n")
        await until(lambda: bool(record.calls))
    assert [offer for call in record.calls for offer, _ in call] == [other]
    assert quiet != other
    assert log.rest().text == "gone\n"


async def test_a_statement_is_bounded_and_every_log_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_flusher, "_ATTEMPTS_MAX", 2)
    record = Kept()
    async with flushing(record) as flusher:
        logs = [written(flusher, "x") for _ in range(5)]
        for _, log in logs[:2]:
            log.write(b"talkative")
        await until(lambda: len({offer for call in record.calls for offer, _ in call}) == 5)
    assert max(len(call) for call in record.calls) == 2
