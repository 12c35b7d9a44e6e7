"""Logs of running attempts: bounded, stored piece by piece, and no outage or busy log delays the others."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import Attempt, ExecutionId, WorkerId
from turnstile.worker import gateway
from turnstile.worker.gateway import LogFlusher
from turnstile.worker.logs import LogPiece, LogTail
from turnstile.worker.protocol import Offer, WorkerProtocol


def test_the_last_part_is_kept_and_a_line_says_how_much_was_cut() -> None:
    log = LogTail(10)
    log.write(b"0123456789" * 10)
    text = "[90 bytes before this were cut]\n0123456789"
    assert log.take() == LogPiece(start=0, text=text)
    log.confirm()
    assert log.rest() == LogPiece(start=len(text), text="")


@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(["take", "confirm"])), max_size=40))
def test_the_concatenation_of_all_pieces_is_the_log(steps: list[bytes | str]) -> None:
    log, written = LogTail(10_000), b""
    confirmed = ""
    taken = None
    for step in steps:
        match step:
            case bytes():
                log.write(step)
                written += step
            case "take":
                taken = log.take()
            case _ if taken is not None:
                assert taken.start == len(confirmed)
                confirmed += taken.text
                log.confirm()
                taken = None
            case _:
                pass
    rest = log.rest()
    assert rest.start == len(confirmed)
    assert confirmed + rest.text == written.decode("utf-8", "replace").replace("\0", "\ufffd")


_NUMBERS = count(1)


class FakeProtocol(WorkerProtocol):
    """Keeps the calls of `append_logs`, and answers with `answers`, then with True."""

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
async def flushing(protocol: FakeProtocol) -> AsyncIterator[LogFlusher]:
    flusher = LogFlusher(protocol, interval_seconds=0.001)
    task = asyncio.create_task(flusher.run())
    try:
        yield flusher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def written(flusher: LogFlusher, text: str) -> tuple[Offer, LogTail]:
    offer, log = Offer(execution_id=ExecutionId(next(_NUMBERS)), attempt=Attempt(1)), LogTail(10_000)
    log.write(text.encode())
    flusher.watch(offer, log)
    return offer, log


async def test_a_failed_flush_is_repeated_unchanged() -> None:
    protocol = FakeProtocol()
    protocol.answers = [Unavailable("out"), False, True]
    async with flushing(protocol) as flusher:
        offer, log = written(flusher, "one\n")
        await until(lambda: len(protocol.calls) == 3)
        log.write(b"two\n")
        await until(lambda: len(protocol.calls) == 4)
    assert protocol.calls[:3] == [[(offer, LogPiece(start=0, text="one\n"))]] * 3
    assert protocol.calls[3] == [(offer, LogPiece(start=4, text="two\n"))]


async def test_logs_without_new_text_and_forgotten_logs_are_not_flushed() -> None:
    protocol = FakeProtocol()
    async with flushing(protocol) as flusher:
        written(flusher, "")
        gone, log = written(flusher, "gone\n")
        flusher.forget(gone)
        other, _ = written(flusher, "other\n")
        await until(lambda: bool(protocol.calls))
    assert [offer for call in protocol.calls for offer, _ in call] == [other]
    assert log.rest().text == "gone\n"


async def test_a_statement_is_bounded_and_every_log_gets_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_FLUSHED_ATTEMPTS_MAX", 2)
    protocol = FakeProtocol()
    async with flushing(protocol) as flusher:
        logs = [written(flusher, "x") for _ in range(5)]
        for _, log in logs[:2]:
            log.write(b"busy")
        await until(lambda: len({offer for call in protocol.calls for offer, _ in call}) == 5)
    assert max(len(call) for call in protocol.calls) == 2
