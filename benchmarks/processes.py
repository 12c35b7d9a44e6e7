"""Processes of a run: started with an environment, awaited, stopped by pid, with their log at hand."""

import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from benchmarks.ground import Place
from benchmarks.waiting import DidNotHappen
from turnstile.localservers.ports import free_port
from turnstile.localservers.services import Service, environment_without

_LOG_CHARACTERS_MAX: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One executor and its workers over one place."""

    place: Place
    executor_pid: int
    worker_pids: tuple[int, ...]
    http: httpx.AsyncClient

    def pids(self) -> dict[str, list[int]]:
        """Return the processes of each part by its name."""
        return {"executor": [self.executor_pid], "workers": list(self.worker_pids)}

    async def limit(self, action_ref: str, max_concurrent: int | None) -> None:
        """Change the limit of an action."""
        answer = await self.http.patch(
            f"/api/v1/actions/{action_ref}", json={"max_concurrent": max_concurrent}
        )
        answer.raise_for_status()


@asynccontextmanager
async def process(name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[int]:
    """Run `python -m ...` and lend its pid; its log is shown where what was waited for did not happen."""
    async with _started(name, arguments, environment) as service:
        yield service.pid


@asynccontextmanager
async def running_system(place: Place, *, workers: int = 2, concurrency: int = 50) -> AsyncIterator[System]:
    """Run one executor and the workers; all are ready when it is lent and gone when it is given back."""
    shared = {**place.environment(), "TURNSTILE_LOG_LEVEL": "WARNING"}
    async with AsyncExitStack() as stack:
        port = free_port()
        given = {**shared, "TURNSTILE_HTTP_PORT": str(port)}
        executor = await stack.enter_async_context(
            _started("executor", ["turnstile.executor.cli", "serve"], given, port)
        )
        services = [executor]
        for number in range(workers):
            port = free_port()
            given = {
                **shared,
                "TURNSTILE_WORKER_NAME": f"bench-{number}",
                "TURNSTILE_WORKER_HTTP_PORT": str(port),
                "TURNSTILE_WORKER_CONCURRENCY": str(concurrency),
            }
            arguments = ["turnstile.worker.cli", "serve", "--actions", "benchmarks.actions"]
            services.append(
                await stack.enter_async_context(_started(f"worker-{number}", arguments, given, port))
            )
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=executor.url, trust_env=False, timeout=30)
        )
        for service in services:
            await service.ready(http)
        worker_pids = tuple(worker.pid for worker in services[1:])
        yield System(place=place, executor_pid=executor.pid, worker_pids=worker_pids, http=http)


@asynccontextmanager
async def _started(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], port: int | None = None
) -> AsyncIterator[Service]:
    with tempfile.TemporaryDirectory(prefix="turnstile-bench-") as folder:
        service = Service(
            name=name,
            arguments=arguments,
            folder=Path(folder),
            environment={**environment_without("TURNSTILE_", importable=Path.cwd()), **environment},
            port=port,
        )
        try:
            await service.start()
            yield service
        except (DidNotHappen, TimeoutError) as error:
            log = service.log.read_text()[-_LOG_CHARACTERS_MAX:]
            raise DidNotHappen(f"{error}\n{name}: {log}") from error
        finally:
            await service.end(signal.SIGTERM)
