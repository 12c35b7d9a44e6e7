"""The processes of the system: executors and workers that are killed, paused and started again.

In: a command and an environment. Out: a `Service` that somebody may break at any time; one that ends without
having been told to is noted and started again, as whoever runs it in earnest would. Each has a keeper beside
it (`localservers.processes`), so that nothing of it outlives us. Next: `ground` sets them up.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import httpx

from localservers.errors import ServerFailed
from localservers.ports import LOOPBACK
from localservers.processes import ServerProcess

_READY_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.1
_LOG_LINES_SHOWN: Final = 15


class _Process(ServerProcess):
    """A process of ours, of which the exit code is of interest too."""

    __slots__ = ()

    @property
    def exit_code(self) -> int | None:
        """How it ended: 128 and the signal where one killed it."""
        return self._keeper.poll()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapse:
    """A service ended though nobody had asked it to."""

    name: str
    exit_code: int | None
    at: datetime
    last_lines: str


@dataclass(slots=True, kw_only=True)
class Service:
    """One executor or worker, over all its lives."""

    name: str
    arguments: Sequence[str]
    port: int
    folder: Path
    environment: Mapping[str, str]
    collapses: list[Collapse] = field(default_factory=list)
    starts: int = 0
    _process: _Process | None = None
    # Starting and stopping take their time in threads; one of them at a time.
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def url(self) -> str:
        """Where it answers HTTP, in all its lives."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """What it wrote in all its lives."""
        return self.folder / f"{self.name}.log"

    async def start(self) -> None:
        """Start it, unless it runs."""
        async with self._changing:
            if self._process is None:
                self._process = await asyncio.to_thread(self._started)
                self.starts += 1

    async def end(self, how: signal.Signals) -> None:
        """Send it a last signal, and wait until nothing of it is left; where that takes too long, kill it."""
        async with self._changing:
            process, self._process = self._process, None
            if process is not None:
                await asyncio.to_thread(process.stop, how, _STOP_SECONDS)

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
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise ServerFailed(f"{self.name} is not ready", self.log) from None

    async def keep_alive(self) -> NoReturn:
        """Note when it ends by itself, and start it again, until cancelled."""
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

    def _started(self) -> _Process:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")}
        path = os.pathsep.join([str(Path.cwd()), *filter(None, [inherited.get("PYTHONPATH")])])
        return _Process.start(
            self.name,
            [sys.executable, "-m", *self.arguments],
            folder=self.folder,
            environment={**inherited, "PYTHONPATH": path, **self.environment},
            user=None,
            last_signal=signal.SIGKILL,
            grace_seconds=1.0,
        )
