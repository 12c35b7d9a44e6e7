"""Python services beside private servers: started, awaited, killed, paused, started again.

In: a module that can be run, an environment, and the port on which it answers `/readyz`. Out: a `Service`
that somebody may break at any time. Each has a keeper beside it (`processes.py`), so that nothing of it
outlives us, whatever our death. `serving` runs several side by side.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import httpx

from turnstile.localservers.errors import ServerFailed
from turnstile.localservers.ports import LOOPBACK
from turnstile.localservers.processes import ServerProcess
from turnstile.localservers.threads import to_the_end

_READY_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.1
_LOG_LINES_SHOWN: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapse:
    """A service ended though nobody had asked it to."""

    name: str
    exit_code: int | None
    at: datetime
    last_lines: str


@dataclass(slots=True, kw_only=True)
class Service:
    """One service over all its lives."""

    name: str
    arguments: Sequence[str]
    """Of `python -m`."""
    folder: Path
    """Where it runs and writes its log."""
    environment: Mapping[str, str]
    port: int | None = None
    """On which it answers `/readyz`; None: it does not."""
    last_signal: signal.Signals = signal.SIGKILL
    """What it gets when we die."""
    stop_seconds: float = 20.0
    """After its last signal it is killed."""
    collapses: list[Collapse] = field(default_factory=list)
    starts: int = 0
    _process: ServerProcess | None = field(default=None, init=False)
    _is_kept: bool = field(default=False, init=False)
    # Starting and stopping take their time in threads; one of them at a time.
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def url(self) -> str:
        """Where it answers HTTP, in all its lives."""
        assert self.port is not None
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """What it wrote in all its lives."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Its process in this life."""
        assert self._process is not None
        return self._process.pid

    def family(self) -> list[int]:
        """Return the processes of this life: its own and all that came of it."""
        return [] if self._process is None else self._process.family()

    async def start(self) -> None:
        """Start it, unless it runs."""
        async with self._changing:
            if self._process is None:
                await to_the_end(self._begin_a_life)

    async def end(self, how: signal.Signals) -> None:
        """Send it a last signal, and wait until nothing of it is left; where that takes too long, kill it."""
        async with self._changing:
            process, self._process = self._process, None
            if process is not None:
                await to_the_end(process.stop, how, self.stop_seconds)

    def pause(self) -> None:
        """Stop it where it stands, but not its children."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    async def ready(self, http: httpx.AsyncClient) -> None:
        """Wait until it reaches all that it needs; raises ServerFailed with its log."""
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready(http):
                    if not self._is_kept:
                        self.check_running()
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise ServerFailed(f"{self.name} is not ready", self.log) from None

    def check_running(self) -> None:
        """Raise ServerFailed, with the end of its log, where it has ended by itself."""
        if self._process is not None and not self._process.is_running:
            raise ServerFailed(f"{self.name} ended by itself", self.log)

    async def keep_alive(self) -> NoReturn:
        """Note when it ends by itself, and start it again, until cancelled."""
        self._is_kept = True
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
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

    def _begin_a_life(self) -> None:
        # Noted here, in the thread: a start that was broken off is a process all the same, and must be ended.
        self._process = ServerProcess.start(
            self.name,
            [sys.executable, "-m", *self.arguments],
            folder=self.folder,
            environment=self.environment,
            user=None,
            last_signal=self.last_signal,
            grace_seconds=self.stop_seconds,
        )
        self.starts += 1


@asynccontextmanager
async def serving(
    services: Sequence[Service], *, last_signal: signal.Signals, kept: bool = False
) -> AsyncIterator[None]:
    """Start them side by side, lend them when all are ready, end all of them whatever happens.

    `kept`: who ends by itself is started again. Raises ServerFailed where one does not become ready.
    """
    keeping: list[asyncio.Task[NoReturn]] = []
    try:
        for service in services:
            await service.start()
        async with httpx.AsyncClient(trust_env=False) as http:
            for service in services:
                await service.ready(http)
        if kept:
            keeping = [asyncio.create_task(s.keep_alive(), name=f"keep-{s.name}") for s in services]
        yield
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        await asyncio.gather(*(service.end(last_signal) for service in services))


def environment_without(prefix: str, *, importable: Path) -> dict[str, str]:
    """Return our environment but for what starts with `prefix`, with a folder first on Python's path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefix)}
    paths = [str(importable), *filter(None, [inherited.get("PYTHONPATH")])]
    return inherited | {"PYTHONPATH": os.pathsep.join(paths)}
