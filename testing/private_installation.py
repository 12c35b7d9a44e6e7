"""A private Turnstile for tests: servers, an executor, and a worker for the modules of the test.

In: names of modules with actions. Out: an `Installation` that submits, waits, empties itself and moves time:
it changes rows behind a raised epoch, so the leader loads what it left, as after a takeover.
PostgreSQL and RabbitMQ are private ones in a scratch folder, or those of TURNSTILE_TEST_DATABASE_URL,
TURNSTILE_TEST_AMQP_URL and TURNSTILE_TEST_MANAGEMENT_URL, with a database and a vhost of its own.
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from datetime import datetime
from importlib import resources
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from unittest.mock import patch

import httpx

from turnstile.client import AsyncClient, Client, use_client
from turnstile.common.database import DatabaseHosts
from turnstile.common.domain.durations import parse_duration
from turnstile.localservers import servers_for_tests
from turnstile.localservers.services import Service, serving
from turnstile.stress.local.launcher import Deployment, temporary_deployment

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

T = TypeVar("T")

_SETTINGS: Final = {"TURNSTILE_DRAIN_TIMEOUT": "2s", "TURNSTILE_HEARTBEAT_INTERVAL": "250ms"}
"""The worker repeats an end until a heartbeat is answered, and `reset` waits for that."""
_NO_FIELDS: Final = frozenset({"id", "ref", "created_at", "updated_at"})
"""What the API shows of an action besides its definition."""
_RESET_SECONDS: Final = 15.0
_DATABASE_SECONDS: Final = 30.0
_LOAD_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.02
_CREDENTIALS: Final = ("TURNSTILE_API_TOKEN", "TURNSTILE_API_TOKEN_FILE", "TURNSTILE_API_CA_FILE")
"""Those of another installation, which must not reach this one."""


class NoActionModules(Exception):
    """The modules of the worker are not named, or do not exist."""


class NotEmptied(Exception):
    """An action of an earlier test does not end."""


class Installation:
    """One executor and one worker, with a database and a vhost of their own. Made by `installation`."""

    def __init__(self, deployment: Deployment, executor: Service, worker: Service, driver: "_Driver") -> None:
        self._driver = driver
        self.database_url = deployment.database_url
        self.amqp_url = deployment.amqp_url
        self.http_url = executor.url
        self._executor = executor
        self._worker = worker
        self._http = httpx.Client(base_url=f"{executor.url}/api/v1", timeout=30, trust_env=False)
        self._definitions: dict[str, dict[str, Any]] = {}
        self._known_schedules: set[str] = set()
        self._client: Client | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The settings with which an application reaches it."""
        return {
            "TURNSTILE_DATABASE_URL": self.database_url,
            "TURNSTILE_AMQP_URL": self.amqp_url,
            "TURNSTILE_API_URL": self.http_url,
        }

    @property
    def client(self) -> Client:
        """A connected client, which blocks; actions can be submitted with it by code of both kinds."""
        if self._client is None:
            with _without_credentials():
                self._client = Client(amqp_url=self.amqp_url, http_url=self.http_url)
            self._client.__enter__()
        return self._client

    def async_client(self) -> AsyncClient:
        """Return a client for code with an event loop: `async with turnstile.async_client() as client:`."""
        with _without_credentials():
            return AsyncClient(amqp_url=self.amqp_url, http_url=self.http_url)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let this process submit to this installation: actions by `client`, the rest by `environment`."""
        with _without_credentials(self.environment), use_client(self.client):
            yield

    def advance(self, duration: str | float) -> None:
        """Let so much time pass for what is delayed: requests with `run_at`, retries, and times to live.

        `duration` is like '1h', or seconds. Rates, leases, and the times that an execution shows stay.
        """
        self._driver.run(self._advance(parse_duration(duration)))

    def log(self) -> str:
        """Return what the executor and the worker have logged."""
        services = (self._executor, self._worker)
        return "".join(f"--- {each.name}\n{each.log.read_text(errors='replace')}" for each in services)

    def reset(self) -> None:
        """Cancel what has not ended, delete all executions and dead letters, and restore the definitions.

        Raises NotEmptied if an action does not end within 15 s of its cancel.
        """
        for name in self._schedules() - self._known_schedules:
            self._http.delete(f"/schedules/{name}")
        for action in self._actions():
            if action["ref"] not in self._definitions:
                self._http.delete(f"/actions/{action['ref']}", params={"cancel": "true"})
        self._driver.run(self._empty())
        for action in self._actions():
            known = self._definitions.get(action["ref"])
            if known is not None and known != _definition(action):
                self._http.put(f"/actions/{action['ref']}", json=known).raise_for_status()

    def _note_definitions(self) -> None:
        self._definitions = {action["ref"]: _definition(action) for action in self._actions()}

        self._known_schedules = self._schedules()

    def _schedules(self) -> set[str]:
        answer = self._http.get("/schedules", params={"limit": 1000}).raise_for_status()
        return {each["name"] for each in answer.json()["items"]}

    def _actions(self) -> list[dict[str, Any]]:
        answer = self._http.get("/actions", params={"limit": 1000}).raise_for_status()
        return list(answer.json()["items"])

    async def _advance(self, seconds: float) -> None:
        async with self._database() as connection:
            await self._change(connection, "advance.sql", seconds)

    async def _change(self, connection: "Connection", change: str, *values: object) -> None:
        """Change the rows behind the leader's back, and return once it leads again by what they say."""
        async with connection.transaction():
            epoch = await connection.fetchval(_text("depose.sql"))
            await connection.execute(_text(change), *values)
        await connection.execute(_text("release.sql"))
        deadline = asyncio.get_running_loop().time() + _LOAD_SECONDS
        while not await connection.fetchval(
            "SELECT EXISTS (SELECT FROM ledger.turn t WHERE t.epoch > $1)", epoch
        ):
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"no executor leads {_LOAD_SECONDS:g} s after a change\n{self.log()}")
            await asyncio.sleep(_POLL_SECONDS)

    async def _empty(self) -> None:
        deadline = asyncio.get_running_loop().time() + _RESET_SECONDS
        cancelled: set[int] = set()
        async with self._database() as connection:
            if not await connection.fetchval(_text("is_used.sql")):
                return
            while unfinished := await connection.fetch(_text("unfinished.sql")):
                for row in unfinished:
                    if row["id"] is not None and row["id"] not in cancelled:
                        cancelled.add(row["id"])
                        self._http.post(f"/executions/{row['id']}/cancel")
                if asyncio.get_running_loop().time() > deadline:
                    refs = ", ".join(sorted({str(row["ref"]) for row in unfinished}))
                    raise NotEmptied(
                        f"{refs}: still runs {_RESET_SECONDS:g} s after its cancel\n{self.log()}"
                    )
                await asyncio.sleep(_POLL_SECONDS)
            await self._heard(await connection.fetchval("SELECT clock_timestamp()"), deadline)
            await self._change(connection, "delete.sql")

    async def _heard(self, since: datetime, deadline: float) -> None:
        """Wait until each live worker was answered: it would repeat ends that are unknown then."""
        while any(
            datetime.fromisoformat(worker["renewed_at"]) <= since
            for worker in self._http.get("/workers", params={"state": "live"})
            .raise_for_status()
            .json()["items"]
        ):
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"a worker sends no heartbeats\n{self.log()}")
            await asyncio.sleep(_POLL_SECONDS)

    @asynccontextmanager
    async def _database(self) -> AsyncIterator["Connection"]:
        hosts = DatabaseHosts(self.database_url, connect_seconds=_DATABASE_SECONDS)
        connection: Connection = await hosts.connect(command_timeout=_DATABASE_SECONDS)
        try:
            yield connection
        finally:
            await connection.close(timeout=_DATABASE_SECONDS)

    def _close(self) -> None:
        if self._client is not None:
            self._client.__exit__(None, None, None)
        self._http.close()


