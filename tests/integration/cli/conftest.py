"""The command lines, called in this process; and a system of two real processes for tests that need one."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.support.sources import LentUrls
from turnstile.executor.cli import app as executor_app
from turnstile.localservers.ports import free_port
from turnstile.worker.cli import app as worker_app

TOKEN = "a-token-of-the-tests"
_READY_SECONDS = 60.0
_STOP_SECONDS = 30.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    executor_url: str
    worker_url: str
    amqp_url: str
    environment: Mapping[str, str]


@pytest.fixture(scope="session")
def processes(lent_urls: LentUrls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One executor and one worker, started by their commands, for all tests of this folder."""
    with lent_urls() as urls, _started(*urls, tmp_path_factory.mktemp("cli")) as processes:
        yield processes


@contextmanager
def _started(database_url: str, amqp_url: str, folder: Path) -> Iterator[Processes]:
    executor_port, worker_port = free_port(), free_port()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("TURNSTILE_")},
        "TURNSTILE_DATABASE_URL": database_url,
        "TURNSTILE_AMQP_URL": amqp_url,
        "TURNSTILE_HTTP_PORT": str(executor_port),
        "TURNSTILE_API_TOKENS": TOKEN,
        "TURNSTILE_WORKER_HTTP_PORT": str(worker_port),
        "TURNSTILE_LOG_FLUSH_INTERVAL": "100ms",
    }
    started = [
        _start(["-m", "turnstile.executor.cli", "serve"], environment, folder / "executor.log"),
        _start(
            ["-m", "turnstile.worker.cli", "serve", "--actions", "tests.integration.cli.served_actions"],
            environment,
            folder / "worker.log",
        ),
    ]
    urls = [f"http://127.0.0.1:{port}" for port in (executor_port, worker_port)]
    try:
        for process, url in zip(started, urls, strict=True):
            until_ready(process, url, folder)
        yield Processes(
            executor_url=urls[0],
            worker_url=urls[1],
            amqp_url=amqp_url,
            environment=environment,
        )
    finally:
        for process in reversed(started):
            process.terminate()
        codes = [process.wait(_STOP_SECONDS) for process in started]
    assert codes == [0, 0]


@pytest.fixture
def system(processes: Processes) -> CommandLines:
    """The command lines with the API of `processes`."""
    return CommandLines(
        environment={"TURNSTILE_API_URL": processes.executor_url, "TURNSTILE_API_TOKEN": TOKEN}
    )


@pytest.fixture
def ref(system: CommandLines) -> str:
    """An action without workers: its executions stay queued or scheduled."""
    name = f"cli.{secrets.token_hex(4)}"
    definition = json.dumps([{"ref": name, "max_concurrent": 1, "pool": "empty"}])
    assert system.executor("actions", "apply", "-", stdin=definition).exit_code == 0
    return name


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + _READY_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _start(arguments: list[str], environment: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, *arguments], env=environment, stdout=output, stderr=output)


def until_ready(process: "subprocess.Popen[bytes]", url: str, folder: Path) -> None:
    """Wait until a service responds to /readyz with 200; its log in `folder` explains a failure."""
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            if httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            logs = "\n".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
            raise AssertionError(f"{url} is not ready:\n{logs}")
        time.sleep(0.05)
