"""When the leader answers: after the commit of a turn that began after the question came, and never else."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import pytest

from turnstile.executor.asking import audience as audience_module
from turnstile.executor.asking.audience import WAITING_MAX, Audience
from turnstile.executor.leader.clock import LeaderClock
from turnstile.executor.leader.leadership import Leader
from turnstile.executor.leader.ports import (
    Delivery,
    Deposed,
    InboxRow,
    NewestTurn,
    Outcome,
    Publication,
    StatusChanged,
    StoredRequest,
)
from turnstile.executor.leader.records import EventRow, Known, Loaded, Turn
from turnstile.executor.leader.turns import Turns
from turnstile.executor.questions.protocol import (
    Execution,
    Leading,
    Live,
    Stats,
    pack_question,
)

SECONDS = 10.0


class OneStore:
    """A database of one executor. A write waits for `commits`, and is lost once `is_deposed`."""

    def __init__(self) -> None:
        self.commits = asyncio.Semaphore(0)
        self.is_free = True
        """Writes wait for nothing."""
        self.is_deposed = False
        self.sent = 0
        self.committed = 0

    async def take_over(self, executor_id: str, *, above: int = 0, only_if_leading: bool = False) -> int:
        return above + 1

    async def announce(self, executor_id: str, *, has_broker: bool) -> bool:
        return False

    async def resign(self) -> None:
        return None

    async def load(self, epoch: int) -> Loaded:
        return Loaded(
            epoch=epoch, now=1000.0, reserved_id=1, low_id=1, definitions=[], waiting=[], grants=[], live=[],
            workers=[], events=[], early_cancels=[], checkpoint=None, journals=[], instant_max=1000.0,
        )  # fmt: skip

    async def write(self, turn: Turn) -> None:
        self.sent += 1
        await asyncio.sleep(0)
        if not self.is_free:
            await self.commits.acquire()
        if self.is_deposed:
            raise Deposed
        self.committed += 1

    async def newest_turn(self) -> NewestTurn | None:
        return None

    async def leader_seen(self) -> tuple[NewestTurn | None, bool]:
        # Another one leads, and goes on.
        return (NewestTurn(epoch=9, number=self.sent), False) if self.is_deposed else (None, True)

    async def look_up(self, *_: Sequence[Any]) -> Mapping[UUID | str | int, Known]:
        return {}

    async def inbox(self, count: int) -> Sequence[InboxRow]:
        return []

    async def outcomes(self, execution_ids: Sequence[int]) -> Mapping[int, Outcome]:
        return {}

    async def requests_of(self, execution_ids: Sequence[int]) -> Mapping[int, StoredRequest]:
        return {}

    async def traces_of(self, execution_ids: Sequence[int]) -> Mapping[int, str]:
        return {}

    async def events(self, after_id: int) -> Sequence[EventRow]:
        return []


class NoMessages:
    """A broker that has nothing and takes everything."""

    is_open = True

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def take(self, queue: str, count: int) -> list[Delivery]:
        return []

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        return None

    async def publish(self, publications: Sequence[Publication]) -> list[bool]:
        return [True] * len(publications)

    async def publish_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        return None

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        return None


class Asked:
    """A leader, and the replies to what was asked."""

    def __init__(self, store: OneStore) -> None:
        self.store = store
        self.changes = 0
        clock = LeaderClock()
        self.audience = Audience("e", NoMessages(), clock, self._changed)
        self.leader = Leader(Turns("e", store, NoMessages(), clock, audience=self.audience))

    def _changed(self) -> None:
        self.changes += 1

    def ask(self, question: Any = None, *, seconds: float = SECONDS, is_only_asked: bool = True) -> list[Any]:
        replies: list[Any] = []
        data = question if isinstance(question, bytes) else pack_question(question or Leading())
        self.audience.ask(
            data,
            seconds,
            lambda reply: replies.append(msgspec.json.decode(reply)),
            is_only_asked=is_only_asked,
        )
        return replies

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0)


@asynccontextmanager
async def asked() -> AsyncIterator[Asked]:
    one = Asked(OneStore())
    running = asyncio.create_task(one.leader.run())
    try:
        await one.until(lambda: one.audience.is_leading)
        yield one
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_an_answer_waits_for_a_turn_that_began_after_the_question() -> None:
    async with asked() as one:
        one.store.is_free = False
        before = one.ask()
        sent = one.store.sent
        await one.until(lambda: one.store.sent > sent)
        # The statement of the turn that answers the first one is under way.
        during = one.ask()
        sent = one.store.sent
        one.store.commits.release()
        await one.until(lambda: one.store.sent > sent)
        assert (len(before), len(during)) == (1, 0)
        answered_in = before[0]["turn"]
        one.store.commits.release()
        await one.until(lambda: during)
        assert during[0]["turn"] == answered_in + 1


async def test_a_leader_that_was_deposed_answers_nothing() -> None:
    async with asked() as one:
        one.store.is_free = False
        sent = one.store.sent
        mine, shared = one.ask(), one.ask(is_only_asked=False)
        await one.until(lambda: one.store.sent > sent)
        later = one.ask()
        one.store.is_deposed = True
        one.store.commits.release()
        await one.until(lambda: mine and later)
        assert [reply[0]["unanswered"]["why"] for reply in (mine, later)] == ["not_leading"] * 2
        # Others were asked as well: the one that leads replies.
        assert shared == []
        assert not one.audience.is_leading
        assert one.ask()[0]["unanswered"]["why"] == "not_leading"
        assert one.ask(is_only_asked=False) == []
        assert one.changes == 2


async def test_an_idle_leader_answers_without_waiting_for_its_next_renewal() -> None:
    async with asked() as one:
        for _ in range(20):
            async with asyncio.timeout(0.2):
                await answered(one)


async def answered(one: Asked) -> None:
    reply = one.ask()
    await one.until(lambda: reply)


async def test_a_question_too_many_is_told_so() -> None:
    async with asked() as one:
        replies = [one.ask() for _ in range(WAITING_MAX + 1)]
        assert replies[-1][0]["unanswered"]["why"] == "overloaded"
        await one.until(lambda: all(replies))
        assert all(reply[0].get("unanswered") is None for reply in replies[:-1])


async def test_a_question_that_nobody_waits_for_any_more_is_not_answered() -> None:
    async with asked() as one:
        late, following = one.ask(seconds=-1.0), one.ask()
        await one.until(lambda: following)
        assert late == []
        assert not one.audience.is_waiting


@pytest.mark.parametrize("data", [b"nonsense", b'{"ask": "Stats", "question": {"limit": 0}}'])
async def test_what_cannot_be_answered_fails_alone(data: bytes) -> None:
    async with asked() as one:
        wrong, right = one.ask(data), one.ask()
        await one.until(lambda: right)
        assert wrong[0]["unanswered"]["why"] == "failed"


async def test_a_fault_of_an_answer_stops_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise KeyError("a fault")

    async with asked() as one:
        monkeypatch.setattr(audience_module, "answer", broken)
        wrong = one.ask()
        await one.until(lambda: wrong)
        assert wrong[0]["unanswered"]["why"] == "failed"
        monkeypatch.undo()
        right = one.ask()
        await one.until(lambda: right)
        assert right[0].get("unanswered") is None


async def test_a_long_answer_takes_several_turns_and_short_ones_pass_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audience_module, "TURN_SECONDS", 0.0)
    async with asked() as one:
        long = one.ask(Live(executions=tuple(Execution(id=n, action_ref="a") for n in range(1000))))
        short = one.ask(Stats())
        committed = one.store.committed
        await one.until(lambda: short)
        assert not long
        await one.until(lambda: long)
        # One step after each turn.
        assert one.store.committed - committed >= 5
        assert len(long[0]["body"]) == 1000
