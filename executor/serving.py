"""The leader's process as `executor serve` sees it: started, watched, asked, started again, stopped in order.

In: settings, and the order to stop. Out: whom to ask, and for /readyz what is wrong. A process that ends is
started again after a pause that doubles, so that one that cannot live costs little; its log says why. No
leader survives its HTTP, and HTTP survives its leader.
"""

import asyncio
import logging
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from turnstile.executor.asking.asker import Frame, FrameStream, LocalAsker
from turnstile.executor.leader_process import LeaderSettings, LeaderStatus
from turnstile.executor.settings import ExecutorSettings

logger = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-P", "-m", "turnstile.executor.leader_process")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTimes:
    """In seconds."""

    pause_first: float = 0.5
    """Before the second start; it doubles from there."""
    pause_max: float = 30.0
    healthy: float = 60.0
    """A process that lived for so long ends the doubling."""
    silent: float = 3.0
    """/readyz reports a process that has said nothing for so long."""
    hung: float = 60.0
    """A process that has said nothing for so long is ended: longer than any load blocks its loop."""
    stop: float = 5.0
    """How long an orderly end may take; then it is killed."""


class LeaderService:
    """The leader's process of this executor, over all its starts."""

    def __init__(
        self, settings: LeaderSettings, *, command: Sequence[str] = COMMAND, times: ProcessTimes | None = None
    ) -> None:
        self.local = LocalAsker()
        self.status: LeaderStatus | None = None
        """What the present process said last; None: nothing yet."""
        self.starts = 0
        self.on_status: Callable[[LeaderStatus], None] = lambda _: None
        self._settings, self._command, self._times = settings, command, times or ProcessTimes()
        self._process: asyncio.subprocess.Process | None = None
        self._heard_at = 0.0
        self._trouble: str | None = "not started yet"

    @property
    def pid(self) -> int | None:
        """The id of the present process."""
        return None if self._process is None else self._process.pid

    def trouble(self) -> str | None:
        """Return why the leader's process of this executor cannot lead or answer now; None: it could."""
        if self._trouble is not None:
            return self._trouble
        silent_seconds = time.monotonic() - self._heard_at
        if silent_seconds > self._times.silent:
            return f"the leader process has said nothing for {silent_seconds:.0f} s"
        refused = None if self.status is None else self.status.database_trouble
        return None if refused is None else f"database: {refused}"

    async def run(self, stop: asyncio.Event) -> None:
        """Keep a process running until `stop` is set; then let it hand over, and wait for its end.

        Cancelled, it kills the process.
        """
        pause_seconds = self._times.pause_first
        while not stop.is_set():
            began_at = time.monotonic()
            why = await self._live(stop)
            if stop.is_set():
                break
            lived_seconds = time.monotonic() - began_at
            if lived_seconds >= self._times.healthy:
                pause_seconds = self._times.pause_first
            # Jitter: what several executors share, like a database that refuses, ends them at the same time.
            rest_seconds = pause_seconds * random.uniform(0.5, 1.0)
            self._trouble = f"the leader process {why}; it starts again in {rest_seconds:.1f} s"
            logger.error(
                "leader_process_ended",
                extra={
                    "reason": why, "lived_seconds": round(lived_seconds, 1),
                    "starts_again_in_seconds": round(rest_seconds, 1),
                },
            )  # fmt: skip
            pause_seconds = min(pause_seconds * 2, self._times.pause_max)
            await _set_within(stop, rest_seconds)
        self._trouble = "stopped"

    async def _live(self, stop: asyncio.Event) -> str:
        """Run one process to its end; return how it ended."""
        ours, theirs = socket.socketpair()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, str(theirs.fileno()), str(os.getpid()), stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        except OSError as error:
            ours.close()
            return f"cannot be started: {error}"
        finally:
            # Only the child holds this end: its end shows here at once.
            theirs.close()
        self.starts += 1
        stream: FrameStream | None = None
        try:
            stream = await FrameStream.over(ours)
            stream.write(Frame("settings", data=msgspec.Raw(msgspec.json.encode(self._settings))))
            self._heard_at = time.monotonic()
            listening = asyncio.create_task(self._listen(stream), name="leader-process")
            try:
                return await self._watch(process, stream, stop)
            finally:
                listening.cancel()
                await asyncio.wait({listening})
        finally:
            self.local.connect(None)
            self.status, self._process = None, None
            if process.returncode is None:
                process.kill()
                await process.wait()
            if stream is not None:
                stream.close()

    async def _watch(
        self, process: asyncio.subprocess.Process, stream: FrameStream, stop: asyncio.Event
    ) -> str:
        ended = asyncio.create_task(process.wait(), name="leader-process-end")
        stopping = asyncio.create_task(stop.wait(), name="leader-process-stop")
        try:
            while not (ended.done() or stopping.done()):
                await asyncio.wait({ended, stopping}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                if time.monotonic() - self._heard_at > self._times.hung:
                    process.kill()
                    await ended
                    return f"had said nothing for {self._times.hung:g} s and was ended"
            if not ended.done():
                stream.write(Frame("stop"))
                await asyncio.wait({ended}, timeout=self._times.stop)
                if not ended.done():
                    logger.error("leader_process_killed", extra={"reason": "it did not stop in time"})
                    process.kill()
            code = await ended
        finally:
            for task in (ended, stopping):
                task.cancel()
            await asyncio.wait({ended, stopping})
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    async def _listen(self, stream: FrameStream) -> None:
        while (frame := await stream.read()) is not None:
            if frame.kind == "reply":
                self.local.take_reply(frame)
            elif frame.kind == "status":
                if self.status is None:
                    # It has its settings, and can be asked.
                    self.local.connect(stream)
                    self._trouble = None
                self._heard_at = time.monotonic()
                self.status = msgspec.json.decode(frame.data, type=LeaderStatus)
                self.on_status(self.status)


def leader_settings(settings: ExecutorSettings) -> LeaderSettings:
    """Return what the leader's process needs of the settings of `executor serve`."""
    return LeaderSettings(
        executor=socket.gethostname(), database_url=settings.database_url.get_secret_value(),
        amqp_url=settings.amqp_url.get_secret_value(), queue_type=settings.queue_type,
        parameters_bytes_max=settings.parameters_bytes_max,
        event_result_max_bytes=settings.event_result_max_bytes, stop_seconds=settings.stop_timeout,
        otlp_endpoint=settings.otlp_endpoint,
        log_level=settings.log_level, log_format=settings.log_format,
    )  # fmt: skip


async def serve_both(
    http: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    leader: LeaderService,
    stop: asyncio.Event,
    *,
    requests_seconds: float = 0.3,
    drain_seconds: float = 10.0,
) -> None:
    """Serve HTTP in this process and lead in the other one, until `stop` is set.

    `http(stop)` takes nothing new then, and returns when what it has taken is answered. Requests get
    `requests_seconds` before the leader hands over, which decides them; streams and the rest get
    `drain_seconds`.
    """
    stop_leading = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        leading = tasks.create_task(leader.run(stop_leading), name="leader")
        serving = tasks.create_task(http(stop), name="http")
        await stop.wait()
        await asyncio.wait({serving}, timeout=requests_seconds)
        stop_leading.set()
        await asyncio.wait({serving}, timeout=drain_seconds)
        serving.cancel()
        await asyncio.wait({leading})


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
