"""The core on its real ports, as it lives in the worker's thread: broker, runs, logs, identities, lease.

In: settings, runners, and calls that `WorkerThread` carries over. Out: how the worker ended; and for the
main thread, which only reads: the broker's errors, the lease, the number of runs. A run that cannot be
stopped ends the process from here, because the main thread may be the one that it blocks.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, Final
from uuid import uuid4

from turnstile.common.broker.errors import BLOCKED
from turnstile.common.exit_codes import ExitCode
from turnstile.common.lifecycle import end_process
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.worker_protocol import AttemptEnded, AttemptReturned, Offer, Sender
from turnstile.worker import metrics
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.amqp import AmqpBroker
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.ports import Ports
from turnstile.worker.core.process import Exit, Worker, WorkerProcess
from turnstile.worker.executor_http import ExecutorHttp
from turnstile.worker.fence import Standing
from turnstile.worker.live import LiveReports
from turnstile.worker.registration import Differences
from turnstile.worker.run import ActionRunner
from turnstile.worker.runners.registry import Runners
from turnstile.worker.worker_thread import Crossing, InWorker

logger = logging.getLogger(__name__)
_NOT_RENEWED: Final = Episodes(logger, "lease_not_renewed", lasting=True)

_WATCH_SECONDS: Final = 0.5


def clock() -> float:
    """Return seconds of CLOCK_BOOTTIME, which also counts while the process is stopped or the machine sleeps.

    Where it does not exist: of the monotonic clock. The supervisor process has the same clock.
    """
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


class BootClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        """Return the present instant of `clock`."""
        return clock()

    def wall(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until `event` is set, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass


class HostedWorker:
    """One worker process without user code: the ports `Host` and `Identities`. `run` it in its thread."""

    def __init__(
        self,
        config: WorkerConfig,
        actions: Sequence[RegisteredAction],
        runners: Runners,
        to_main: Crossing,
        *,
        amqp_url: str,
        executors: ExecutorHttp | None,
        differences: Differences,
        log_seconds: float,
        not_ready: str | None,
        stopping: asyncio.Event,
    ) -> None:
        """`not_ready`: why it takes no offers yet. `stopping`, of the main loop: the process is to end."""
        self._config = config
        self._actions = actions
        self._runners = runners
        self._to_main = to_main
        self._amqp_url = amqp_url
        self._executors = executors
        self._differences = differences
        self._log_seconds = log_seconds
        self._not_ready = not_ready
        self._stopping = stopping
        self._is_stopping = False
        self._serving: str | None = None
        """The worker id that was logged as serving."""
        self._broker: AmqpBroker | None = None
        self._runner: ActionRunner | None = None
        self._process: WorkerProcess | None = None

    # Read from any thread.

    @property
    def broker_error(self) -> str | None:
        """Why the broker cannot be used; None: it can."""
        return "not connected" if self._broker is None else self._broker.last_error

    @property
    def is_blocked(self) -> bool:
        """Whether the broker accepts no messages."""
        return self._broker is not None and self._broker.is_blocked

    @property
    def is_certain(self) -> bool:
        """Whether an executor answers, so that work may start."""
        worker = self._worker
        return worker is not None and worker.lease.standing(clock()) is Standing.CERTAIN

    @property
    def lease_age_seconds(self) -> float | None:
        """Time since the last answered heartbeat was sent; None: none was answered yet."""
        worker = self._worker
        renewed_at = None if worker is None else worker.lease.evidence.renewed_at
        return None if renewed_at is None else clock() - renewed_at

    @property
    def running(self) -> int:
        """How many attempts run."""
        return 0 if self._runner is None else self._runner.running

    @property
    def _worker(self) -> Worker | None:
        return None if self._process is None else self._process.worker

    # In the worker's thread.

    async def run(self, in_worker: InWorker) -> Exit:
        """Serve until it is stopped and drained."""
        config = self._config
        self._broker = broker = AmqpBroker(
            self._amqp_url,
            name=config.name,
            lease_seconds=config.lease_seconds,
            heartbeat_seconds=config.heartbeat_seconds,
        )
        live = LiveReports(broker.publish_live, self._sender, in_worker, log_seconds=self._log_seconds)
        self._runner = runner = ActionRunner(
            self._runners, self._actions, live, self._stopping, to_main=self._to_main, in_worker=in_worker
        )
        ports = Ports(
            broker=broker, clock=BootClock(), runner=runner, identities=self, executors=self._executors,
            host=self,
        )  # fmt: skip
        self._process = process = WorkerProcess(ports, config)
        process.set_not_ready(self._not_ready)
        if self._is_stopping:
            process.stop()
        background = [broker.run(), live.run(), self._watch_lease()]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each, name="worker: background") for each in background]
            ended = await process.run()
            if ended is Exit.NOT_STOPPED:
                self._end_process()
            await live.finish()
            for task in running:
                task.cancel()
        if self._executors is not None:
            await self._executors.close()
        worker_id = "" if process.worker is None else process.worker.session.worker_id
        logger.info("session_ended", extra={"worker_id": worker_id, "how": ended.value})
        return ended

    def stop(self) -> None:
        """Drain and end."""
        if not self._is_stopping:
            logger.info("draining", extra={"running": self.running})
        self._is_stopping = True
        if self._process is not None:
            self._process.stop()

    def set_not_ready(self, reason: str | None) -> None:
        """Take no offers for this reason; None: take offers."""
        self._not_ready = reason
        if self._process is not None:
            self._process.set_not_ready(reason)

    def worker_id(self) -> str:
        """Return a new worker id."""
        return str(uuid4())

    def secret(self) -> str:
        """Return a new secret."""
        return token_hex(16)

    def ending(self, offer: Offer, report: AttemptEnded | AttemptReturned) -> AttemptEnded | AttemptReturned:
        """Note how an attempt ends; return its report, with the rest of its log."""
        assert self._runner is not None
        return self._runner.ending(offer, report)

    def has_left_behind(self) -> bool:
        """Return whether something still runs of an attempt that was reported."""
        return self._runner is not None and self._runner.has_left_behind()

    def kill_at(self, instant: float) -> None:
        """Have the supervisor process kill all runs at this instant."""
        self._runners.supervisor.set_deadline(instant)

    def lost(self) -> None:
        """Note that the lease is over and that nothing of this worker id runs any more."""
        assert self._runner is not None
        worker = self._worker
        # The leader forgets a worker that has left, and dismisses it when its last heartbeat arrives.
        if worker is None or not worker.session.is_leaving:
            metrics.LEASES_LOST.add()
            logger.error("lease_lost", extra={"reason": "no executor answered in time, nor did the broker"})
        self._runners.supervisor.set_deadline(None)
        self._runner.forget_all()

    def welcomed(self, stored: Sequence[Mapping[str, Any]], refused: Sequence[str]) -> None:
        """Log that this worker is known, what the installation has otherwise than its code, and refused."""
        worker = self._worker
        assert worker is not None
        self._differences.log(stored)
        for reason in refused:
            logger.error("definition_refused", extra={"reason": reason})
        if self._serving != worker.session.worker_id:
            self._serving = worker.session.worker_id
            pools = ",".join(self._config.pools)
            logger.info("serving", extra={"worker_id": self._serving, "pools": pools})

    def _sender(self) -> Sender:
        assert self._worker is not None
        return self._worker.session.sender

    async def _watch_lease(self) -> None:
        """Log while no executor answers although one did before."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            worker = self._worker
            if worker is None or worker.lease.evidence.renewed_at is None or worker.session.is_leaving:
                continue
            if worker.lease.standing(clock()) is Standing.CERTAIN:
                _NOT_RENEWED.works("lease")
            else:
                trouble = BLOCKED if self.is_blocked else None
                reason = self.broker_error or trouble or "no executor answers"
                _NOT_RENEWED.failed("lease", reason=reason)

    def _end_process(self) -> None:
        worker = self._worker
        worker_id = "" if worker is None else worker.session.worker_id
        left = () if worker is None else worker.attempts.held()
        executions = ",".join(str(execution_id) for execution_id, _ in left)
        fields = {"worker_id": worker_id, "exit_code": ExitCode.NOT_STOPPED, "executions": executions}
        end_process(lambda: logger.critical("not_stopped_in_time", extra=fields))
