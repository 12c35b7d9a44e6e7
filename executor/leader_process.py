"""The process that leads, or waits until it can: the leader's composition root, a child of `executor serve`.

In: a connected socket, over which its parent sends the settings, questions and the order to stop; commands
and messages come from the database and the broker. Out: replies, and how it is. It ends at once when its
parent is gone: a leader without its HTTP would go on alone.
"""

import asyncio
import ctypes
import logging
import os
import secrets
import signal
import socket
import sys
from typing import Final, Literal

import msgspec

from turnstile.common.exit_codes import ExitCode
from turnstile.common.lifecycle import run_service
from turnstile.common.telemetry.logs import configure_logging
from turnstile.common.telemetry.metrics import LoopLag
from turnstile.common.telemetry.tracing import configure_tracing
from turnstile.executor.asking.asker import Frame, FrameStream
from turnstile.executor.asking.audience import Audience
from turnstile.executor.asking.broker_rpc import BrokerQuestions
from turnstile.executor.leader.amqp import AmqpBroker
from turnstile.executor.leader.audit import Auditor
from turnstile.executor.leader.clock import LeaderClock
from turnstile.executor.leader.leadership import Leader
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.parameter_schemas import ParameterSchemas
from turnstile.executor.leader.ports import NewestTurn
from turnstile.executor.leader.turns import Times, Turns
from turnstile.executor.leader.watchdog import GRACE_SECONDS
from turnstile.executor.leader_counts import counted
from turnstile.executor.metrics import LEADER_EPOCH, LEADER_LOOP_LAG, LEADING

logger = logging.getLogger(__name__)

STATUS_SECONDS: Final = 0.5
"""How often the parent hears how this process is; a loop that does not come round says nothing."""
_STOP_SECONDS: Final = 2.0
"""How long a turn and the resignation may take at the end; closing connections takes two more at most."""
_SETTINGS_SECONDS: Final = 10.0
_EXIT_ORPHANED: Final = ExitCode.FAILED
_PR_SET_PDEATHSIG: Final = 1


class LeaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader needs of the settings of `executor serve`."""

    executor: str
    """A name for people; each process adds something of its own."""
    database_url: str
    amqp_url: str
    queue_type: Literal["quorum", "classic"] = "quorum"
    parameters_bytes_max: int = 256 * 1024
    event_result_max_bytes: int = 64 * 1024
    leadership_seconds: float = 3.0
    """Without a turn for so long, another executor takes over."""
    stop_seconds: float = GRACE_SECONDS
    """How long a worker has to stop an overdue attempt, and again after a cancel."""
    otlp_endpoint: str | None = None
    log_level: str = "INFO"
    log_format: Literal["console", "json"] = "console"


class LeaderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the process is."""

    executor_id: str
    is_leading: bool
    epoch: int = 0
    """While it leads, as the rest."""
    turn: int = 0
    has_broker: bool = False
    """Whether the connection stands that consumes the leader's queues."""
    broker_trouble: str | None = None
    """Why it cannot publish, or consume while it leads."""
    database_trouble: str | None = None
    """What the database refuses though it can be reached, like a right that the account lacks."""
    broker_blocks: bool = False
    """Whether the broker takes no publishes for now, because of a memory or disk alarm."""
    lag_seconds: float = 0.0
    """The largest lag of its event loop lately."""
    audits: int = 0
    """How often its memory was compared with the rows."""
    differences: tuple[str, ...] = ()
    """What differed last, after which it loaded again."""


