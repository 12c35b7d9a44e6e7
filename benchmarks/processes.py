"""Processes of a run: started with an environment, awaited, stopped by pid, with their log at hand."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from benchmarks.ground import Place
from benchmarks.waiting import DidNotHappen, until
from localservers.ports import free_port

_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
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
    """Run `python -m ...` and lend its pid; its log is shown if it ended by itself."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TURNSTILE_")}
    with tempfile.TemporaryDirectory(prefix="turnstile-bench-") as folder:
        log = Path(folder) / f"{name}.log"
        with log.open("wb") as output:
            started = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *arguments,
                stdout=output,
                stderr=output,
                env={**inherited, **environment},
            )
        try:
            yield started.pid
        except (DidNotHappen, TimeoutError) as error:
            raise DidNotHappen(f"{error}\n{name}: {log.read_text()[-_LOG_CHARACTERS_MAX:]}") from error
        finally:
            if started.returncode is None:
                started.terminate()
                try:
                    await asyncio.wait_for(started.wait(), _STOP_SECONDS)
                except TimeoutError:
                    started.kill()
                    await started.wait()


@asynccontextmanager
async def running_system(place: Place, *, workers: int = 2, concurrency: int = 50) -> AsyncIterator[System]:
    """Run one executor and the workers; all are ready when it is lent and gone when it is given back."""
    shared = {**place.environment(), "TURNSTILE_LOG_LEVEL": "WARNING"}
    async with AsyncExitStack() as stack:
        executor_url, port = _free_address()
        executor_pid = await stack.enter_async_context(
            process("executor", ["executor.cli", "serve"], {**shared, "TURNSTILE_HTTP_PORT": port})
        )
        urls, worker_pids = [executor_url], []
        for number in range(workers):
            url, port = _free_address()
            environment = {
                **shared,
                "TURNSTILE_WORKER_NAME": f"bench-{number}",
                "TURNSTILE_WORKER_HTTP_PORT": port,
                "TURNSTILE_WORKER_CONCURRENCY": str(concurrency),
            }
            arguments = ["worker.cli", "serve", "--actions", "benchmarks.actions"]
            worker = process(f"worker-{number}", arguments, environment)
            worker_pids.append(await stack.enter_async_context(worker))
            urls.append(url)
        for url in urls:
            await _ready(url)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=executor_url, trust_env=False, timeout=30)
        )
        yield System(place=place, executor_pid=executor_pid, worker_pids=tuple(worker_pids), http=http)


def _free_address() -> tuple[str, str]:
    port = free_port()
    return f"http://127.0.0.1:{port}", str(port)


async def _ready(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=2) as http:

        async def answers() -> bool:
            try:
                return (await http.get("/readyz")).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False

        await until(answers, f"{url} is ready", deadline_seconds=_READY_SECONDS, pause_seconds=0.05)
