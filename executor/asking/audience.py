"""Those who ask the leader, in its process: keeps their questions, and answers them after a commit.

In: questions of both carriers. Out: replies. A question that came while a turn was under way waits for the
next one, so what was deposed answers nothing (docs/architecture.md). Long answers go on after the following
turns, each for a few milliseconds: no question stops the leader.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.leader.admission import Source
from turnstile.executor.leader.clock import LeaderClock
from turnstile.executor.leader.instrumentation import TurnRecords
from turnstile.executor.leader.ports import Broker, NewestTurn
from turnstile.executor.leader.records import Turn
from turnstile.executor.leader.turns import Leadership, Taken
from turnstile.executor.questions.answering import answer
from turnstile.executor.questions.changes import ChangeLog
from turnstile.executor.questions.estimate import Durations
from turnstile.executor.questions.gates import Steps
from turnstile.executor.questions.protocol import (
    Answered,
    InvalidQuestion,
    LeaderState,
    Unanswered,
    WorkerState,
    pack_answer,
    pack_unanswered,
    read_question,
)
from turnstile.executor.questions.use import UseHistory
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.state import State

_FAILED: Final = Episodes(logging.getLogger(__name__), "question_failed", level=logging.ERROR)

WAITING_MAX: Final = 1000
"""Questions that wait; further ones are told so at once."""
TURN_SECONDS: Final = 0.01
"""How long the steps after one turn may take; the step that passes it is the last."""

Reply = Callable[[bytes], None]


@dataclass(slots=True)
class _Asked:
    data: bytes
    expires_at: float
    reply: Reply
    is_only_asked: bool
    steps: Steps[object] | None = None
    """None: its answer has not begun."""


class Audience:
    """The questions of one executor's leader process. Called in its loop only."""

    def __init__(
        self, executor_id: str, broker: Broker, clock: LeaderClock, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called when this executor begins to lead, and when that is over."""
        self._executor_id = executor_id
        self._on_change = on_change
        self._broker, self._clock = broker, clock
        self._known: Knowledge | None = None
        self._durations = Durations()
        self._records = TurnRecords()
        self.compared: Callable[[], tuple[int, tuple[str, ...]]] = lambda: (0, ())
        """How often memory and rows were compared, and what differed last."""
        self._arrived: deque[_Asked] = deque()
        self._due: deque[_Asked] = deque()
        """Those that came before the present turn began."""

    @property
    def is_leading(self) -> bool:
        """Whether a turn of the present leadership has committed."""
        return self._known is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a question waits for its answer."""
        return bool(self._arrived or self._due)

    @property
    def newest_turn(self) -> NewestTurn | None:
        """The last turn that was committed; None: this executor does not lead."""
        lead = None if self._known is None else self._known.lead
        return None if lead is None else NewestTurn(epoch=lead.epoch, number=lead.number)

    def ask(self, data: bytes, seconds: float, reply: Reply, *, is_only_asked: bool = True) -> None:
        """Take a question; `reply` is called once, unless the asker gave up after `seconds`.

        `is_only_asked` is False for what others are asked as well: then only the leader replies.
        """
        if self._known is None:
            if is_only_asked:
                reply(_unanswered("not_leading", "this executor does not lead"))
        elif len(self._arrived) + len(self._due) >= WAITING_MAX:
            reply(_unanswered("overloaded", f"{WAITING_MAX} questions wait already; ask later"))
        else:
            self._arrived.append(_Asked(data, self._clock.monotonic() + seconds, reply, is_only_asked))
            self._clock.wake()

    # What the leader calls.

    def turn_begins(self) -> None:
        """Note the questions that have come: they are answered after the commit of this turn."""
        self._due.extend(self._arrived)
        self._arrived.clear()
        self._records.begin()

    def traced(self, sources: list[Source]) -> list[Source]:
        """Return the requests of this turn, each with the trace context of its admission."""
        return self._records.traced(sources)

    def turn_ended(self, taken: Taken, out: Decisions) -> None:
        """Note what a turn took: its messages are published, and its inputs acknowledged."""
        self._records.ended(taken, out)

    def turn_committed(self, lead: Leadership, turn: Turn, out: Decisions) -> None:
        """Learn what the turn did, and answer the questions that were asked before it."""
        if self._known is None or self._known.lead is not lead:
            self._known = Knowledge(self, lead, self._durations)
            self._on_change()
        known = self._known
        self._records.committed(lead, out)
        self._durations.learn(out)
        for row in turn.definitions:
            if row.kind == "action" and row.body is None:
                self._durations.forget(row.name)
        known.changes.note(lead.state, out, _refs_of(turn), self._clock.monotonic())
        known.uses.note(lead.state, self._clock.monotonic())
        until = time.perf_counter() + TURN_SECONDS
        # Each in turn for one step, so that a long one delays no other.
        while self._due:
            asked = self._due.popleft()
            if asked.expires_at > self._clock.monotonic() and not self._step(known, asked):
                self._due.append(asked)
            if time.perf_counter() >= until:
                return

    def leadership_over(self) -> None:
        """Tell those who wait that this executor does not lead."""
        was_leading, self._known = self.is_leading, None
        self.turn_begins()
        due, self._due = self._due, deque()
        for asked in due:
            if asked.is_only_asked:
                asked.reply(_unanswered("not_leading", "this executor does not lead any more"))
        if was_leading:
            self._on_change()

    def _step(self, known: "Knowledge", asked: _Asked) -> bool:
        """Take one step of an answer; return whether it was the last."""
        try:
            if asked.steps is None:
                asked.steps = answer(read_question(asked.data), known)
            next(asked.steps)
        except StopIteration as end:
            lead = known.lead
            asked.reply(
                pack_answer(Answered(epoch=lead.epoch, turn=lead.number, at=lead.state.now, body=end.value))
            )
        except InvalidQuestion as error:
            asked.reply(_unanswered("failed", str(error)))
        except Exception as error:  # noqa: BLE001
            # A question must not stop the leader, whatever is wrong with the answer.
            _FAILED.broke(type(error).__name__, error)
            asked.reply(_unanswered("failed", f"the leader could not answer: {type(error).__name__}"))
        else:
            return False
        return True

    # What it tells of its process.

    def leader_state(self, lead: Leadership, led_since: float) -> LeaderState:
        """Return the state of the leader itself."""
        comparisons, differences = self.compared()
        state, queues = lead.state, [q for a in lead.state.actions.values() for q in a.queues.values()]
        return LeaderState(
            executor_id=self._executor_id, epoch=lead.epoch, turn=lead.number,
            led_seconds=self._clock.monotonic() - led_since, has_broker=self._broker.is_open,
            actions=len(state.actions), waiting=sum(queue.length for queue in queues),
            delayed=sum(queue.delayed for queue in queues),
            at_workers=sum(len(worker.held) for worker in state.workers.values()),
            workers=len(state.workers), unfinished=lead.is_unfinished, events_stored=len(lead.outbox.rows),
            batches_unpublished=len(lead.backlog), parameters_bytes=lead.requests_bytes,
            messages_refused=lead.sessions.refused, comparisons=comparisons, differences=differences,
        )  # fmt: skip

    def now(self) -> float:
        """Return the present instant of the leader's clock."""
        return self._clock.monotonic()


class Knowledge:
    """What is known in one leadership, as `answering.Known` describes it."""

    def __init__(self, audience: Audience, lead: Leadership, durations: Durations) -> None:
        self.lead = lead
        self.durations = durations
        self.changes = ChangeLog(f"{lead.epoch}")
        self.uses = UseHistory()
        self._audience = audience
        self._led_since = audience.now()

    @property
    def state(self) -> State:
        """The state of the scheduler."""
        return self.lead.state

    def workers(self) -> Iterable[WorkerState]:
        """Yield all workers."""
        now = self._audience.now()
        for session in self.lead.sessions.all():
            row, worker = session.row, self.lead.state.workers.get(session.row.worker_id)
            held = [] if worker is None else worker.held.values()
            yield WorkerState(
                worker_id=row.worker_id, name=row.name, session=row.session, pools=row.pools,
                actions=row.actions, concurrency=row.concurrency,
                running=sum(each.started_at is not None for each in held), is_taking=row.is_taking,
                is_draining=row.is_draining, is_answered=session.is_answered,
                is_lost=session.is_lost,
                lease_seconds=row.lease_seconds, lease_left_seconds=session.lease_until - now,
                heard_seconds_ago=now - session.heartbeat_at if session.heartbeat else None,
                registered_at=row.registered_at, draining_at=row.draining_at,
                draining_count=row.draining_count, not_ready=row.not_ready,
                about={k: each for k, each in row.about.items() if not isinstance(each, list | dict)},
            )  # fmt: skip

    def leader(self) -> LeaderState:
        """Return the state of the leader itself."""
        return self._audience.leader_state(self.lead, self._led_since)

    def monotonic(self) -> float:
        """Return the present instant of the leader's clock."""
        return self._audience.now()


def _unanswered(why: Literal["not_leading", "overloaded", "failed"], message: str) -> bytes:
    return pack_unanswered(Unanswered(why=why, message=message))


def _refs_of(turn: Turn) -> Iterable[str]:
    """Yield the actions whose definition, or that of a key, this turn changed."""
    for row in turn.definitions:
        body: Any = row.body
        if row.kind == "action":
            yield row.name
        elif row.kind == "key" and body is not None:
            yield body["action_ref"]
