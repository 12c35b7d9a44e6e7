"""Starts the services of one local system: executors and workers over one database and one vhost.

In: servers (private or by URL) and settings. Out: a `Deployment`, whose `executor()` and `worker()` return
`Service`s that are not started; `running_system` starts them, waits until they are ready and stops them.
Used by the demo, the stress test, the benchmarks and the tests; needs no library of the `stress` extra.
"""

import asyncio
import shlex
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import turnstile
from turnstile.common.cli import CommandFailed
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.exit_codes import ExitCode
from turnstile.localservers import BrokerServer, DatabaseServer, LocalServersError, until_signal
from turnstile.localservers.ports import free_port
from turnstile.localservers.processes import run_in_thread
from turnstile.localservers.services import Service, environment_without, serving
from turnstile.migrations.run import migrate

_MIGRATE_SECONDS: Final = 60.0
_SOURCE: Final = Path(turnstile.__file__).parents[1]
"""The folder from which this process imports `turnstile`; the services import it from there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A migrated database, a vhost, and the settings that all services of one system share."""

    database_url: str
    amqp_url: str
    folder: Path
    """The services run here and write their logs here."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of every service."""
    importable: Path = _SOURCE
    """First on Python's path of every service, for example the folder that holds the actions."""
    last_signal: signal.Signals = signal.SIGKILL
    """Sent to a service at the end of the system, or when this process dies."""
    stop_seconds: float = 20.0
    """From that signal to SIGKILL."""

    def environment(self, settings: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of one service; this process's own TURNSTILE_* variables are left out."""
        return {
            **environment_without("TURNSTILE_", importable=self.importable),
            "TURNSTILE_AMQP_URL": self.amqp_url,
            **self.settings,
            **(settings or {}),
        }

    def executor(self, name: str = "executor-1", settings: Mapping[str, str] | None = None) -> Service:
        """Return an executor on a free port, not started; `settings` override those of the deployment."""
        port = free_port(name)
        own = {"TURNSTILE_DATABASE_URL": self.database_url, "TURNSTILE_HTTP_PORT": str(port)}
        return self._service(name, ["turnstile.executor.cli", "serve"], port, own, settings)

    def worker(
        self,
        name: str = "worker-1",
        *,
        actions: str | Sequence[str],
        settings: Mapping[str, str] | None = None,
    ) -> Service:
        """Return a worker for the actions of one or several modules, on a free port, not started."""
        port = free_port(name)
        arguments = ["turnstile.worker.cli", "serve", *action_options(actions)]
        own = {"TURNSTILE_WORKER_HTTP_PORT": str(port), "TURNSTILE_WORKER_NAME": name}
        return self._service(name, arguments, port, own, settings)

    def _service(
        self,
        name: str,
        arguments: Sequence[str],
        port: int,
        own: Mapping[str, str],
        settings: Mapping[str, str] | None,
    ) -> Service:
        return Service(
            name=name,
            arguments=arguments,
            folder=self.folder,
            environment=self.environment({**own, **(settings or {})}),
            port=port,
            last_signal=self.last_signal,
            stop_seconds=self.stop_seconds,
        )


def action_options(actions: str | Sequence[str]) -> list[str]:
    """Return the options of the command line `worker` that name these modules."""
    modules = [actions] if isinstance(actions, str) else actions
    return [word for module in modules for word in ("--actions", module)]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Executors and workers that run."""

    deployment: Deployment
    executors: tuple[Service, ...]
    workers: tuple[Service, ...]

    @property
    def services(self) -> tuple[Service, ...]:
        """All of them, executors first."""
        return (*self.executors, *self.workers)

    @property
    def http_url(self) -> str:
        """The URL of the first executor."""
        return self.executors[0].url

    def write_exports(self, file: Path) -> None:
        """Write a file that sets the URLs in a shell."""
        urls = {
            "TURNSTILE_DATABASE_URL": self.deployment.database_url,
            "TURNSTILE_AMQP_URL": self.deployment.amqp_url,
            "TURNSTILE_API_URL": self.http_url,
        }
        exports = [f"export {name}={shlex.quote(url)}" for name, url in urls.items()]
        file.write_text("\n".join([*exports, ""]), encoding="utf-8")

    def check_running(self) -> None:
        """Raise ServerFailed, with the end of its log, where a service has ended by itself."""
        for service in self.services:
            service.check_running()


def run_until_signal(
    work: Coroutine[Any, Any, int], *, what: str, say: Callable[[str], object], exit_code: ExitCode | None
) -> ExitCode:
    """Run the work of a command as `until_signal` does; raises CommandFailed, which says `what` failed."""
    try:
        return ExitCode(asyncio.run(until_signal(work, say=say, exit_code=exit_code)))
    except LocalServersError as error:
        raise CommandFailed(str(error), exit_code=ExitCode(error.exit_code)) from None
    except CommandFailed:
        raise
    except (TurnstileError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise CommandFailed(f"{what} failed: {reason}", exit_code=ExitCode.FAILED) from None


async def create_database_and_vhost(
    postgresql: DatabaseServer, rabbitmq: BrokerServer, name: str
) -> tuple[str, str]:
    """Create a migrated database and a vhost; return the URL of each.

    Those of kept servers are used again, with their content; the database is migrated to this version.
    """
    exists = await run_in_thread(postgresql.has_database, name)
    database_url = postgresql.url(name) if exists else await run_in_thread(postgresql.create_database, name)
    amqp_url = await run_in_thread(rabbitmq.create_vhost, name)
    async with asyncio.timeout(_MIGRATE_SECONDS):
        await migrate(database_url)
    return database_url, amqp_url


@asynccontextmanager
async def temporary_deployment(
    postgresql: DatabaseServer,
    rabbitmq: BrokerServer,
    name: str,
    *,
    settings: Mapping[str, str],
    importable: Path = _SOURCE,
    last_signal: signal.Signals = signal.SIGKILL,
) -> AsyncIterator[Deployment]:
    """Yield a deployment on a new database, vhost and folder; delete all three at the end.

    With database and vhost go the connections of services that still run.
    """
    with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as folder:
        try:
            database_url, amqp_url = await create_database_and_vhost(postgresql, rabbitmq, name)
            yield Deployment(
                database_url=database_url,
                amqp_url=amqp_url,
                folder=Path(folder),
                settings=settings,
                importable=importable,
                last_signal=last_signal,
            )
        finally:
            await run_in_thread(rabbitmq.delete_vhost, name)
            await run_in_thread(postgresql.drop_database, name)


@asynccontextmanager
async def running_system(
    deployment: Deployment,
    executors: Sequence[Service],
    workers: Sequence[Service] = (),
    *,
    restart_failed: bool = False,
) -> AsyncIterator[System]:
    """Start the services, yield when all are ready, stop all at the end, whatever happens.

    `restart_failed`: a service that ends by itself is recorded in its `collapses` and started again. Raises
    ServerFailed where a service does not become ready.
    """
    system = System(deployment=deployment, executors=tuple(executors), workers=tuple(workers))
    deployment.folder.mkdir(parents=True, exist_ok=True)
    async with serving(system.services, last_signal=deployment.last_signal, restart_failed=restart_failed):
        yield system
