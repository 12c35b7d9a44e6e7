"""Runs the demo: a short stress run on private servers, or with `--stay` a system that waits for requests.

Exit code 0: every check passed (or the user ended `--stay`), 1: a check failed or a service ended by itself,
2: the example actions are missing, 69: a server is not installed. No process and no folder stays behind, even
after kill -9: each service has a keeper process that ends it with this process.
"""

import asyncio
import importlib.util
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from rich.console import Console

from turnstile.common.cli import EXIT_FAILED, EXIT_USAGE, CommandFailed
from turnstile.common.exit_codes import ExitCode
from turnstile.common.telemetry.logs import configure_logging
from turnstile.localservers import LocalServers, running_servers
from turnstile.localservers.ports import same_ports
from turnstile.stress.local.launcher import (
    Deployment,
    System,
    create_database_and_vhost,
    run_until_signal,
    running_system,
)
from turnstile.stress.local.system import running_locally
from turnstile.stress.report.run_report import RunInfo
from turnstile.stress.report.store import ReportStore
from turnstile.stress.report.summary import print_summary
from turnstile.stress.run import plain_console, run_scenarios
from turnstile.stress.scenario import DurationMix, Load, Purpose, Scenario

ACTIONS_MODULE: Final = "examples.actions"
_WORKERS: Final = 2
_NAME: Final = "turnstile"
_WORKER_CONCURRENCY: Final = 10
_LEASE_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 15.0
_DRAIN_TIMEOUT: Final = "3s"
"""No client waits for results once the system is interrupted."""
_LOAD: Final = Load(executions=100, mix=DurationMix.parse("50% 20ms, 50% 80ms"), actions=1, submitters=1)
_SCENARIOS: Final = tuple(
    Scenario(name=f"limit-{limit}", title=f"Limit {limit}", purpose=Purpose.LOAD, load=_LOAD, limit=limit)
    for limit in (2, 3)
)


def demo(
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Start everything, submit nothing, print the URLs and run until Ctrl-C."),
    ] = False,
    folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="With --stay: folder of the file 'env', which sets the URLs in a shell, and of 'ports', "
            "which keeps them the same at each start.",
        ),
    ] = Path(".turnstile"),
) -> None:
    """Run 200 executions on private servers and check order and limits.

    The report at the end is computed from the history and from what the actions recorded. Afterwards all
    servers are stopped and their folder is deleted.
    """
    raise typer.Exit(_run_demo(stay_in=folder if stay else None))


def _run_demo(*, stay_in: Path | None) -> int:
    """Return the exit code; raises CommandFailed."""
    console = plain_console()
    configure_logging(level="ERROR", form="console")
    if stay_in is not None:
        stay_in.mkdir(parents=True, exist_ok=True)
    work, exit_code = (_run(console), None) if stay_in is None else (_stay(console, stay_in), ExitCode.OK)
    return run_until_signal(work, what="the demo", say=console.print, exit_code=exit_code)


async def _run(console: Console) -> int:
    info = RunInfo.now(seed=1, command_line="executor demo", installation=f"one executor, {_WORKERS} workers")
    with TemporaryDirectory(prefix="turnstile-demo-") as folder:
        store = ReportStore(Path(folder), info)
        async with running_locally(
            executors=1,
            workers=_WORKERS,
            concurrency=_WORKER_CONCURRENCY,
            actions=_LOAD.actions,
            lease_seconds=_LEASE_SECONDS,
            say=console.print,
        ) as system:
            await run_scenarios(_SCENARIOS, system.installation, system, store, console)
    report = store.report()
    print_summary(console, report)
    return 0 if report.passed else EXIT_FAILED


async def _stay(console: Console, folder: Path) -> int:
    """Print all URLs and wait for a signal; raises ServerFailed where a service ends by itself."""
    source = _find_source()
    console.print("Starting PostgreSQL and RabbitMQ in a scratch folder")
    with same_ports(folder / "ports"):
        async with _system_to_try(console, source) as (servers, system):
            _print_urls(console, servers, system, folder / "env")
            while True:
                system.check_running()
                await asyncio.sleep(1)
    raise AssertionError("ended by a signal only")


@asynccontextmanager
async def _system_to_try(console: Console, source: Path) -> AsyncIterator[tuple[LocalServers, System]]:
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
        console.print(f"Starting one executor and {_WORKERS} workers with the actions of {ACTIONS_MODULE}")
        names = [f"worker-{number}" for number in range(1, _WORKERS + 1)]
        workers = [deployment.worker(name, actions=ACTIONS_MODULE) for name in names]
        async with running_system(deployment, [deployment.executor("executor")], workers) as system:
            yield servers, system


def _find_source() -> Path:
    """Return the folder that holds the example actions; raises CommandFailed."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(ACTIONS_MODULE)
        if found and found.origin:
            return Path(found.origin).resolve().parents[1]
    raise CommandFailed(
        f"{ACTIONS_MODULE} not found; run the demo in the folder of the source code", exit_code=EXIT_USAGE
    )


def _print_urls(console: Console, servers: LocalServers, system: System, env_file: Path) -> None:
    http_url, deployment = system.http_url, system.deployment
    exported = "\n  ".join(system.write_exports(env_file))
    examples = deployment.importable / "examples"
    example = examples / "README.md"
    program = Path(sys.executable).with_name("executor")
    console.print(
        f"""
Dashboard     {http_url}/
HTTP API      {http_url}/api/v1   (described at {http_url}/docs)
RabbitMQ      {servers.rabbitmq.management_url}   (management; user and password as below)
Logs          {deployment.folder}

Try, in another terminal ('. {env_file}' sets the same, also after the next start):
  {exported}
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
