"""A worker's surroundings, owned by the test: time that jumps, a broker, a runner, a scripted leader."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    CancelAttempt,
    Heard,
    Heartbeat,
    Hello,
    LeaderBody,
    Offer,
    Offers,
    Recall,
    Report,
    ReportBody,
    ToSession,
    Welcome,
)
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.outcomes import Completed
from turnstile.worker.core.ports import Ports, RunEnd
from turnstile.worker.core.process import Exit, WorkerProcess

CONFIG = WorkerConfig(
    name="w",
    concurrency=4,
    lease_seconds=30.0,
    heartbeat_seconds=3.0,
    drain_seconds=20.0,
    grace_seconds=5.0,
    killed_seconds=1.0,
    leave_seconds=10.0,
)
WALL = 1_000_000.0
T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """When nothing is ready, the time is that of the next timer."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class FakeClock:
    """The loop's time, and what the process did not notice: it was stopped."""

    def __init__(self) -> None:
        self.stopped_seconds = 0.0
        self.set_by_seconds = 0.0
        """By how much the clock of the machine was set."""
        self.read_seconds = 0.0
        """How long each reading takes: the process may be interrupted at any of them."""

    def monotonic(self) -> float:
        self.stopped_seconds += self.read_seconds
        return asyncio.get_running_loop().time() + self.stopped_seconds

    def wall(self) -> float:
        return WALL + self.monotonic() + self.set_by_seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass


class FakeQueue:
    """The queue of one session."""

    def __init__(self, broker: "FakeBroker", number: int) -> None:
        self.broker = broker
        self.number = number
        self.arrived: list[ToSession] = []
        self.is_closed = False
        self._changed = asyncio.Event()

    def put(self, *messages: ToSession) -> None:
        if not self.is_closed:
            self.arrived += messages
            self._changed.set()

    def close(self) -> None:
        self.is_closed = True
        self._changed.set()

    async def take(self, count: int) -> list[ToSession]:
        while not self.arrived:
            if self.is_closed:
                raise Unavailable("closed")
            self._changed.clear()
            await self._changed.wait()
        taken, self.arrived = self.arrived[:count], self.arrived[count:]
        return taken

    async def probe(self) -> None:
        self.broker.probes += 1
        await asyncio.sleep(0.01)
        if self.is_closed or not self.broker.is_probe_returned:
            raise Unavailable("no probe")


