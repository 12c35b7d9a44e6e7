"""Python services beside private servers: started, awaited, killed, paused, restarted.

Each has a keeper process beside it (`processes.py`), so that nothing of it outlives this process. `serving`
runs several in parallel; `until_signal` ends a program that runs servers in an orderly way.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx

from turnstile.localservers.errors import ServerFailed
from turnstile.localservers.ports import LOOPBACK
from turnstile.localservers.processes import ServerProcess, run_in_thread

_READY_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.1
_LOG_LINES_SHOWN: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapse:
    """A service ended by itself."""

    name: str
    exit_code: int | None
    at: datetime
    last_lines: str


@dataclass(slots=True, kw_only=True)
class Service:
    """One service; it may be stopped and started again."""

    name: str
    arguments: Sequence[str]
    """Arguments of `python -m`."""
    folder: Path
    """Holds its log."""
    environment: Mapping[str, str]
    runs_in: Path | None = None
    """Its working folder; None: `folder`."""
    port: int | None = None
    """The port of its `/readyz`; None: it has none."""
    last_signal: signal.Signals = signal.SIGKILL
    """Sent to it when this process dies."""
    stop_seconds: float = 20.0
    """From its last signal to SIGKILL."""
    collapses: list[Collapse] = field(default_factory=list)
    starts: int = 0
    _process: ServerProcess | None = field(default=None, init=False)
    _is_restarted: bool = field(default=False, init=False)
    # Start and stop run in threads, one at a time.
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def url(self) -> str:
        """Its HTTP URL; stays the same over restarts."""
        assert self.port is not None
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """Its log; restarts append to it."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Its current process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and a process of it runs."""
        return self._process is not None and self._process.is_running

    def family(self) -> set[int]:
        """Return the pids of its current process and of all descendants."""
        return set() if self._process is None else self._process.family()

    async def start(self) -> None:
        """Start it unless it runs."""
        async with self._changing:
            if self._process is None:
                await run_in_thread(self._start_process)

    async def end(self, how: signal.Signals) -> None:
        """Send a last signal and wait until no process of it runs; kill it after `stop_seconds`."""
        async with self._changing:
            process, self._process = self._process, None
            if process is not None:
                await run_in_thread(process.stop, how, self.stop_seconds)

    def pause(self) -> None:
        """Freeze it (SIGSTOP), but not its children."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    async def ready(self, http: httpx.AsyncClient) -> None:
        """Wait until `/readyz` succeeds, not at all without a port; raises ServerFailed with its log."""
        if self.port is None:
            return
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready(http):
                    if not self._is_restarted:
                        self.check_running()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise ServerFailed(f"{self.name} is not ready", self.log) from None

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself: 128 plus the number of a signal that killed it; None: it did not."""
        return None if self._process is None else self._process.exit_code

    def check_running(self) -> None:
        """Raise ServerFailed, with the end of its log, where it has ended by itself."""
        if self._process is not None and not self._process.is_running:
            raise ServerFailed(f"{self.name} ended by itself", self.log)

    async def keep_alive(self) -> NoReturn:
        """Record when it ends by itself and start it again, until cancelled."""
        self._is_restarted = True
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            process = self._process
            if process is None or process.is_running or self._changing.locked():
                continue
            lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            self.collapses.append(
                Collapse(
                    name=self.name,
                    exit_code=process.exit_code,
                    at=datetime.now(UTC),
                    last_lines="\n".join(lines),
                )
            )
            await self.end(signal.SIGKILL)
            await self.start()

    async def _is_ready(self, http: httpx.AsyncClient) -> bool:
        try:
            answer = await http.get(f"{self.url}/readyz", timeout=_PROBE_SECONDS)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    def _start_process(self) -> None:
        # Assigned in the thread: even if the caller is cancelled, there is a process that must be stopped.
        self._process = ServerProcess.start(
            self.name,
            [sys.executable, "-m", *self.arguments],
            folder=self.folder,
            runs_in=self.runs_in,
            environment=self.environment,
            user=None,
            last_signal=self.last_signal,
            grace_seconds=self.stop_seconds,
        )
        self.starts += 1


@asynccontextmanager
async def serving(
    services: Sequence[Service], *, last_signal: signal.Signals, restart_failed: bool = False
) -> AsyncIterator[None]:
    """Start the services in parallel, yield when all are ready, stop all of them whatever happens.

    `restart_failed`: a service that ends by itself is started again. Raises ServerFailed where one does not
    become ready.
    """
    restarting: list[asyncio.Task[NoReturn]] = []
    try:
        for service in services:
            await service.start()
        async with httpx.AsyncClient(trust_env=False) as http:
            for service in services:
                await service.ready(http)
        if restart_failed:
            restarting = [asyncio.create_task(s.keep_alive(), name=f"restart-{s.name}") for s in services]
        yield
    finally:
        for task in restarting:
            task.cancel()
        await asyncio.gather(*restarting, return_exceptions=True)
        await asyncio.gather(*(service.end(last_signal) for service in services))


def environment_without(prefix: str, *, importable: Path) -> dict[str, str]:
    """Return the environment without variables of that prefix, and with a folder first on PYTHONPATH."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefix)}
    paths = [str(importable), *filter(None, [inherited.get("PYTHONPATH")])]
    return inherited | {"PYTHONPATH": os.pathsep.join(paths)}


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signal(
    work: Coroutine[Any, Any, int], *, say: Callable[[str], object], exit_code: int | None = None
) -> int:
    """Run `work` to its end, or cancel it on SIGINT, SIGTERM or SIGHUP and wait for its clean-up.

    After a signal the result is `exit_code`, or 128 plus the number of the signal where that is None.
    """
    task = asyncio.create_task(work, name="work")
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        if not received:
            say("Stopping")
            task.cancel()
        received.append(number)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            # Standard output was closed: `rich` raises SystemExit, which cancels this task.
            raise
        return 128 + received[0] if exit_code is None else exit_code