@contextmanager
def installation(
    *actions: str, settings: Mapping[str, str] | None = None, concurrency: int = 10
) -> Iterator[Installation]:
    """Start an installation with a worker for these modules; stop it at the end.

    The worker imports them from the current folder, or from where this process imports. `settings` are
    environment variables of both services. Raises NoActionModules before it starts anything.
    """
    # With the path of this process: pytest's option `pythonpath` is not in its environment.
    importable = [str(Path.cwd()), *filter(None, sys.path)]
    _check_modules(actions, importable)
    with ExitStack() as stack:
        postgresql, rabbitmq = stack.enter_context(servers_for_tests())
        driver = stack.enter_context(_Driver())
        deployment = driver.enter(
            temporary_deployment(
                postgresql,
                rabbitmq,
                f"turnstile_testing_{secrets.token_hex(6)}",
                settings={
                    **_SETTINGS,
                    "PYTHONPATH": os.pathsep.join(importable),
                    "TURNSTILE_WORKER_CONCURRENCY": str(concurrency),
                    **(settings or {}),
                },
            )
        )
        executor = deployment.executor("executor")
        worker = deployment.worker("worker", actions=actions)
        # In this order, and stopped in the other one: the worker reports its ends to the executor.
        for service in (executor, worker):
            driver.enter(serving([service], last_signal=signal.SIGTERM))
        made = Installation(deployment, executor, worker, driver)
        stack.callback(made._close)
        made._note_definitions()
        yield made


@contextmanager
def _without_credentials(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Set these variables of this process, and hide the credentials of its environment, until the end."""
    with patch.dict(os.environ, environment or {}):
        for name in _CREDENTIALS:
            os.environ.pop(name, None)
        yield


class _Driver:
    """Runs coroutines in an event loop of its own, so that tests with an event loop may call it too.

    One thread, because on Linux what a thread has started may end with it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turnstile-testing")
        self._runner = asyncio.Runner()
        self._entered = AsyncExitStack()

    def __enter__(self) -> Self:
        return self

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; blocks."""
        return self._thread.submit(self._runner.run, work).result()

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter an async context until the driver ends; blocks."""
        return self.run(self._entered.enter_async_context(manager))

    def __exit__(self, *error: object) -> None:
        try:
            self.run(self._entered.aclose())
        finally:
            self._thread.submit(self._runner.close).result()
            self._thread.shutdown()


def _check_modules(actions: Sequence[str], importable: Sequence[str]) -> None:
    if not actions:
        raise NoActionModules(
            'installation: name at least one module with actions, like installation("reports.actions")'
        )
    for target in actions:
        package = target.partition(":")[0].partition(".")[0]
        # An editable install may be found by a hook instead of a folder; a loaded module was found.
        exists = package in sys.modules or (
            package and (PathFinder.find_spec(package, importable) or find_spec(package))
        )
        if not exists:
            raise NoActionModules(
                f"{target}: there is no module {package!r} in {importable[0]}, nor on Python's path; run the "
                "tests in the folder that contains it, or add that folder to pytest's option pythonpath"
            )


def _definition(action: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in action.items() if name not in _NO_FIELDS}


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