class FakeBroker:
    """Accepts what a worker sends; a test says what fails, and reads what arrived."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.queues: list[FakeQueue] = []
        self.reports: list[Report] = []
        """As they arrived, copies included."""
        self.writes: list[int] = []
        self.hellos: list[Hello] = []
        self.heartbeats: list[Heartbeat] = []
        self.heartbeats_at: list[float] = []
        self.probes = 0
        self.is_probe_returned = True
        self.is_down = False
        self.is_losing = False
        """Confirms reports and loses them."""
        self.is_silent = False
        """Takes reports and does not confirm them."""
        self.confirm_seconds = 0.001

    async def open_session(self, worker_id: str, session: int) -> FakeQueue:
        await asyncio.sleep(0.001)
        if self.is_down:
            raise Unavailable("down")
        self.queues.append(FakeQueue(self, session))
        return self.queues[-1]

    async def publish_reports(self, reports: Sequence[Report]) -> None:
        await asyncio.sleep(self.confirm_seconds)
        if self.is_down:
            raise Unavailable("down")
        self.writes.append(len(reports))
        if not self.is_losing:
            self.reports += reports
            self.world.commit(reports)
        if self.is_silent:
            raise Unavailable("no answer")

    async def send_heartbeat(self, message: Hello | Heartbeat) -> None:
        await asyncio.sleep(0.001)
        if self.is_down:
            raise Unavailable("down")
        if isinstance(message, Hello):
            self.hellos.append(message)
            if self.world.is_welcoming:
                self.world.send(Welcome())
        else:
            self.heartbeats.append(message)
            self.heartbeats_at.append(asyncio.get_running_loop().time())
            if self.world.is_answering:
                committed = self.world.commits.get(message.sender.worker_id, 0)
                self.world.send(Heard(heartbeat=message.number, committed=committed))


DONE: Final = Completed(result_json="1")


class FakeRun:
    """One run; it ends when the test says so, or as it is asked."""

    def __init__(self, runner: "FakeRunner", offer: Offer, ended: Callable[[RunEnd], None]) -> None:
        self.runner = runner
        self.offer = offer
        self.asked: list[str] = []
        self.kills = 0
        self.is_over = False
        self._ended = ended
        self._loop = asyncio.get_running_loop()

    def end(self, outcome: RunEnd = DONE) -> None:
        if not self.is_over:
            self.is_over = True
            self._loop.call_soon(self._ended, outcome)

    def ask_to_stop(self, reason: str) -> None:
        self.asked.append(reason)
        if self.runner.is_obedient:
            self.end()

    def kill(self) -> None:
        self.kills += 1
        if self.runner.is_mortal:
            self.end()


class FakeRunner:
    """Starts runs, and remembers all of them."""

    def __init__(self) -> None:
        self.runs: list[FakeRun] = []
        self.is_obedient = False
        """A run ends when it is asked to."""
        self.is_mortal = True
        """A run ends when it is killed."""
        self.error: Exception | None = None

    def start(self, offer: Offer, ended: Callable[[RunEnd], None]) -> FakeRun:
        if self.error is not None:
            raise self.error
        self.runs.append(FakeRun(self, offer, ended))
        return self.runs[-1]

    @property
    def started(self) -> list[int]:
        return [run.offer.execution_id for run in self.runs]

    def of(self, execution_id: int) -> FakeRun:
        (run,) = (run for run in self.runs if run.offer.execution_id == execution_id)
        return run


class FakeIdentities:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def worker_id(self) -> str:
        return f"w{next(self._numbers)}"

    def secret(self) -> str:
        return f"secret{next(self._numbers)}"


class FakeExecutors:
    def __init__(self) -> None:
        self.seconds: float | None = None

    async def no_reclaim_seconds(self, worker_id: str) -> float:
        await asyncio.sleep(0.01)
        if self.seconds is None:
            raise Unavailable("no executor")
        return self.seconds


class World:
    """A worker process, and the leader that the test plays."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.broker = FakeBroker(self)
        self.runner = FakeRunner()
        self.executors = FakeExecutors()
        self.epoch = 1
        self.sent: dict[tuple[int, int], int] = {}
        """The last number by session and epoch."""
        self.is_welcoming = True
        self.is_answering = True
        self.is_committing = True
        self.commits: dict[str, int] = {}
        """Up to which number the reports of a worker id are committed."""
        ports = Ports(
            broker=self.broker,
            clock=self.clock,
            runner=self.runner,
            identities=FakeIdentities(),
            executors=self.executors,
        )
        self.process = WorkerProcess(ports, replace(CONFIG, **settings))
        self.task: asyncio.Task[Exit] | None = None

    async def serve(self) -> "World":
        """Start the process; return once its lease is certain."""
        self.task = asyncio.create_task(self.process.run())
        await self.passes(0.5)
        return self

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def passes(self, seconds: float = 0.05) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    # The leader.

    def commit(self, reports: Sequence[Report]) -> None:
        for report in reports:
            worker_id = report.sender.worker_id
            if self.is_committing and report.number == self.commits.get(worker_id, 0) + 1:
                self.commits[worker_id] = report.number

    @property
    def committed(self) -> int:
        return self.commits.get("w1", 0)

    def numbered(self, body: LeaderBody, *, epoch: int | None = None, skip: int = 0) -> ToSession:
        """Return the next message, after `skip` numbers that never arrive."""
        epoch = self.epoch if epoch is None else epoch
        key = (len(self.broker.queues), epoch)
        self.sent[key] = self.sent.get(key, 0) + 1 + skip
        return ToSession(epoch=epoch, number=self.sent[key], body=body)

    def send(self, *bodies: LeaderBody, epoch: int | None = None) -> None:
        """Send messages to the present session."""
        self.broker.queues[-1].put(*(self.numbered(body, epoch=epoch) for body in bodies))

    def deliver(self, *messages: ToSession) -> None:
        self.broker.queues[-1].put(*messages)

    async def offer(self, *ids: int, queue: str = "q", at_once: int | None = None, **fields: Any) -> None:
        self.send(Offers(queue=queue, at_once=at_once, offers=tuple(offer(each, **fields) for each in ids)))
        await self.passes(0.001)

    async def cancel(self, execution_id: int) -> None:
        self.send(CancelAttempt(execution_id=execution_id, grant=grant(execution_id), reason="asked"))
        await self.passes()

    async def recall(self, barrier: int, queue: str = "q") -> None:
        self.send(Recall(queue=queue, barrier=grant(barrier)))
        await self.passes()

    async def end(self, *ids: int, end: RunEnd = DONE) -> None:
        for execution_id in ids:
            self.runner.of(execution_id).end(end)
        await self.passes()

    # What arrived.

    def bodies(self, kind: type[T], *, copies: bool = False) -> list[T]:
        """Return the reports of one kind, in order, each number once unless `copies`."""
        seen: dict[int, ReportBody] = {}
        found: list[T] = []
        for report in self.broker.reports:
            if (copies or report.number not in seen) and isinstance(report.body, kind):
                found.append(report.body)
            seen[report.number] = report.body
        return found

    def ends(self) -> list[tuple[int, str]]:
        return [(each.execution_id, each.status.value) for each in self.bodies(AttemptEnded)]

    def returns(self) -> list[tuple[int, bool]]:
        return [(each.execution_id, each.had_started) for each in self.bodies(AttemptReturned)]

    def is_certain(self) -> bool:
        assert self.process.worker is not None
        return self.process.worker.lease.standing(self.clock.monotonic()).value == "certain"

    def is_over(self) -> bool:
        """Whether the first worker id has been given up."""
        assert self.process.worker is not None
        return self.process.worker.session.worker_id != "w1"


def grant(execution_id: int, *, again: int = 0) -> Grant:
    return Grant(1, execution_id + 1000 * again)


def offer(execution_id: int, *, again: int = 0, **fields: Any) -> Offer:
    given: dict[str, Any] = {"attempt": 1, "action_ref": "a", "parameters": b"{}"} | fields
    return Offer(execution_id=execution_id, grant=grant(execution_id, again=again), **given)
