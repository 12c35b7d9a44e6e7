"""Runs the demo: starts a private system, submits the job, shows progress, prints a report, stops everything.

Exit code 0: every check passed (or the user ended `--stay`), 1: a check failed or a service ended by itself,
2: the example actions are missing, 69: a server is not installed. No process and no folder stays behind, even
after kill -9: each service has a keeper process that ends it with this process.
"""

import asyncio
import importlib.util
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from turnstile.common.cli import EXIT_FAILED, EXIT_USAGE, CommandFailed
from turnstile.common.database import Database
from turnstile.common.domain.errors import TurnstileError
from turnstile.localservers import LocalServers, LocalServersError, running_servers, until_signal
from turnstile.stress.check.database import read_history
from turnstile.stress.demo.job import ACTIONS_MODULE, prepare, submit
from turnstile.stress.demo.report import evaluate, print_report
from turnstile.stress.demo.watch import watch
from turnstile.stress.local.launcher import Deployment, System, create_database_and_vhost, running_system

WORKERS: Final = 2
_NAME: Final = "turnstile"
_OPEN_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 15.0
_DRAIN_TIMEOUT: Final = "3s"
"""No client waits for results once the demo is interrupted."""
_LINE_WIDTH_WITHOUT_TERMINAL: Final = 120


class ExamplesMissing(TurnstileError):
    """The example actions are in the source folder only, not in an installed package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The running system and its servers."""

    servers: LocalServers
    system: System

    @property
    def folder(self) -> Path:
        """The folder for logs and files; it is deleted with the servers."""
        return self.system.deployment.folder


def run_demo(*, stay: bool) -> int:
    """Run the demo, or with `stay` only start the system and wait; return the exit code.

    Raises CommandFailed.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _LINE_WIDTH_WITHOUT_TERMINAL
    try:
        if stay:
            return asyncio.run(until_signal(_stay(console), say=console.print, exit_code=0))
        return asyncio.run(until_signal(_run_job(console), say=console.print))
    except LocalServersError as error:
        raise CommandFailed(str(error), exit_code=error.exit_code) from None
    except ExamplesMissing as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    except (TurnstileError, OSError) as error:
        raise CommandFailed(
            f"the demo failed: {str(error) or type(error).__name__}", exit_code=EXIT_FAILED
        ) from None


async def _run_job(console: Console) -> int:
    async with _running_demo(console) as demo, _database(demo.system) as database:
        tasks = await asyncio.to_thread(prepare, demo.folder / "files")
        console.print(f"Submitting {len(tasks)} executions over {len({t.path for t in tasks})} text files")
        await submit(demo.system.deployment.amqp_url, tasks)
        await watch(database, expected=len(tasks), console=console, check_running=demo.system.check_running)
        report = evaluate(tasks, await read_history(database))
    print_report(console, report)
    return EXIT_FAILED if report.violations else 0


async def _stay(console: Console) -> int:
    """Print all URLs and wait for a signal; raises ServerFailed where a service ends by itself."""
    async with _running_demo(console) as demo:
        _print_urls(console, demo)
        while True:
            demo.system.check_running()
            await asyncio.sleep(1)


@asynccontextmanager
async def _running_demo(console: Console) -> AsyncIterator[Demo]:
    source = _find_source()
    started = time.monotonic()
    console.print("Starting PostgreSQL and RabbitMQ in a scratch folder")
    async with running_servers() as servers:
        database_url, amqp_url = await create_database_and_vhost(servers.postgresql, servers.rabbitmq, _NAME)
        deployment = Deployment(
            database_url=database_url,
            amqp_url=amqp_url,
            folder=servers.folder / "demo",
            settings={"TURNSTILE_DRAIN_TIMEOUT": _DRAIN_TIMEOUT},
            importable=source,
            last_signal=signal.SIGTERM,
            stop_seconds=_STOP_SECONDS,
        )
        console.print(f"Starting one executor and {WORKERS} workers with the actions of {ACTIONS_MODULE}")
        workers = [
            deployment.worker(f"worker-{number}", actions=ACTIONS_MODULE) for number in range(1, WORKERS + 1)
        ]
        async with running_system(deployment, [deployment.executor("executor")], workers) as system:
            console.print(f"Ready after {time.monotonic() - started:.1f} s")
            yield Demo(servers=servers, system=system)


@asynccontextmanager
async def _database(system: System) -> AsyncIterator[Database]:
    database = Database(system.deployment.database_url, application_name="turnstile demo", connections_max=1)
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            await database.open()
        yield database
    finally:
        await database.close()


def _find_source() -> Path:
    """Return the folder that holds the example actions; raises ExamplesMissing."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(ACTIONS_MODULE)
        if found and found.origin:
            return Path(found.origin).resolve().parents[1]
    raise ExamplesMissing(f"{ACTIONS_MODULE} not found; run the demo in the folder of the source code")


def _print_urls(console: Console, demo: Demo) -> None:
    http_url, deployment = demo.system.http_url, demo.system.deployment
    examples = deployment.importable / "examples"
    example = examples / "README.md"
    program = Path(sys.executable).with_name("executor")
    console.print(
        f"""
Dashboard     {http_url}/
HTTP API      {http_url}/api/v1   (described at {http_url}/docs)
RabbitMQ      {demo.servers.rabbitmq.management_url}   (management; user and password as below)
Logs          {demo.folder}

Try, in another terminal:
  export TURNSTILE_DATABASE_URL={deployment.database_url}
  export TURNSTILE_AMQP_URL={deployment.amqp_url}
  export TURNSTILE_API_URL={http_url}
  {program} submit files.digest path={example} --wait
  {program} queue stats files.digest
  {sys.executable} {examples}/submit_plain.py {deployment.amqp_url} \\
      files.count_words '{{"path": "{example}"}}'
  {program} list

Ctrl-C stops everything and deletes its data.""",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
