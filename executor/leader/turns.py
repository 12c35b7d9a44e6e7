"""Turns: one after another, each a short story.

    take what is there > decide > write in one transaction > publish > acknowledge

Nothing is undone. A write whose outcome is unknown is settled by the turn's own row; everything else that
goes wrong ends in a load, after which the same inputs come again. So every input may come twice, and what
was published had been committed before (P5, P6).
"""

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from msgspec import structs

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import CancelAttempt, Heartbeat, Hello, Report
from turnstile.executor.leader.admission import Admission, Source, source_of
from turnstile.executor.leader.commands import Definitions, undivided
from turnstile.executor.leader.dispatcher import send_changes, send_offers
from turnstile.executor.leader.loading import state_of
from turnstile.executor.leader.minutes import Minutes
from turnstile.executor.leader.outbox import RESULT_BYTES_MAX, Outbox, changes_of, event_of
from turnstile.executor.leader.ports import (
    Broker,
    BrokerUnavailable,
    Clock,
    DefinitionCommand,
    Delivery,
    Deposed,
    ExecutionCommand,
    InboxRow,
    NewestTurn,
    OutcomeUnknown,
    Probe,
    Publication,
    Request,
    Store,
    StoredRequest,
    TurnRefused,
)
from turnstile.executor.leader.records import EndedRow, Loaded, Turn
from turnstile.executor.leader.registration import register
from turnstile.executor.leader.schedules import Schedules
from turnstile.executor.leader.sessions import COMPLETIONS, HEARTBEATS, Sessions
from turnstile.executor.leader.watchdog import GRACE_SECONDS, Watchdog
from turnstile.executor.leader.writing import rows_of
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.decisions import Decisions, Finished
from turnstile.executor.queue_manager.inputs import Input
from turnstile.executor.queue_manager.state import State

REQUESTS: Final = "executor.requests"
SHARES: Final = {REQUESTS: 500, COMPLETIONS: 2000, HEARTBEATS: 1000}
"""How many messages of each queue one turn takes, so that none waits for the others for long."""
_INBOX_SHARE: Final = 200
_REQUESTS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Budget of the parameters that are kept in memory; others are read when their execution was granted."""
_REQUEST_BYTES: Final = 300
"""What a kept request needs beside its parameters."""
_RAISE_SECONDS: Final = 10.0
"""How often a leader takes over again because of what workers have seen; each time it loads."""
_INVALID: Final = {
    "type": "execution.rejected", "code": "invalid_message", "message": "the database refuses this command",
}  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Durations of a leadership, in seconds."""

    renewal: float = 0.25
    """An empty turn after so long."""
    certain: float = 2.0
    """How long after the sending of its last committed turn a leader answers heartbeats."""
    leadership: float = 3.0
    """Without a new turn row for so long, a candidate takes over; the leader consumes nothing by then."""
    poll: float = 0.25
    """How often a candidate looks, and a leader reads its inbox and tries the broker again."""
    event: float = 1.0
    """How long a turn waits for the confirmation of events."""
    stop: float = GRACE_SECONDS
    """How long a worker has to stop an overdue attempt, and again after a cancel."""


class Reload(Exception):
    """Memory may differ from the rows: take over again, above this epoch, and load."""

    def __init__(self, above: int = 0) -> None:
        super().__init__(above)
        self.above = above


@dataclass(slots=True)
class Taken:
    """What one turn took."""

    deliveries: list[Delivery] = field(default_factory=list)
    commands: list[InboxRow] = field(default_factory=list)

    decided: list[int] = field(default_factory=list)
    """Rows of the inbox that this turn deletes."""

    def keep(self, unfinished: Set[UUID]) -> None:
        """Leave commands in the inbox that this turn has only begun."""
        left = {each.id for each in self.commands if each.command_id in unfinished}
        self.decided = [each for each in self.decided if each not in left]

    @property
    def body_ids(self) -> list[UUID]:
        """The large bodies of requests that were stored before this turn."""
        requests = (each.body for each in self.deliveries if isinstance(each.body, Request))
        return [each.body_id for each in requests if each.body_id is not None]

    def __len__(self) -> int:
        return len(self.deliveries) + len(self.commands)

    def __iter__(self) -> Iterator[Delivery | InboxRow]:
        yield from self.deliveries
        yield from self.commands


