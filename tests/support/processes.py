"""Real executor and worker processes for the tests: started with an environment, awaited, stopped by pid.

They stand alone, as in production: the keeper beside the services of `localservers` would end what a worker
leaves behind, and no test would see that it was left. The kernel ends them when we die. Where a test has
failed, their logs stay.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from turnstile.localservers.ports import free_port

_READY_SECONDS = 30.0
_STOP_SECONDS = 45.0
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--") if sys.platform == "linux" else ()

failed_tests: list[str] = []
"""Those of this process, so far: whoever shares one system among tests is not told of their failures."""

FAST = {
    "TURNSTILE_WATCHDOG_INTERVAL": "500ms",
    "TURNSTILE_DISPATCH_TIMEOUT": "5s",
    "TURNSTILE_SETTLE_TIMEOUT": "5s",
    "TURNSTILE_LEASE_DURATION": "6s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "2s",
}
"""Settings that let a test see healing without waiting for it."""


@dataclass(kw_only=True)
class Service:
    """One process of ours."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    http_url: str

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        os.kill(self.pid, number)

    async def stop(self) -> int:
        """SIGTERM, wait, and SIGKILL at the deadline; returns the exit code."""
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), _STOP_SECONDS)
            except TimeoutError:
                self.process.kill()
        return await self.process.wait()

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def ready(self) -> None:
        """Wait until /readyz says so; fail with the log when it does not."""
        async with httpx.AsyncClient() as http:
            deadline = asyncio.get_running_loop().time() + _READY_SECONDS
            while True:
                try:
                    if (await http.get(f"{self.http_url}/readyz", timeout=2)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                ended = self.process.returncode is not None
                if ended or asyncio.get_running_loop().time() > deadline:
                    raise AssertionError(f"{self.name} is not ready:\n{self.log.read_text()[-4000:]}")
                await asyncio.sleep(0.05)


@dataclass(kw_only=True)
class System:
    """Executors and workers over one database and one vhost."""

    database_url: str
    amqp_url: str
    folder: Path
    settings: Mapping[str, str]
    executors: list[Service] = field(default_factory=list)
    workers: list[Service] = field(default_factory=list)

    @property
    def http_url(self) -> str:
        """The API of the first executor."""
        return self.executors[0].http_url

    async def start_executor(self, *, wait: bool = True, **settings: str) -> Service:
        """Start one more executor, and wait until it serves."""
        port = free_port()
        service = await self._start(
            f"executor-{len(self.executors)}",
            ["-m", "turnstile.executor.cli", "serve"],
            port,
            {"TURNSTILE_HTTP_PORT": str(port), **settings},
        )
        self.executors.append(service)
        if wait:
            await service.ready()
        return service

    async def start_worker(self, actions: str, **settings: str) -> Service:
        """Start one more worker for the actions of a module and wait until it serves."""
        service = await self.launch_worker(actions, **settings)
        await service.ready()
        return service

    async def launch_worker(self, actions: str, **settings: str) -> Service:
        """Start one more worker, which may end before it serves."""
        port = free_port()
        name = f"worker-{len(self.workers)}"
        service = await self._start(
            name,
            ["-m", "turnstile.worker.cli", "serve", "--actions", actions],
            port,
            {"TURNSTILE_WORKER_HTTP_PORT": str(port), "TURNSTILE_WORKER_NAME": name, **settings},
        )
        self.workers.append(service)
        return service

    async def _start(
        self, name: str, arguments: Sequence[str], port: int, settings: Mapping[str, str]
    ) -> Service:
        log = self.folder / f"{name}.log"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TURNSTILE_")},
            "TURNSTILE_DATABASE_URL": self.database_url,
            "TURNSTILE_AMQP_URL": self.amqp_url,
            **self.settings,
            **settings,
        }
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *_DIES_WITH_US, sys.executable, *arguments, stdout=output, stderr=output, env=environment
            )
        return Service(name=name, process=process, log=log, http_url=f"http://127.0.0.1:{port}")


@asynccontextmanager
async def running(
    database_url: str,
    amqp_url: str,
    *,
    executors: int = 1,
    workers: int = 1,
    actions: str = "tests.e2e.actions",
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[System]:
    """Run a system for the length of a test; at its end every process is gone, after success the logs too."""
    folder = Path(tempfile.mkdtemp(prefix="turnstile-e2e-"))
    failed_before = len(failed_tests)
    has_failed = True
    system = System(
        database_url=database_url, amqp_url=amqp_url, folder=folder, settings={**FAST, **(settings or {})}
    )
    try:
        for _ in range(executors):
            await system.start_executor()
        for _ in range(workers):
            await system.start_worker(actions)
        yield system
        has_failed = len(failed_tests) > failed_before
    except BaseException as failure:
        failure.add_note(f"The logs of the services: {folder}")
        raise
    finally:
        services = [*system.workers, *system.executors]
        await asyncio.gather(*(service.stop() for service in services))
        if not has_failed:
            shutil.rmtree(folder)
