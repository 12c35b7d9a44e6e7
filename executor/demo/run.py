"""The story of `executor demo`: start, submit, watch, judge, stop; or, to stay, start and wait.

In: a console. Out: an exit code, and nothing else: no process and no folder outlives it. Next: `system`.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from turnstile.common.database import Database
from turnstile.executor.demo.history import read_history
from turnstile.executor.demo.job import ACTIONS_MODULE, prepare
from turnstile.executor.demo.page import print_report
from turnstile.executor.demo.report import judge
from turnstile.executor.demo.submission import submit
from turnstile.executor.demo.system import WORKERS, System, find_source, running_services, running_system
from turnstile.executor.demo.watch import watch

EXIT_BROKEN: Final = 1
_OPEN_SECONDS: Final = 10.0


async def run_job(console: Console) -> int:
    """Run the job and print the report; return 0 if every promise was kept."""
    async with _shown_system(console) as system, _database(system) as database:
        tasks = await asyncio.to_thread(prepare, system.folder / "files")
        console.print(f"Submitting {len(tasks)} executions over {len({t.path for t in tasks})} text files")
        await submit(system.amqp_url, tasks)
        await watch(database, expected=len(tasks), console=console, check=system.check)
        report = judge(tasks, await read_history(database))
    print_report(console, report)
    return EXIT_BROKEN if report.broken else 0


async def stay(console: Console) -> int:
    """Print where everything is, and stay until a signal comes; a process that ends by itself is an error."""
    async with _shown_system(console) as system:
        _print_places(console, system)
        while True:
            system.check()
            await asyncio.sleep(1)


@asynccontextmanager
async def _shown_system(console: Console) -> AsyncIterator[System]:
    source = find_source()
    started = time.monotonic()
    console.print("Starting PostgreSQL and RabbitMQ in a scratch folder")
    async with running_system(source) as system:
        console.print(f"Starting one executor and {WORKERS} workers with the actions of {ACTIONS_MODULE}")
        async with running_services(system):
            console.print(f"Ready after {time.monotonic() - started:.1f} s")
            yield system


@asynccontextmanager
async def _database(system: System) -> AsyncIterator[Database]:
    database = Database(system.database_url, application_name="turnstile demo", connections_max=1)
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            await database.open()
        yield database
    finally:
        await database.close()


def _print_places(console: Console, system: System) -> None:
    rabbitmq = system.servers.rabbitmq
    examples = system.source / "examples"
    example = examples / "README.md"
    program = Path(sys.executable).with_name("executor")
    console.print(
        f"""
Dashboard     {system.http_url}/
HTTP API      {system.http_url}/api/v1   (described at {system.http_url}/docs)
RabbitMQ      {rabbitmq.management_url}   (management; user and password as below)
Logs          {system.folder}

Try, in another terminal:
  export TURNSTILE_DATABASE_URL={system.database_url}
  export TURNSTILE_AMQP_URL={system.amqp_url}
  export TURNSTILE_API_URL={system.http_url}
  {program} submit files.digest path={example} --wait
  {program} queue stats files.digest
  {sys.executable} {examples}/submit_plain.py {system.amqp_url} \\
      files.count_words '{{"path": "{example}"}}'
  {program} list

Ctrl-C stops everything and deletes its data.""",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
