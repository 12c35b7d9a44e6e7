"""One worker process: one worker id after another, each until it has drained or its lease is over.

In: the ports, the settings, and `stop`, which is SIGTERM. Out: how the process should end. A worker whose
lease is over forgets everything: what it held runs elsewhere under new grants, so the next one has a new id
and secret (P6). SIGTERM loses nothing: nothing new, what runs may finish, the rest is returned, and all of it
is committed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Final

from turnstile.common.worker_protocol import Leaving
from turnstile.worker.core.attempt import Attempts
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.lease import Lease, LeaseKeeper
from turnstile.worker.core.ports import Ports
from turnstile.worker.core.receiver import Receiver
from turnstile.worker.core.reporter import Outbox, publish_reports
from turnstile.worker.core.session import Session, keep_session
from turnstile.worker.core.waiting import WaitingList
from turnstile.worker.fence import Terms

_DRAINS: Final = "its worker drains"
_LEFT_POLL_SECONDS: Final = 0.02


class Exit(Enum):
    """How a worker ended."""

    DRAINED = "drained"
    """Nothing is left here; at the leader as far as the bounds of the drain allowed."""
    LOST = "lost"
    """The lease is over, and everything is killed."""
    NOT_STOPPED = "not_stopped"
    """Something still runs that could not be killed: the process must end at once."""


class WorkerProcess:
    """Serves until it is stopped."""

    def __init__(self, ports: Ports, config: WorkerConfig) -> None:
        self._ports = ports
        self._config = config
        self._stop = asyncio.Event()
        self._not_ready: str | None = None
        self.worker: Worker | None = None
        """The present one."""

    def stop(self) -> None:
        """Drain and end: SIGTERM, or an operator. Call it in the event loop; repeatable."""
        self._stop.set()

    def set_not_ready(self, reason: str | None) -> None:
        """Take no offers for this reason, and return what has not started; None: take offers again."""
        self._not_ready = reason
        if self.worker is not None:
            self.worker.set_not_ready(reason)

    async def run(self) -> Exit:
        """Serve under one worker id after another."""
        while True:
            self.worker = Worker(self._ports, self._config, on_drain=self.stop)
            self.worker.session.not_ready = self._not_ready
            ended = await self.worker.run(self._stop)
            if ended is not Exit.LOST or self._stop.is_set():
                return ended


class Worker:
    """One worker id, with all that it holds."""

    def __init__(self, ports: Ports, config: WorkerConfig, *, on_drain: Callable[[], None]) -> None:
        """`on_drain` is called when an operator drains it, perhaps often."""
        self._ports = ports
        self._config = config
        host = ports.host
        terms = Terms(lease_seconds=config.lease_seconds, heartbeat_seconds=config.heartbeat_seconds)
        self.session = session = Session(ports.identities.worker_id(), ports.identities.secret())
        self.lease = lease = Lease(terms) if host is None else Lease(terms, host.kill_at)
        self.outbox = outbox = Outbox(config)
        self.waiting = waiting = WaitingList(config.concurrency)
        self.attempts = Attempts(ports, config, lease=lease, waiting=waiting, outbox=outbox)
        self.keeper = LeaseKeeper(ports, config, lease, session)
        self.receiver = Receiver(
            ports.clock, session, lease=lease, waiting=waiting, attempts=self.attempts, outbox=outbox,
            hasten=self.keeper.hasten, on_drain=on_drain,
            on_stored=(lambda *_: None) if host is None else host.welcomed,
        )  # fmt: skip

    def set_not_ready(self, reason: str | None) -> None:
        """Take no offers for this reason, and return what has not started; None: take offers again."""
        if reason != self.session.not_ready:
            self.session.not_ready = reason
            self.keeper.hasten()
            if reason is not None:
                self.receiver.return_all("its worker is not ready")

    async def run(self, stop: asyncio.Event) -> Exit:
        """Serve until `stop` and the drain after it, or until the lease is over."""
        ports, config, session = self._ports, self._config, self.session
        async with asyncio.TaskGroup() as tasks:

            def start(name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
                return tasks.create_task(work, name=f"{name} of {session.worker_id}")

            publishing = publish_reports(ports, config, session, self.outbox, self.lease)
            keeping = keep_session(ports, config, session, self.receiver.receive, self.keeper.hasten)
            attempts = start("attempts", self.attempts.run())
            serving = [
                start("reports", publishing),
                start("heartbeats", self.keeper.send_heartbeats()),
                start("probes", self.keeper.probe()),
                start("sessions", keeping),
            ]
            over = start("lease", self.keeper.watch(self.attempts.kill_stopped))
            drained = start("drain", self._drain(stop))
            await asyncio.wait([over, drained], return_when=asyncio.FIRST_COMPLETED)
            if not drained.done():
                await self._lose([drained, *serving])
            for task in (over, drained, *serving, attempts):
                task.cancel()
        if not self.attempts.idle.is_set() or self._has_left_behind():
            return Exit.NOT_STOPPED
        # A leader forgets a worker that has left, and dismisses it when its last heartbeats arrive.
        has_left = session.is_leaving or not self.lease.is_over
        return Exit.DRAINED if has_left else Exit.LOST

    async def _drain(self, stop: asyncio.Event) -> None:
        """Drain within the bounds. A worker with a run that cannot be stopped returns nothing of it (P1).

        Nor does it leave: its lease protects the run until the process has ended.
        """
        await stop.wait()
        clock, config, attempts = self._ports.clock, self._config, self.attempts
        self.session.is_taking = False
        self.receiver.return_all(_DRAINS)
        self.keeper.hasten()
        await clock.wait(attempts.idle, config.drain_seconds)
        attempts.stop_all(_DRAINS)
        await clock.wait(attempts.idle, config.grace_seconds + 2 * config.killed_seconds)
        if attempts.idle.is_set() and self.session.was_welcome and not self.lease.is_over:
            self.session.is_leaving = True
            self.outbox.add(Leaving())
            await clock.wait(self.outbox.empty, config.leave_seconds)

    async def _lose(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        """Kill everything: the lease is over, and what ran may run elsewhere."""
        for task in tasks:
            task.cancel()
        self.attempts.lose_all()
        clock, until = self._ports.clock, self._ports.clock.monotonic() + self.lease.terms.enforce_seconds
        await clock.wait(self.attempts.idle, self.lease.terms.enforce_seconds)
        while self._has_left_behind() and clock.monotonic() < until:
            await clock.sleep(_LEFT_POLL_SECONDS)
        if self._ports.host is not None and self.attempts.idle.is_set():
            self._ports.host.lost()

    def _has_left_behind(self) -> bool:
        return self._ports.host is not None and self._ports.host.has_left_behind()