class Leadership:
    """One leadership: the state, and all that is remembered beside it until the next load."""

    def __init__(
        self, loaded: Loaded, clock: Clock, asked_at: float, stop_seconds: float = GRACE_SECONDS,
        *, event_result_bytes_max: int = RESULT_BYTES_MAX,
    ) -> None:  # fmt: skip
        self.epoch = loaded.epoch
        self.number = 0
        """Of the last turn of this epoch that was committed."""
        self.previous: NewestTurn | None = None
        """The newest turn row before the first turn of this epoch."""
        self.state, self.memory = state_of(loaded)
        # A clock that was set back does not stop the time.
        self._offset = max(loaded.now, loaded.instant_max) - asked_at
        now = clock.monotonic()
        self.sessions = Sessions(loaded.epoch, self.state, loaded.workers, now, offset=self._offset)
        self.definitions = Definitions(loaded.definitions, loaded.action_ids)
        self.schedules = Schedules(loaded.schedules, self.definitions.of_kind("schedule"))
        self.admission = Admission(loaded.early_cancels, loaded.singletons, self.state, self.definitions)
        self.outbox = Outbox(loaded.events, loaded.newest_event_id, result_bytes_max=event_result_bytes_max)
        self.watchdog = Watchdog(stop_seconds)
        self.minutes = Minutes(loaded.epoch, self.state, max(loaded.now, loaded.instant_max))
        self.carried: list[Input] = []
        """Inputs that follow from the decisions of the last turn."""
        self.is_unfinished = False
        self.requests: dict[int, StoredRequest] = {}
        """What offers need of executions that were admitted lately."""
        self.requests_bytes = 0
        self.traces: dict[int, str | None] = {}
        """The trace contexts of what this leadership has offered."""
        self.backlog: deque[list[Publication]] = deque()
        """Batches that are to be published, in order."""
        self.unacknowledged: list[Delivery] = []
        self._clock = clock

    def now(self) -> float:
        """Return the database's clock, carried forward by this process's own."""
        return self._clock.monotonic() + self._offset


class Audience(Protocol):
    """Who asks what only the leader knows.

    An answer leaves after the commit of a turn that began after the question came: a leader that was deposed
    meanwhile answers nothing.
    """

    @property
    def is_waiting(self) -> bool:
        """Whether a question waits for its answer."""

    def turn_begins(self) -> None:
        """Note the questions that have come: they are answered after the commit of this turn."""

    def traced(self, sources: list[Source]) -> list[Source]:
        """Return the requests of this turn, each with the trace context of its admission."""

    def turn_committed(self, lead: Leadership, turn: Turn, out: Decisions) -> None:
        """Answer them from what is committed now; must not take longer than some milliseconds."""

    def turn_ended(self, taken: Taken, out: Decisions) -> None:
        """Note what a turn took: its messages are published, and its inputs acknowledged."""

    def leadership_over(self) -> None:
        """Tell those who wait that this executor does not lead."""


class Auditor(Protocol):
    """Who compares the memory with the rows."""

    async def look(self, state: State) -> Sequence[str]:
        """Begin a comparison that is due; return what the last one found. It comes between two turns."""


