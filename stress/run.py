"""A whole run: each scenario is carried out, checked and measured, then the report is written.

In: a `RunConfig`, and an installation or none for a private one. Out: the report in its folder, and an exit
code: 0 only if every check of every scenario passed. An interrupted run reports the completed scenarios.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from turnstile.common.cli import CommandFailed
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.exit_codes import ExitCode
from turnstile.common.redaction import redact_passwords
from turnstile.common.telemetry.logs import configure_logging
from turnstile.localservers import LocalServersError
from turnstile.stress.config import Preset, RunConfig
from turnstile.stress.drive.driver import drive_scenario
from turnstile.stress.drive.setup import check_ready
from turnstile.stress.installation import Installation, Unreachable
from turnstile.stress.local.faults import LocalSystem
from turnstile.stress.local.launcher import run_until_signal
from turnstile.stress.local.system import running_locally
from turnstile.stress.presets import scenarios_of
from turnstile.stress.recording import Recording
from turnstile.stress.report.live import LiveView
from turnstile.stress.report.run_report import RunInfo
from turnstile.stress.report.store import ReportStore, show_report
from turnstile.stress.report.summary import WIDTH
from turnstile.stress.scenario import Scenario

_WORKER_CONCURRENCY: Final = 50
"""Of each private worker: more than all slots of the default load."""
_GATES_WORKER_CONCURRENCY: Final = 2
"""For the preset of gates: worker slots are scarce too, at times, so that executions wait in their pool."""


def run(
    config: RunConfig, installation: Installation | None, folder: Path, *, command: Sequence[str]
) -> ExitCode:
    """Carry out a run; return its exit code. Raises CommandFailed where it cannot begin."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(
            f"--report: {folder}: {error.strerror}; expected a folder that can be created, or written to",
            exit_code=ExitCode.USAGE,
        ) from None
    console = plain_console()
    # The report contains outages and reconnects; the console shows only unexpected errors.
    configure_logging(level="ERROR", form="console")
    work = _run(config, installation, folder, shown_command(command), console)
    return run_until_signal(work, what="the run", say=console.print, exit_code=None)


def shown_command(arguments: Sequence[str]) -> str:
    """Return a command line for the report, without the passwords of URLs."""
    return redact_passwords(" ".join(["turnstile stress", *arguments]))


def plain_console() -> Console:
    """Return a console that is wide enough for tables where it is not a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


async def _run(
    config: RunConfig, installation: Installation | None, folder: Path, command_line: str, console: Console
) -> int:
    scenarios = scenarios_of(config)
    where = config.describe() if installation is None else installation.describe()
    info = RunInfo.now(seed=config.seed, command_line=command_line, installation=where)
    store = ReportStore(folder, info)
    actions = max(scenario.load.actions for scenario in scenarios)
    try:
        if installation is None:
            async with running_locally(
                executors=config.executors,
                workers=config.workers,
                concurrency=(
                    _GATES_WORKER_CONCURRENCY if config.preset is Preset.GATES else _WORKER_CONCURRENCY
                ),
                actions=actions,
                lease_seconds=config.lease_seconds,
                say=console.print,
            ) as system:
                store.add_versions(await asyncio.to_thread(system.servers.versions))
                await run_scenarios(scenarios, system.installation, system, store, console)
        else:
            try:
                await check_ready(installation, actions)
            except Unreachable as error:
                raise CommandFailed(str(error), exit_code=ExitCode.UNREACHABLE) from None
            await run_scenarios(scenarios, installation, None, store, console)
    except asyncio.CancelledError:
        # Report the completed scenarios; without any, an earlier report in the folder stays.
        if store.scenarios:
            store.failures.append("the run was interrupted")
            show_report(folder, store.report(), console)
        raise
    report = store.report()
    show_report(folder, report, console)
    return ExitCode.OK if report.passed else ExitCode.FAILED


async def run_scenarios(
    scenarios: Sequence[Scenario],
    installation: Installation,
    system: LocalSystem | None,
    store: ReportStore,
    console: Console,
) -> None:
    """Carry out, check and measure scenarios; those that cannot be completed are failures of the store."""
    view = LiveView(console)
    for number, scenario in enumerate(scenarios, 1):
        view.begin(f"Scenario {number} of {len(scenarios)}: {scenario.title}")
        try:
            recording = await drive_scenario(
                scenario, installation, seed=store.info.seed, show=view.show, injector=system
            )
        except (TurnstileError, LocalServersError) as error:
            store.failures.append(f"{scenario.name}: {error}")
            view.failed(scenario.title, str(error))
            return
        await asyncio.to_thread(store.add, _with_collapses(recording, system))
        view.checked(store.scenarios[-1])


def _with_collapses(recording: Recording, system: LocalSystem | None) -> Recording:
    """Return the recording with the services that ended by themselves since it began."""
    if system is None:
        return recording
    collapses = [each for each in system.collapses if each.at.timestamp() * 1e9 >= recording.began_at]
    sentences = (
        f"{each.name} ended by itself, exit code {each.exit_code}: {each.last_lines}" for each in collapses
    )
    return replace(recording, collapses=tuple(sentences))
