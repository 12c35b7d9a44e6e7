"""A leader that a test plays against a real worker over a real broker, and worker processes for it.

It answers hellos and heartbeats and commits reports, unless it is told not to; everything that arrived can be
read. It speaks by `worker_wire` alone.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.processes import ServiceProcess, start_service
from tests.support.service_template import DIES_WITH_US
from tests.support.traffic import until
from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REPORTS,
    declare_executor,
    session_queue,
)
from turnstile.common.domain.identifiers import Grant
from turnstile.common.envelopes import envelope
from turnstile.common.report_wire import (
    EXECUTION_LOG,
    LogPiece,
    decode_log,
)
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Heard,
    Heartbeat,
    Hello,
    LeaderBody,
    Leaving,
    Offer,
    Offers,
    Recall,
    Report,
    ReportBody,
    ToSession,
    Welcome,
)
from turnstile.common.worker_wire import (
    LEADER_MESSAGES,
    WORKER_HELLO,
    decode_heartbeat,
    decode_hello,
    decode_reports,
    encode_to_session,
)

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


class ScriptedLeader:
    """Reads the leader's queues of one vhost."""

    def __init__(self, amqp_url: str) -> None:
        self.publisher = Publisher(amqp_url, name="leader", declare=declare_executor)
        self.consumers = ConsumerConnection(amqp_url, name="leader")
        self.is_answering = True
        self.hellos: list[Hello] = []
        self.heartbeats: list[Heartbeat] = []
        self.reports: list[Report] = []
        """As they arrived, copies included."""
        self.pieces: list[LogPiece] = []
        self._committed: dict[str, int] = {}
        self._sent: dict[tuple[str, int], int] = {}

    @asynccontextmanager
    async def leading(self) -> AsyncIterator["ScriptedLeader"]:
        handlers: dict[str, Callable[[Any], Any]] = {
            EXECUTOR_HEARTBEATS: self._heartbeat,
            EXECUTOR_COMPLETIONS: self._reports,
            EXECUTOR_REPORTS: self._live,
        }
        async with asyncio.TaskGroup() as tasks:
            running: list[asyncio.Task[Any]] = [
                tasks.create_task(each.run()) for each in (self.publisher, self.consumers)
            ]
            await until(lambda: self.publisher.connected, "the leader's connection")
            for queue, handle in handlers.items():
                subscription = self.consumers.subscribe(queue, prefetch=500, declare=declare_executor)
                running.append(tasks.create_task(self._consume(subscription, handle)))
            await until(lambda: self.consumers.connected, "the leader's queues")
            yield self
            for task in running:
                task.cancel()

    async def _consume(self, subscription: Subscription, handle: Callable[[Any], Any]) -> None:
        while True:
            batch = await subscription.next_batch(100)
            for delivery in batch:
                await handle(delivery)
            subscription.ack(batch)

    async def _heartbeat(self, delivery: Any) -> None:
        if delivery.type == WORKER_HELLO:
            self.hellos.append(decode_hello(delivery.body))
            await self.send(Welcome(stored=()))
            return
        heartbeat = decode_heartbeat(delivery.body)
        self.heartbeats.append(heartbeat)
        if self.is_answering:
            committed = self._committed.get(heartbeat.sender.worker_id, 0)
            await self.send(Heard(heartbeat=heartbeat.number, committed=committed, is_draining=False))

    async def _reports(self, delivery: Any) -> None:
        for report in decode_reports(delivery.body):
            self.reports.append(report)
            worker_id = report.sender.worker_id
            if report.number == self._committed.get(worker_id, 0) + 1:
                self._committed[worker_id] = report.number

    async def _live(self, delivery: Any) -> None:
        if delivery.type == EXECUTION_LOG:
            self.pieces += decode_log(delivery.body)[1]

    # What it sends.

    @property
    def hello(self) -> Hello:
        """The last one."""
        return self.hellos[-1]

    async def send(self, body: LeaderBody) -> None:
        """Send a message to the newest session."""
        sender = self.hello.sender
        key = (sender.worker_id, sender.session)
        self._sent[key] = self._sent.get(key, 0) + 1
        await self.publisher.publish(
            [
                envelope(
                    encode_to_session([ToSession(epoch=1, number=self._sent[key], body=body)]),
                    message_type=LEADER_MESSAGES,
                    exchange="",
                    routing_key=session_queue(sender.worker_id, sender.session),
                    app_id="executor",
                    persistent=False,
                )
            ]
        )

    async def offer(
        self, action: str, *ids: int, at_once: int | None = None, parameters: bytes = b"{}", **fields: Any
    ) -> None:
        """Offer executions of an action, in one message of its queue."""
        offers = tuple(
            Offer(
                execution_id=each,
                grant=grant(each),
                attempt=1,
                action_ref=action,
                parameters=parameters,
                **fields,
            )
            for each in ids
        )
        await self.send(Offers(queue=action, at_once=at_once, offers=offers))

    async def cancel(self, execution_id: int) -> None:
        await self.send(
            CancelAttempt(execution_id=execution_id, grant=grant(execution_id), reason="cancelled on request")
        )

    async def recall(self, action: str, barrier: int) -> None:
        await self.send(Recall(queue=action, barrier=grant(barrier)))

    # What arrived.

    def bodies(self, kind: type[T]) -> list[T]:
        """Return the reports of one kind, each number of a worker once, in order."""
        seen: dict[tuple[str, int], ReportBody] = {}
        for report in self.reports:
            seen.setdefault((report.sender.worker_id, report.number), report.body)
        return [body for body in seen.values() if isinstance(body, kind)]

    def ends(self) -> dict[int, AttemptEnded]:
        return {each.execution_id: each for each in self.bodies(AttemptEnded)}

    def returns(self) -> dict[int, AttemptReturned]:
        return {each.execution_id: each for each in self.bodies(AttemptReturned)}

    def started(self) -> list[int]:
        return [each.execution_id for each in self.bodies(AttemptStarted)]

    @property
    def has_left(self) -> bool:
        return bool(self.bodies(Leaving))

    async def ended(self, *ids: int, seconds: float = 30.0) -> list[AttemptEnded]:
        """Wait for these ends; return them."""
        await until(lambda: self.ends().keys() >= set(ids), f"the ends of {ids}", deadline_seconds=seconds)
        return [self.ends()[each] for each in ids]

    async def is_served(self) -> None:
        """Wait until a worker's lease is certain: two of its heartbeats were answered."""
        await until(lambda: len(self.heartbeats) >= 2, "heartbeats", deadline_seconds=30.0)