class Turns:
    """The turns of one executor, also of several leaderships: what has failed is remembered after a load."""

    def __init__(
        self, executor_id: str, store: Store, broker: Broker, clock: Clock, times: Times | None = None,
        *, audience: Audience | None = None, auditor: Auditor | None = None,
    ) -> None:  # fmt: skip
        self.executor_id = executor_id
        self.store, self.broker, self.clock = store, broker, clock
        self.times = times or Times()
        self.audience, self.auditor = audience, auditor
        self.has_commands = False
        """The inbox is read in the next turn, whatever the time is."""
        self.committed_at = 0.0
        """When the last committed turn was sent."""
        self.began_at = 0.0
        self._tried_at = 0.0
        """When the broker, or the inbox, was tried last."""
        self._raised_at = -math.inf
        """When it took over again because of what workers have seen."""
        self._singly = 0
        """How many inputs are still taken alone, after a turn was refused."""
        self._publishing: asyncio.Future[None] | None = None
        """Publishes what the last turn decided, while the next one is taken and decided."""
        self._draining: asyncio.Future[None] | None = None
        self._poison: set[UUID] = set()
        """Keys of the messages and commands that alone made a turn fail, also after a load."""
        self._suspects: set[UUID] = set()
        """Keys of those that alone made a turn fail once."""

    async def stop_publishing(self) -> None:
        """Give up what is under way: the leadership is over."""
        tasks = [task for task in (self._publishing, self._draining) if task is not None]
        self._publishing = self._draining = None
        for task in tasks:
            task.cancel()
        # Also the error of one that has ended is retrieved.
        await asyncio.gather(*tasks, return_exceptions=True)

    async def next_turn(self, lead: Leadership) -> None:
        """Take one turn, or rest until there may be something to do. Raises Deposed, Reload."""
        now = self.clock.monotonic()
        self._check_leadership(lead, now)
        if self.auditor is not None and await self.auditor.look(lead.state):
            raise Reload
        if now - self.began_at > lead.sessions.lease_min() / 3:
            # For this long no worker was heard: this process was paused, or a server did not answer.
            lead.sessions.renew_all(now)
        self.began_at = now
        is_polling = now - self._tried_at >= self.times.poll
        if is_polling:
            self._tried_at = now
            await self._try_broker(lead)
        has_commands, self.has_commands = self.has_commands, False
        taken = await self._take(lead, is_polling=is_polling or has_commands)
        # There may be more: while commands arrive, every turn reads them.
        self.has_commands |= bool(taken.commands)
        if taken or taken.decided or self._has_work(lead, now) or (is_polling and lead.backlog):
            await self._turn(lead, taken)
        else:
            await self.clock.wait(self._rest(lead))

    def _check_leadership(self, lead: Leadership, now: float) -> None:
        if lead.sessions.epoch_above and now - self._raised_at >= _RAISE_SECONDS:
            self._raised_at = now
            raise Reload(lead.sessions.epoch_above)
        if now - self.committed_at > self.times.leadership:
            # Another executor may lead by now: what this one has taken must not stay with it.
            raise Reload

    async def _try_broker(self, lead: Leadership) -> None:
        if not self.broker.is_open:
            with suppress(BrokerUnavailable):
                await self.broker.open()
                lead.sessions.renew_all(self.clock.monotonic())
        if not self.broker.is_open and await self.persist(
            lambda: self.store.announce(self.executor_id, has_broker=False)
        ):
            # Another executor has both servers, so this one lets it lead.
            await self.store.resign()
            raise Deposed

    def _has_work(self, lead: Leadership, now: float) -> bool:
        timers = lead.state.timers
        return (
            now - self.committed_at >= self.times.renewal or lead.watchdog.is_due(now) or lead.is_unfinished
            or bool(lead.carried) or lead.outbox.has_more or lead.sessions.has_lost
            or (self.audience is not None and self.audience.is_waiting)
            or bool(timers and timers[0].at <= lead.now()) or lead.schedules.next_at <= lead.now()
        )  # fmt: skip

    def _rest(self, lead: Leadership) -> float:
        rest = self.committed_at + self.times.renewal - self.clock.monotonic()
        if lead.state.timers:
            rest = min(rest, lead.state.timers[0].at - lead.now())
        rest = min(rest, lead.schedules.next_at - lead.now())
        return max(rest, 0.001)

    async def _take(self, lead: Leadership, *, is_polling: bool) -> Taken:
        """Take what has arrived, of each source its share; one input alone after a turn was refused."""
        taken = Taken()
        for queue, share in SHARES.items():
            if self._singly and len(taken):
                return taken
            taken.deliveries += self.broker.take(queue, 1 if self._singly else share)
        if is_polling and not (self._singly and len(taken)):
            count = 1 if self._singly else _INBOX_SHARE
            commands = undivided(await self.persist(lambda: self.store.inbox(count)))
            taken.commands += [each for each in commands if each.body is not None]
            taken.decided = [command.id for command in commands]
        return taken

    async def _turn(self, lead: Leadership, taken: Taken) -> None:
        if self.audience is not None:
            self.audience.turn_begins()
        self._bury(lead, taken)
        _passed(CrashPoint.TURN_TAKEN, taken)
        try:
            inputs = await self._inputs(lead, taken)
            out = self._decide(lead, inputs)
            lead.admission.show_grants()
            taken.keep(lead.definitions.unfinished)
            _passed(CrashPoint.TURN_DECIDED, taken)
            rows = rows_of(lead.state, lead.memory, out)
            lead.minutes.add(lead.state, out)
        except (AssertionError, KeyError, IndexError, ValueError) as broken:
            self._refuse(taken)
            raise Reload from broken
        traces = await self._traces_of(lead, out)
        # A new leader publishes only the events of the newest turn again.
        await self.published()
        events = [_event(lead, *each, traces) for each in zip(out.finished, rows.ended, strict=True)]
        lead.outbox.store(
            event for event, end in zip(events, out.finished, strict=True) if end.report is None
        )
        answers = [*lead.admission.answers, *lead.definitions.answers]
        turn = Turn(
            epoch=lead.epoch, number=lead.number + 1, at=lead.state.now, **rows.fields(),
            workers=list(lead.sessions.rows.values()),
            schedules=[row for row in lead.schedules.changed.values() if row is not None],
            schedules_over=[name for name, row in lead.schedules.changed.items() if row is None],
            definitions=lead.definitions.rows, action_ids=lead.definitions.new_action_ids,
            audit=lead.definitions.log.rows, early_cancels=lead.admission.early_rows,
            early_cancels_over=lead.admission.early_over, singletons=lead.admission.singletons.rows,
            singletons_over=lead.admission.singletons.over, events=lead.outbox.take_new(),
            events_over=lead.outbox.take_confirmed(),
            answers=[(key, json.dumps(body).encode()) for key, body in answers],
            outcomes=[(key, json.dumps(body).encode()) for key, body in lead.admission.outcomes],
            inbox_begun=lead.definitions.begun,
            inbox_over=taken.decided, bodies_over=taken.body_ids, minutes=lead.minutes.take(),
        )  # fmt: skip
        turn = await self._write(lead, turn, taken)
        if self.audience is not None:
            self.audience.turn_committed(lead, turn, out)
        self._singly = max(self._singly - len(taken), 0)
        self.broker.announce_changes(changes_of(out, turn.ended))
        events = [
            _event(lead, *each, traces)
            for each in zip(out.finished, turn.ended, strict=True)
            if each[0].report is not None
        ]
        _passed(CrashPoint.TURN_WRITTEN, taken)
        await self._collect(lead, out, turn)
        self._publishing = asyncio.ensure_future(self._publish(lead, taken, events, out))
        # It writes to the connections before the next turn begins.
        await asyncio.sleep(0)

    async def last_turns(self, lead: Leadership) -> None:
        """Write what the minute that has begun has counted, before another executor leads."""
        lead.minutes.close(lead.state, lead.state.now)
        while lead.minutes.is_due:
            await self._turn(lead, Taken())

    async def _inputs(self, lead: Leadership, taken: Taken) -> list[Input]:
        """Return the inputs of a turn: what time and the last turn led to, then what was taken, in order."""
        now = self.clock.monotonic()
        inputs, lead.carried = lead.carried, []
        inputs += lead.watchdog.inputs(lead.state, lead.sessions, now)
        if lead.sessions.has_lost:
            # They are told, by messages of the last turn, before their work may run elsewhere.
            await self.published()
            if not lead.backlog:
                inputs += lead.sessions.lost(now)
        sources = [source_of(each) for each in taken if is_request(each)]
        if self.audience is not None:
            sources = self.audience.traced(sources)
        occurrences = lead.schedules.due(max(lead.now(), lead.state.now))
        missing = lead.admission.missing([*occurrences, *sources], lead.schedules.previous_ids)
        if any(missing):
            lead.admission.learn(await self.persist(lambda: self.store.look_up(*missing)))
        lead.admission.expire_early(lead.state.now)
        for occurrence in occurrences:
            inputs += lead.schedules.inputs(occurrence, lead.admission, lead.state.now)
        following = iter(sources)
        for each in taken:
            match each.body:
                case Hello() as hello:
                    hello, welcome, defined = register(hello, lead.definitions, lead.sessions, lead.state)
                    inputs += [*defined, *lead.sessions.hello(hello, now, welcome)]
                case Heartbeat() as heartbeat:
                    inputs += lead.sessions.heartbeat(heartbeat, now, is_certain=self._is_certain(now))
                case Report() as report:
                    inputs += lead.sessions.report(report, now, each)
                case Probe() as probe:
                    assert isinstance(each, Delivery)
                    lead.sessions.probed(each.queue, probe, now)
                case DefinitionCommand() as command:
                    assert isinstance(each, InboxRow)
                    inputs += self._of_definition(lead, each, command)
                case _:
                    inputs += lead.admission.inputs(next(following), max(lead.now(), lead.state.now))
        served = (name for session in lead.sessions.all() for name in session.row.pools)
        inputs += lead.definitions.unused_pools(served, has_changed=bool(lead.sessions.rows))
        return inputs

    def _of_definition(self, lead: Leadership, row: InboxRow, command: DefinitionCommand) -> Iterable[Input]:
        if command.kind != "worker":
            return lead.definitions.inputs(row, command, lead.state)
        given = command.definition or {}
        if "no_reclaim" in given:
            # Every lease begins anew when the broker is there again, and when another executor leads.
            seconds = 0.0 if self.broker.is_open else lead.sessions.lease_seconds(command.name)
            lead.definitions.spared(row, seconds)
            return ()
        was_draining = lead.sessions.is_draining(command.name)
        lead.definitions.drained(row, command, was_draining=was_draining)
        now = self.clock.monotonic()
        return lead.sessions.drain(command.name, now, is_draining=bool(given.get("is_draining")))

    def _is_certain(self, now: float) -> bool:
        return now - self.committed_at < self.times.certain

    def _decide(self, lead: Leadership, inputs: Sequence[Input]) -> Decisions:
        """Decide; what an early cancel names is cancelled before it can be granted."""
        now = max(lead.now(), lead.state.now)
        if lead.admission.has_early():
            out = decide(lead.state, inputs, now, grants_max=0)
            following = list(lead.admission.decided(out))
            second = decide(lead.state, following, now)
            lead.carried += lead.admission.decided(second)
            join(out, second)
        else:
            out = decide(lead.state, inputs, now)
            lead.carried += lead.admission.decided(out)
        lead.definitions.decided(out)
        refused, lead.admission.refused_occurrences = lead.admission.refused_occurrences, []
        lead.schedules.decided(out, refused)
        for name, body in lead.definitions.take_schedules():
            lead.schedules.define(name, body, lead.state.now)
        lead.is_unfinished = out.is_unfinished
        self._remember_requests(lead, out)
        return out

    def _remember_requests(self, lead: Leadership, out: Decisions) -> None:
        for admitted in out.admitted:
            given = admitted.source.request
            request = StoredRequest(
                parameters=given.parameters, metadata=given.metadata, traceparent=given.traceparent,
                idempotency_key=given.idempotency_key,
            )  # fmt: skip
            if lead.requests_bytes + _bytes_of(request) <= _REQUESTS_BYTES_MAX:
                lead.requests_bytes += _bytes_of(request)
                lead.requests[admitted.id] = request

    def _forget_request(self, lead: Leadership, execution_id: int) -> None:
        request = lead.requests.pop(execution_id, None)
        if request is not None:
            lead.requests_bytes -= _bytes_of(request)

    async def _traces_of(self, lead: Leadership, out: Decisions) -> Mapping[int, str | None]:
        """Return the trace contexts of what ended, and forget what was kept of it."""
        found: dict[int, str | None] = {}
        missing = []
        for each in out.finished:
            if each.id in lead.traces:
                found[each.id] = lead.traces.pop(each.id)
            elif (request := lead.requests.get(each.id)) is not None:
                found[each.id] = request.traceparent
            else:
                missing.append(each.id)
            self._forget_request(lead, each.id)
        for over in out.attempts:
            lead.traces.pop(over.id, None)
        if missing:
            found |= await self.persist(lambda: self.store.traces_of(missing))
        return found

    # Writing.

    async def _write(self, lead: Leadership, turn: Turn, taken: Taken) -> Turn:
        """Write a turn and return it as it was committed; raises Deposed, or Reload."""
        sent_at = self.clock.monotonic()
        while True:
            try:
                await self.store.write(turn)
            except OutcomeUnknown:
                turn, is_committed = await self._settle(lead, turn)
                if is_committed:
                    break
                sent_at = self.clock.monotonic()
            except TurnRefused as refused:
                turn = self._without(turn, refused, taken)
            else:
                lead.number = turn.number
                break
        self.committed_at = sent_at
        lead.admission.written()
        lead.definitions.written()
        lead.schedules.written()
        lead.sessions.rows.clear()
        return turn

    async def _settle(self, lead: Leadership, turn: Turn) -> tuple[Turn, bool]:
        """Find out whether a turn was committed; if not, return it for the new epoch."""
        epoch = await self.persist(lambda: self.store.take_over(self.executor_id, only_if_leading=True))
        newest = await self.persist(self.store.newest_turn)
        before = NewestTurn(epoch=turn.epoch, number=turn.number - 1) if turn.number > 1 else lead.previous
        lead.epoch = lead.state.epoch = epoch
        # The counter of grants goes on: the same turn, sent again, has used numbers of it.
        lead.number, lead.previous = 0, newest
        lead.sessions.raise_epoch(epoch)
        if newest == NewestTurn(epoch=turn.epoch, number=turn.number):
            return turn, True
        if newest != before:
            raise Reload
        return replace(turn, epoch=epoch, number=1), False

    def _without(self, turn: Turn, refused: TurnRefused, taken: Taken) -> Turn:
        """Return the turn without results that the database cannot store, or take its inputs singly."""
        ids = set(refused.execution_ids)
        if not ids or not ids <= {row.id for row in turn.ended if row.result is not None}:
            self._refuse(taken)
            raise Reload
        ended = [_unstorable(row, str(refused)) if row.id in ids else row for row in turn.ended]
        return replace(turn, ended=ended)

    def _refuse(self, taken: Taken) -> None:
        """Take the inputs of a refused turn one at a time after the load; one that fails alone is poison."""
        if len(taken) == 1:
            # Once, memory may have been wrong: after a failover, no turn fits the rows before the load.
            keys = {d.delivery_key for d in taken.deliveries} | {c.command_id for c in taken.commands}
            self._poison |= keys & self._suspects
            self._suspects |= keys
        self._singly = max(self._singly, len(taken))

    def _bury(self, lead: Leadership, taken: Taken) -> None:
        """Send what makes every turn fail to the dead letters."""
        if not self._poison:
            return
        for each in [d for d in taken.deliveries if d.delivery_key in self._poison]:
            taken.deliveries.remove(each)
            letter: Mapping[str, Any] = {"x-error-code": "invalid_message", "request": each.body}
            lead.backlog.append([Publication(to="dead letters", body=letter, of=each)])
            lead.unacknowledged.append(each)
        for command in [c for c in taken.commands if c.command_id in self._poison]:
            taken.commands.remove(command)
            lead.admission.answers.append((command.command_id, _INVALID))

    async def persist(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat a call that changes nothing twice until it succeeds, or the leadership is over."""
        while True:
            try:
                return await call()
            except OutcomeUnknown:
                if self.clock.monotonic() - self.committed_at > self.times.leadership:
                    raise Reload from None
                await self.clock.sleep(self.times.poll / 5)

    # Publishing.

    async def _collect(self, lead: Leadership, out: Decisions, turn: Turn) -> None:
        """Add to the backlog what a turn publishes: cancels and answers, then offers."""
        for asked in out.asked:
            body = CancelAttempt(execution_id=asked.execution_id, grant=asked.grant, reason=asked.reason)
            lead.sessions.send(asked.worker_id, body)
        send_changes(lead.sessions, out)
        now = self.clock.monotonic()
        letters = await self._of_stale([*out.stale, *lead.sessions.take_stale()])
        first = [*lead.sessions.take_out(now), *lead.admission.take_publications(), *letters]
        await self._offer(lead, out)
        lead.backlog += [batch for batch in (first, lead.sessions.take_out(now)) if batch]

    async def _publish(
        self, lead: Leadership, taken: Taken, events: list[Mapping[str, Any]], out: Decisions
    ) -> None:
        """Publish the backlog, then acknowledge all that led to it; what is left goes back to the backlog.

        The next turn is taken and decided meanwhile, but not written: it waits for `_published`.
        """
        backlog, lead.backlog = lead.backlog, deque()
        deliveries, lead.unacknowledged = [*lead.unacknowledged, *taken.deliveries], []
        with suppress(BrokerUnavailable):
            while backlog:
                await self.broker.publish(backlog[0])
                backlog.popleft()
            await self._probe(lead)
        _passed(CrashPoint.TURN_PUBLISHED, taken)
        await self._publish_events(lead, events, is_late=bool(backlog))
        if backlog:
            lead.backlog = backlog + lead.backlog
            lead.unacknowledged = deliveries + lead.unacknowledged
        else:
            self.broker.acknowledge(deliveries)
        _passed(CrashPoint.TURN_ACKNOWLEDGED, taken)
        if self.audience is not None:
            self.audience.turn_ended(taken, out)

    async def published(self) -> None:
        """Wait until the last turn is published, as far as that is possible now."""
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            await publishing

    async def _publish_events(
        self, lead: Leadership, events: list[Mapping[str, Any]], *, is_late: bool
    ) -> None:
        """Publish the events of a turn, or let the next one store them."""
        are_published = not events
        if events and not (is_late or lead.outbox.rows or lead.outbox.has_unread):
            with suppress(BrokerUnavailable, TimeoutError):
                await asyncio.wait_for(self.broker.publish_events(events), self.times.event)
                are_published = True
        if not are_published:
            lead.outbox.store(events)
        is_draining = self._draining is not None and not self._draining.done()
        if (lead.outbox.rows or lead.outbox.has_unread) and not is_draining:
            self._draining = asyncio.ensure_future(self._drain_outbox(lead.outbox))

    async def _drain_outbox(self, outbox: Outbox) -> None:
        """Publish stored events beside the turns, for as long as a slow listener takes."""
        with suppress(BrokerUnavailable, OutcomeUnknown):
            await self._read_outbox(outbox)
            while rows := outbox.first():
                await self.broker.publish(
                    [Publication(to="event", body=json.loads(row.body)) for row in rows]
                )
                outbox.confirm(rows)
                await self._read_outbox(outbox)

    async def _read_outbox(self, outbox: Outbox) -> None:
        if not outbox.rows and outbox.has_unread:
            outbox.add(await self.store.events(outbox.read_id))

    async def _of_stale(self, sources: Sequence[Any]) -> list[Publication]:
        """Return reports about executions that do not exist as dead letters; all others are repetitions."""
        if not sources:
            return []
        ids = {each.body.body.execution_id: each for each in sources}
        known = await self.persist(lambda: self.store.look_up([], [], list(ids)))
        return [
            Publication(
                to="dead letters", body={"x-error-code": "unknown_execution", "request": each.body}, of=each
            )
            for execution_id, each in ids.items()
            if execution_id not in known
        ]

    async def _offer(self, lead: Leadership, out: Decisions) -> None:
        """Send the offers to repeat, then those of this turn, to workers of which it is known what they have.

        Of a queue, a worker starts nothing later before what it missed.
        """
        again, lead.sessions.offer_again = lead.sessions.offer_again, []
        ids = dict.fromkeys((*(each.id for each in again), *(each.id for each in out.granted)))
        living = (lead.state.executions.get(execution_id) for execution_id in ids)
        executions = {
            each.id: each
            for each in living
            if each is not None and each.worker is not None and lead.sessions.may_be_offered(each.worker.id)
        }
        if not executions:
            return
        missing = [execution_id for execution_id in executions if execution_id not in lead.requests]
        found = dict(await self.persist(lambda: self.store.requests_of(missing))) if missing else {}
        requests = {**found, **{i: lead.requests[i] for i in executions if i in lead.requests}}
        definition_of = lead.definitions.action
        send_offers(lead.state, lead.sessions, executions.values(), requests, definition_of)
        for execution_id in executions:
            lead.traces[execution_id] = requests[execution_id].traceparent
            self._forget_request(lead, execution_id)

    async def _probe(self, lead: Leadership) -> None:
        probes = list(lead.sessions.overdue(self.clock.monotonic())) if self.broker.is_open else []
        if probes:
            try:
                await self.broker.publish(probes)
            except BrokerUnavailable:
                lead.sessions.probe_lost()


def is_request(each: Delivery | InboxRow) -> bool:
    """Return whether it is about executions, and no definition, and no message of a worker or the leader."""
    return isinstance(each.body, ExecutionCommand)


def _passed(point: CrashPoint, taken: Taken) -> None:
    """Pass a crash point of a turn that has taken something."""
    if taken:
        reached(point)


def join(first: Decisions, second: Decisions) -> None:
    """Add the decisions of the second half of a turn to those of the first one."""
    for each in fields(Decisions):
        mine, other = getattr(first, each.name), getattr(second, each.name)
        if isinstance(mine, list):
            mine.extend(other)
        elif isinstance(mine, dict):
            mine.update(other)
        else:
            setattr(first, each.name, other)


def _bytes_of(request: StoredRequest) -> int:
    return len(request.parameters) + len(request.metadata or b"") + _REQUEST_BYTES


def _event(
    lead: Leadership, finished: Finished, row: EndedRow, traces: Mapping[int, str | None]
) -> Mapping[str, Any]:
    action_id = lead.definitions.action_ids.get(finished.queue.action.ref)
    return event_of(finished, row, action_id=action_id, traceparent=traces.get(finished.id))


def _unstorable(row: EndedRow, reason: str) -> EndedRow:
    return structs.replace(row, status=Status.FAILED, result=None, error=("Unstorable", reason))
