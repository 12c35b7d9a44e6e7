"""Runs the demo: a short stress run on private servers.

Exit code 0: every check passed, 1: a check failed, 69: a server is not installed. No process and no folder
stays behind, even after kill -9: each service has a keeper process that ends it with this process.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import typer
from rich.console import Console

from turnstile.common.exit_codes import ExitCode
from turnstile.common.telemetry.logs import configure_logging
from turnstile.stress.local.launcher import run_until_signal
from turnstile.stress.local.system import running_locally
from turnstile.stress.report.run_report import RunInfo
from turnstile.stress.report.store import ReportStore
from turnstile.stress.report.summary import print_summary
from turnstile.stress.run import plain_console, run_scenarios
from turnstile.stress.scenario import DurationMix, Load, Scenario

_WORKERS: Final = 2
_WORKER_CONCURRENCY: Final = 10
_LEASE_SECONDS: Final = 15.0
_LOAD: Final = Load(executions=100, mix=DurationMix.parse("50% 20ms, 50% 80ms"), actions=1, submitters=1)
_SCENARIOS: Final = tuple(
    Scenario(name=f"limit-{limit}", title=f"Limit {limit}", load=_LOAD, limit=limit) for limit in (2, 3)
)


def demo() -> None:
    """Run 200 executions on private servers and check order and limits.

    The report at the end is computed from the history and from what the actions recorded. Afterwards all
    servers are stopped and their folder is deleted.
    """
    console = plain_console()
    configure_logging(level="ERROR", form="console")
    work = _run(console)
    raise typer.Exit(run_until_signal(work, what="the demo", say=console.print, exit_code=None))


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
    return ExitCode.OK if report.passed else ExitCode.FAILED
