"""A leader over the real ledger with a broker in memory, and the inbox of an HTTP process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self, cast
from uuid import UUID, uuid4

import asyncpg
from pydantic import BaseModel

from tests.support.ledger import session_on
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.database import Database
from turnstile.common.domain.states import Status
from turnstile.common.requests import read_request
from turnstile.common.schedules import ScheduleDefinition
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Heartbeat,
    Held,
    Hello,
    Leaving,
    Offer,
    Offers,
    Recall,
    Report,
    Sender,
    ToSession,
    Welcome,
)
from turnstile.executor.asking.asker import Asker
from turnstile.executor.asking.audience import Audience
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import PoolDefinition, ResourceDefinition
from turnstile.executor.inbox import Inbox
from turnstile.executor.leader.clock import LeaderClock
from turnstile.executor.leader.commands import body_of
from turnstile.executor.leader.door import request_of
from turnstile.executor.leader.leadership import Leader
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.parameter_schemas import ParameterSchemas
from turnstile.executor.leader.ports import (
    DefinitionCommand,
    Delivery,
    Probe,
    Publication,
    Request,
    StatusChanged,
)
from turnstile.executor.leader.turns import Times, Turns

ANN = Caller("ann", "192.0.2.7", "api")
_MODELS: Mapping[str, type[BaseModel]] = {
    "action": ActionDefinition,
    "resource": ResourceDefinition,
    "pool": PoolDefinition,
    "schedule": ScheduleDefinition,
}


class ScriptedWorker:
    """One session of a worker that takes what it is offered, and does with it what the test says."""

    def __init__(self, put: "Callable[[str, Any], None]", name: str, *, worker_id: str | None = None) -> None:
        self._put = put
        self.name = name
        self.sender = Sender(worker_id=worker_id or f"{name}-{uuid4()}", session=1, secret="s")
        self.offered: dict[int, Offer] = {}
        self.cancels: dict[int, CancelAttempt] = {}
        self._epoch = 0
        self._reports = 0
        self._heartbeats = 0

    @property
    def worker_id(self) -> str:
        return self.sender.worker_id

    def hello(self, *definitions: Mapping[str, Any], **fields: Any) -> None:
        """Join; by default it has the code of every action."""
        given: dict[str, Any] = {
            "pools": ("default",), "actions": None, "concurrency": 1, "lease_seconds": 60.0,
        } | fields  # fmt: skip
        self._put(
            "executor.heartbeats",
            Hello(sender=self.sender, name=self.name, epoch_seen=0, definitions=definitions, **given),
        )

    def heartbeat(self, **fields: Any) -> None:
        self._heartbeats += 1
        self._put(
            "executor.heartbeats",
            Heartbeat(
                sender=self.sender, number=self._heartbeats, epoch_seen=self._epoch, received=0, **fields
            ),
        )

    def receive(self, message: ToSession) -> None:
        self._epoch = message.epoch
        match message.body:
            case Welcome():
                held = tuple((each, offer.grant) for each, offer in self.offered.items())
                self.report(Held(epoch=message.epoch, grants=held))
            case Offers(offers=offers):
                self.offered.update((offer.execution_id, offer) for offer in offers)
            case CancelAttempt() as cancel:
                self.cancels[cancel.execution_id] = cancel
            case Recall():
                # What it has runs, as far as the leader knows.
                for each in self.offered:
                    self.start(each)
            case _:
                pass

    def start(self, execution_id: int, at: float | None = None) -> None:
        """Report that an attempt runs."""
        grant = self.offered[execution_id].grant
        at = time.time() if at is None else at
        self.report(AttemptStarted(execution_id=execution_id, grant=grant, at=at))

    def end(self, execution_id: int, status: Any = Status.COMPLETED, **fields: Any) -> None:
        """Report the end of what the worker was offered."""
        grant = self.offered.pop(execution_id).grant
        now = time.time()
        given: dict[str, Any] = {"started_at": now, "completed_at": now} | fields
        given["status"] = Status(status)
        self.report(AttemptEnded(execution_id=execution_id, grant=grant, **given))

    def give_back(self, execution_id: int, **fields: Any) -> None:
        grant = self.offered.pop(execution_id).grant
        self.report(AttemptReturned(execution_id=execution_id, grant=grant, **fields))

    def leave(self) -> None:
        """Stop, as after a drain."""
        self.heartbeat(is_taking=False)
        self.report(Leaving())

    def report(self, body: Any) -> None:
        self._reports += 1
        self._put(
            "executor.completions",
            Report(sender=self.sender, number=self._reports, kept_from=1, epoch_seen=self._epoch, body=body),
        )


class MemoryBroker:
    """Queues of the leader, its workers, and everything that it published."""

    is_open = True

    def __init__(self, clock: LeaderClock) -> None:
        self._clock = clock
        self._queues: dict[str, list[Delivery]] = {}
        self.letters: list[Mapping[str, Any]] = []
        self.events: list[Mapping[str, Any]] = []
        self.changes: list[StatusChanged] = []
        self.workers: dict[str, ScriptedWorker] = {}
        self.worker = self.new_worker("w")
        """The only worker of most tests."""

    def new_worker(self, name: str) -> ScriptedWorker:
        worker = ScriptedWorker(self.put, name)
        self.workers[worker.worker_id] = worker
        return worker

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def take(self, queue: str, count: int) -> list[Delivery]:
        waiting = self._queues.get(queue, [])
        taken, self._queues[queue] = waiting[:count], waiting[count:]
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        pass

    async def publish(self, publications: Sequence[Publication]) -> list[bool]:
        for each in publications:
            if each.to == "dead letters":
                assert isinstance(each.body, Mapping)
                self.letters.append(each.body)
            elif each.to == "event":
                assert isinstance(each.body, Mapping)
                self.events.append(each.body)
            elif isinstance(each.body, Probe):
                self.put(each.to, each.body)
            elif isinstance(each.body, ToSession):
                _, worker_id, _ = each.to.split(" ")
                if worker_id in self.workers:
                    self.workers[worker_id].receive(each.body)
        return [True] * len(publications)

    async def publish_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.events += events

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        self.changes += changes

    def put(self, queue: str, body: Any) -> None:
        self._queues.setdefault(queue, []).append(
            Delivery(queue=queue, tag=None, body=body, delivery_key=uuid4())
        )
        self._clock.wake()


class RunningLeader:
    """One executor that leads, or waits until it can."""

    def __init__(self, url: str, name: str, times: Times | None = None) -> None:
        self.clock = LeaderClock()
        self.broker = MemoryBroker(self.clock)
        self.audience = Audience(name, self.broker, self.clock, lambda: None)
        self.schemas = ParameterSchemas(lambda: self.leader.leadership)
        self.ledger = Ledger(url, on_command=self._read_inbox, refusal_of=self.schemas.refusal_of)
        turns = Turns(name, self.ledger, self.broker, self.clock, times, audience=self.audience)
        self.leader = Leader(turns)
        self.task = asyncio.create_task(self.leader.run(), name=f"leader {name}")

    def _read_inbox(self) -> None:
        self.leader.look_at_inbox()
        self.clock.wake()

    def asker(self) -> Asker:
        """Asks this leader, without a process between."""
        return Asker(cast("Any", _InProcess(self.audience)), cast("Any", _NotConnected()))

    async def kill(self) -> None:
        """End without a farewell: its sessions are gone."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.ledger.close()


