"""The command lines, called in this process; and a system of two real processes for tests that need one."""

import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from tests.support.processes import System, running
from tests.support.silent_worker import silent_worker
from tests.support.sources import LentUrls
from turnstile.cli import app as turnstile_app
from turnstile.executor.cli import app as executor_app
from turnstile.localservers.ports import free_port
from turnstile.worker.cli import app as worker_app

TOKEN = "a-token-of-the-tests"
SERVED_ACTIONS = "tests.integration.cli.served_actions"
_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLines:
    environment: Mapping[str, str]

    def executor(self, *arguments: str, stdin: str | bytes | None = None, **settings: str) -> Ended:
        return self._ended(executor_app, arguments, stdin, settings)

    def worker(self, *arguments: str, **settings: str) -> Ended:
        return self._ended(worker_app, arguments, None, settings)

    def umbrella(self, *arguments: str, **settings: str) -> Ended:
        return self._ended(turnstile_app, arguments, None, settings)

    def apply(self, **definition: Any) -> None:
        """Create or change an action."""
        ended = self.executor("actions", "apply", "-", stdin=json.dumps([definition]))
        assert ended.exit_code == 0, ended.err

    def submit(self, *arguments: str) -> int:
        """Submit an execution and return its id."""
        ended = self.executor("submit", *arguments, "--json")
        assert ended.exit_code == 0, ended.err
        return int(ended.json["id"])

    def _ended(self, app: Any, arguments: Any, stdin: Any, settings: Mapping[str, str]) -> Ended:
        environment = {**self.environment, "COLUMNS": "200", **settings}
        result = CliRunner().invoke(app, list(arguments), input=stdin, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Ended(exit_code=result.exit_code, out=result.stdout, err=result.stderr)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the environment that runs the tests."""
    for name in [name for name in os.environ if name.startswith("TURNSTILE_")]:
        if not name.startswith("TURNSTILE_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture
def alone() -> CommandLines:
    """The command lines without an API."""
    return CommandLines(environment={"TURNSTILE_API_URL": f"http://127.0.0.1:{free_port()}"})


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def processes(lent_urls: LentUrls) -> AsyncIterator[System]:
    """One executor and one worker, started by their commands, for all tests of this folder."""
    settings = {"TURNSTILE_API_TOKENS": TOKEN, "TURNSTILE_LOG_FLUSH_INTERVAL": "100ms"}
    with lent_urls() as urls:
        async with running(*urls, actions=SERVED_ACTIONS, settings=settings) as system:
            with silent_worker(system.amqp_url, "silent", "empty"):
                yield system


@pytest.fixture
def system(processes: System) -> CommandLines:
    """The command lines with the API of `processes`."""
    return CommandLines(environment={"TURNSTILE_API_URL": processes.http_url, "TURNSTILE_API_TOKEN": TOKEN})


@pytest.fixture
def ref(system: CommandLines) -> Iterator[str]:
    """An action whose worker starts nothing: its executions stay queued or scheduled until the test ends."""
    name = f"cli.{secrets.token_hex(4)}"
    system.apply(ref=name, max_concurrent=1, pool="empty")
    yield name
    # Later tests count what waits.
    ended = system.executor("cancel", "--action", name, "--yes")
    assert ended.exit_code == 0, ended.err


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