class LeaderProcess:
    """One process, from its settings to its end."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lag = LoopLag()
        self._stream: FrameStream

    async def serve(self, stop: asyncio.Event) -> None:
        """Lead or wait until `stop` is set, finish the present turn, and let another executor lead."""
        self._stream = await FrameStream.over(self._end)
        async with asyncio.timeout(_SETTINGS_SECONDS):
            frame = await self._stream.read()
        if frame is None or frame.kind != "settings":
            raise SystemExit(_EXIT_ORPHANED)
        settings = msgspec.json.decode(frame.data, type=LeaderSettings)
        configure_logging(level=settings.log_level, form=settings.log_format)
        configure_tracing(service="turnstile-executor", endpoint=settings.otlp_endpoint)
        self._assemble(settings)
        questions = BrokerQuestions(
            settings.amqp_url, lambda *asked: self._audience.ask(*asked, is_only_asked=False)
        )
        logger.info("leader_process_started", extra={"executor_id": self._executor_id})
        async with asyncio.TaskGroup() as tasks:
            leading = tasks.create_task(self._leader.run(), name="leader")
            beside = [
                tasks.create_task(self._listen(stop), name="parent"),
                tasks.create_task(self._broker.run(), name="broker"),
                tasks.create_task(questions.run(), name="questions"),
                tasks.create_task(self._report_often(), name="status"),
                tasks.create_task(self._lag.run(), name="loop-lag"),
            ]
            await stop.wait()
            self._leader.stop()
            self._clock.wake()
            # A takeover or a load has decided nothing: it is given up.
            seconds = 0.0 if self._leader.leadership is None else _STOP_SECONDS
            await asyncio.wait({leading}, timeout=seconds)
            for task in (leading, *beside):
                task.cancel()
        await asyncio.gather(self._auditor.close(), self._ledger.close())
        self._stream.close()
        logger.info("leader_process_stopped")

    def _assemble(self, settings: LeaderSettings) -> None:
        """Make the leader and what it needs."""
        self._executor_id = f"{settings.executor}.{secrets.token_hex(4)}"
        self._clock = LeaderClock()
        schemas = ParameterSchemas(lambda: self._leader.leadership)
        self._ledger = ledger = Ledger(
            settings.database_url,
            on_command=self._read_inbox,
            parameters_bytes_max=settings.parameters_bytes_max,
            refusal_of=schemas.refusal_of,
        )
        self._broker = AmqpBroker(
            settings.amqp_url, refusal_of=schemas.refusal_of,
            event_result_bytes_max=settings.event_result_max_bytes,
            parameters_bytes_max=settings.parameters_bytes_max, queue_type=settings.queue_type,
            wake=self._clock.wake, store_body=ledger.store_body,
        )  # fmt: skip
        self._audience = Audience(self._executor_id, self._broker, self._clock, self._report)
        self._auditor = Auditor(settings.database_url)
        self._audience.compared = lambda: (self._auditor.done, self._auditor.found)
        seconds = settings.leadership_seconds
        turns = Turns(
            self._executor_id, ledger, self._broker, self._clock,
            Times(certain=seconds * 2 / 3, leadership=seconds, stop=settings.stop_seconds),
            audience=self._audience, auditor=self._auditor,
        )  # fmt: skip
        self._leader = Leader(turns, event_result_bytes_max=settings.event_result_max_bytes)
        LEADING.read_from(lambda: float(self._audience.is_leading))
        LEADER_EPOCH.read_from(lambda: _epoch_of(self._audience.newest_turn))
        LEADER_LOOP_LAG.read_from(self._lag.worst_seconds)

    async def _listen(self, stop: asyncio.Event) -> None:
        while (frame := await self._stream.read()) is not None:
            match frame.kind:
                case "ask":
                    self._ask(frame)
                case "counts":
                    self._stream.write(Frame("reply", frame.id, data=msgspec.Raw(counted())))
                case "stop":
                    stop.set()
                case _:
                    pass
        if not stop.is_set():
            # Without a farewell: what was decided is committed or not, as after any crash.
            os._exit(_EXIT_ORPHANED)

    def _read_inbox(self) -> None:
        self._leader.look_at_inbox()
        self._clock.wake()

    def _ask(self, frame: Frame) -> None:
        number = frame.id

        def reply(data: bytes) -> None:
            self._stream.write(Frame("reply", number, data=msgspec.Raw(data)))

        self._audience.ask(bytes(frame.data), frame.seconds, reply)

    async def _report_often(self) -> None:
        while True:
            self._report()
            await asyncio.sleep(STATUS_SECONDS)

    def _report(self) -> None:
        newest = self._audience.newest_turn
        status = LeaderStatus(
            executor_id=self._executor_id, is_leading=newest is not None,
            epoch=0 if newest is None else newest.epoch, turn=0 if newest is None else newest.number,
            has_broker=self._broker.is_open, broker_trouble=self._broker.last_error,
            broker_blocks=self._broker.blocked, database_trouble=self._ledger.refusals.reason,
            lag_seconds=self._lag.worst_seconds() or 0.0, audits=self._auditor.done,
            differences=self._auditor.found,
        )  # fmt: skip
        self._stream.write(Frame("status", data=msgspec.Raw(msgspec.json.encode(status))))


def _epoch_of(newest: NewestTurn | None) -> float | None:
    return None if newest is None else newest.epoch


def die_with(parent: int) -> None:
    """Let the kernel end this process with its parent, even while its loop is busy or it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_EXIT_ORPHANED)


def run() -> None:
    """Run the process; its arguments are the number of the socket and the id of its parent."""
    number, parent = map(int, sys.argv[1:3])
    die_with(parent)
    # What fails before the settings have come is logged, too.
    configure_logging(level="INFO", form="console")
    try:
        run_service(LeaderProcess(socket.socket(fileno=number)).serve)
    except Exception:
        logger.critical("leader_process_failed", exc_info=True)
        raise SystemExit(ExitCode.FAILED) from None


if __name__ == "__main__":
    run()