def grant(execution_id: int) -> Grant:
    return Grant(1, execution_id)


class WorkerOnCore:
    """A worker process."""

    def __init__(self, process: ServiceProcess, log: Path) -> None:
        self.process = process
        self.log = log

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def ended(self, seconds: float = 30.0) -> int:
        return await asyncio.wait_for(self.process.wait(), seconds)

    def text(self) -> str:
        return self.log.read_text()


@asynccontextmanager
async def worker_process(
    amqp_url: str, folder: Path, module: str, *, within: Sequence[str] = DIES_WITH_US, **settings: str
) -> AsyncIterator[WorkerOnCore]:
    """A worker that serves a module, until the end of the block; its log is printed if the block fails.

    `within` is a command that starts it.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")},
        "TURNSTILE_AMQP_URL": amqp_url,
        "TURNSTILE_LEASE_DURATION": "6s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
        "TURNSTILE_STOP_GRACE": "500ms",
        "TURNSTILE_LOG_FLUSH_INTERVAL": "100ms",
        "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}",
        **settings,
    }
    log = folder / "worker.log"
    process = await start_service(
        ("turnstile.worker.cli", "serve", "--actions", module),
        environment=environment,
        folder=ROOT,
        log=log,
        within=within,
    )
    worker = WorkerOnCore(process, log)
    try:
        yield worker
    except BaseException:
        sys.stderr.write(worker.text()[-6000:])
        raise
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