class _InProcess:
    """The carrier of questions in the leader's own process."""

    is_connected = True

    def __init__(self, audience: Audience) -> None:
        self._audience = audience

    async def ask(self, data: bytes, seconds: float) -> bytes | None:
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(answer: bytes) -> None:
            if not reply.done():
                reply.set_result(answer)

        self._audience.ask(data, seconds, take)
        await asyncio.wait({reply}, timeout=seconds)
        return reply.result() if reply.done() else None

    async def counts(self, seconds: float) -> bytes | None:
        """Return nothing: this process has counted it itself."""
        return None


class _NotConnected:
    """The broker's carrier, without a broker."""

    async def ask(self, data: bytes, seconds: float) -> bytes | None:
        return None


class Installation:
    """A database with any number of leaders and HTTP processes; `inbox` is that of the first one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stack = AsyncExitStack()
        self.leaders: list[RunningLeader] = []
        self.inbox: Inbox
        self.session: asyncpg.Connection[asyncpg.Record]

    async def __aenter__(self) -> Self:
        self.inbox = await self._stack.enter_async_context(self.http_process())
        self.session = await self._stack.enter_async_context(session_on(self.url))
        return self

    async def __aexit__(self, *error: object) -> None:
        for each in self.leaders:
            await each.kill()
        await self._stack.aclose()

    @asynccontextmanager
    async def http_process(self) -> AsyncIterator[Inbox]:
        database = Database(self.url, application_name="turnstile test http")
        await database.open()
        inbox = Inbox(database)
        task = asyncio.create_task(inbox.run(), name="inbox of a test")
        try:
            yield inbox
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await database.close()

    def lead(self, name: str = "a", times: Times | None = None) -> RunningLeader:
        running = RunningLeader(self.url, name, times)
        self.leaders.append(running)
        return running

    async def define(self, kind: Any, name: str, **fields: Any) -> Mapping[str, Any]:
        """PUT a whole definition."""
        (answer,) = await self.inbox.decide([put(kind, name, **fields)])
        return answer

    async def submit(self, *requests: Request, **options: Any) -> list[Mapping[str, Any]]:
        return list(await self.inbox.decide(requests, **options))

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        return list(await self.session.fetch(query, *values))

    async def audit(self) -> list[tuple[Any, ...]]:
        """Return the audit log: actor, verb, kind, subject."""
        query = "SELECT actor, verb, subject_kind, subject FROM ledger.audit_log ORDER BY id"
        return [tuple(row) for row in await self.fetch(query)]


def put(kind: Any, name: str, *, caller: Caller = ANN, **fields: Any) -> DefinitionCommand:
    """A PUT as the API checks it."""
    named = {"ref" if kind == "action" else "name": name}
    body = body_of(_MODELS[kind].model_validate({**fields, **named}))
    return DefinitionCommand(kind=kind, name=name, definition=body, changed_by=caller._asdict())


def patch(kind: Any, name: str, *, caller: Caller = ANN, if_match: str | None = None, **fields: Any) -> Any:
    return DefinitionCommand(
        kind=kind,
        name=name,
        definition=fields,
        is_patch=True,
        if_match=if_match,
        changed_by=caller._asdict(),
    )


def delete(kind: Any, name: str, *, cancel_max: int = 0, caller: Caller = ANN) -> DefinitionCommand:
    return DefinitionCommand(
        kind=kind, name=name, definition=None, cancel_max=cancel_max, changed_by=caller._asdict()
    )


def request(ref: str = "a", *, may_be_urgent: bool = False, **fields: Any) -> Request:
    """A request as the API reads it."""
    return request_of(read_request({"action_ref": ref, **fields}), may_be_urgent=may_be_urgent)


def numbered(count: int, ref: str = "a") -> list[Request]:
    return [request(ref, parameters={"n": number}) for number in range(count)]


def command_ids(count: int) -> list[UUID]:
    return [uuid4() for _ in range(count)]
