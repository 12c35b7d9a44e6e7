"""Real executor and worker processes for the tests: started with an environment, awaited, stopped by pid.

They have no supervisor, as in production: the supervisor of `localservers` would end the processes that a
worker leaves behind, and no test would notice. The kernel ends them when the test process dies. On Linux a
template forks them (`service_template.py`). The logs of a failed test are not deleted.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import httpx

from tests.support.service_template import DIES_WITH_US, IMPORTED_BY, ForkedProcess, fork_service
from tests.support.traffic import until
from turnstile.localservers.services import Service as PlannedService
from turnstile.stress.local.launcher import Deployment

ServiceProcess: TypeAlias = asyncio.subprocess.Process | ForkedProcess
_READY_SECONDS = 30.0
_STOP_SECONDS = 45.0

CERTIFICATES: Final = httpx.create_ssl_context()
"""Loaded once: a client that loads its own takes 20 ms of processor time for it."""

failed_tests: list[str] = []
"""Those of this process, so far: pytest does not report failures to a fixture that several tests share."""

FAST = {
    "TURNSTILE_WATCHDOG_INTERVAL": "500ms",
    "TURNSTILE_LEASE_DURATION": "6s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "2s",
}
"""Settings with which healing takes seconds."""


@dataclass(kw_only=True)
class Service:
    """One executor or worker process."""

    name: str
    process: ServiceProcess
    log: Path
    http_url: str

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """Its process id and those of its children: an executor's leader, a worker's plain functions."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        return [self.pid, *map(int, children.split())]

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

    async def readiness(self) -> Mapping[str, Any]:
        """Return the answer of /readyz: status, parts, degraded; empty while it has none."""
        async with httpx.AsyncClient(verify=CERTIFICATES) as http:
            try:
                answer = await http.get(f"{self.http_url}/readyz", timeout=2)
            except httpx.HTTPError:
                return {}
        return cast("Mapping[str, Any]", answer.json())

    async def ready(self) -> None:
        """Wait until /readyz succeeds; fail with the log if it does not."""
        deadline = asyncio.get_running_loop().time() + _READY_SECONDS
        while (await self.readiness()).get("status") != "ready":
            ended = self.process.returncode is not None
            if ended or asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{self.name} is not ready:\n{self.log.read_text()[-4000:]}")
            await asyncio.sleep(0.05)

    async def until_unready(self, **parts: tuple[str, ...] | str | None) -> None:
        """Wait until /readyz gives for each of these parts a reason with these texts, or none."""

        async def is_unready() -> bool:
            found = (await self.readiness()).get("parts", {})
            return parts.keys() <= found.keys() and all(
                found[name] is None if texts is None else _has(found[name], texts)
                for name, texts in parts.items()
            )

        await until(is_unready, f"/readyz of {self.name} with {parts}", deadline_seconds=30)


def _has(reason: str | None, texts: tuple[str, ...] | str) -> bool:
    return all(text in (reason or "") for text in ([texts] if isinstance(texts, str) else texts))


@dataclass(kw_only=True)
class System:
    """Executors and workers over one database and one vhost."""

    database_url: str
    amqp_url: str
    folder: Path
    settings: Mapping[str, str]
    executors: list[Service] = field(default_factory=list)
    executor_settings: Mapping[str, str] = field(default_factory=dict)
    workers: list[Service] = field(default_factory=list)
    working_folder: Path | None = None
    """Where the services run; None: where the tests do."""
    _executor_numbers: Iterator[int] = field(default_factory=count)
    _worker_numbers: Iterator[int] = field(default_factory=count)

    @property
    def http_url(self) -> str:
        """The API of the first executor."""
        return self.executors[0].http_url

    async def start_executor(self, *, wait: bool = True, **settings: str) -> Service:
        """Start one more executor, and wait until it is ready."""
        name = f"executor-{next(self._executor_numbers)}"
        service = await self._start(self._deployment.executor(name, {**self.executor_settings, **settings}))
        self.executors.append(service)
        if wait:
            await service.ready()
        return service

    async def start_worker(self, actions: str, **settings: str) -> Service:
        """Start one more worker for the actions of a module, and wait until it is ready."""
        service = await self.launch_worker(actions, **settings)
        await service.ready()
        return service

    async def launch_worker(self, actions: str, **settings: str) -> Service:
        """Start one more worker, which may end before it is ready."""
        name = f"worker-{next(self._worker_numbers)}"
        service = await self._start(self._deployment.worker(name, actions=actions, settings=settings))
        self.workers.append(service)
        return service

    async def stop(self) -> None:
        """Stop all services: workers first, which would wait 10 s for the answer of a leader that is gone."""
        for services in (self.workers, self.executors):
            await asyncio.gather(*(service.stop() for service in services))

    @property
    def _deployment(self) -> Deployment:
        return Deployment(
            database_url=self.database_url,
            amqp_url=self.amqp_url,
            folder=self.folder,
            settings=self.settings,
        )

    async def _start(self, planned: PlannedService) -> Service:
        process = await start_service(
            planned.arguments, environment=planned.environment, folder=self.working_folder, log=planned.log
        )
        return Service(name=planned.name, process=process, log=planned.log, http_url=planned.url)


async def start_service(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path | None,
    log: Path,
    within: Sequence[str] = DIES_WITH_US,
) -> ServiceProcess:
    """Start a module of the product with these arguments; another command than the usual one may start it."""
    with log.open("wb") as output:
        if sys.platform == "linux" and arguments[0] in IMPORTED_BY and within is DIES_WITH_US:
            return await fork_service(arguments, environment=environment, folder=folder, log=output.fileno())
        return await asyncio.create_subprocess_exec(
            *within,
            sys.executable,
            "-m",
            *arguments,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
        )


@asynccontextmanager
async def running(
    database_url: str,
    amqp_url: str,
    *,
    executors: int = 1,
    workers: int = 1,
    actions: str = "tests.e2e.actions",
    settings: Mapping[str, str] | None = None,
    executor_settings: Mapping[str, str] | None = None,
) -> AsyncIterator[System]:
    """Run a system; at its end every process is gone, and after success the logs are deleted."""
    folder = Path(tempfile.mkdtemp(prefix="turnstile-e2e-"))
    failed_before = len(failed_tests)
    has_failed = True
    system = System(
        database_url=database_url,
        amqp_url=amqp_url,
        folder=folder,
        settings={**FAST, **(settings or {})},
        executor_settings=executor_settings or {},
    )
    try:
        # Side by side, which saves a second; the first executor has subscribed before the others start.
        launched = [await system.launch_worker(actions) for _ in range(workers)]
        for _ in range(executors):
            await system.start_executor()
        for worker in launched:
            await worker.ready()
        yield system
        has_failed = len(failed_tests) > failed_before
    except BaseException as failure:
        failure.add_note(f"The logs of the services: {folder}")
        raise
    finally:
        await system.stop()
        if not has_failed:
            shutil.rmtree(folder)
