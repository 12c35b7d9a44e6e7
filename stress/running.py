"""A whole run: stage after stage, each carried out, judged and measured, then the report.

In: what is asked, and an installation or none. Out: the report in its folder, and an exit code: 0 only if
every promise was kept in every stage. A run that is broken off reports the stages that it finished. Next:
`drive` carries a stage out, `check` judges it, `figures` measures it, `report` shows it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from turnstile.common.command_line import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, CommandFailed
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.passwords import without_passwords
from turnstile.common.telemetry import configure_logging
from turnstile.localservers import LocalServersError
from turnstile.localservers.signals import until_signal
from turnstile.stress.asked import Asked
from turnstile.stress.drive.stage import check_ready, drive_stage
from turnstile.stress.installation import Installation
from turnstile.stress.keeping import Facts, Keeper
from turnstile.stress.local.system import LocalSystem, running_locally
from turnstile.stress.presets import stages_of
from turnstile.stress.recording import Recording
from turnstile.stress.report.live import live_view
from turnstile.stress.report.machine import Machine, library_versions
from turnstile.stress.stage import Stage

EXIT_BROKEN: Final = 1
_LINE_WIDTH_ELSEWHERE: Final = 110
_WORKER_CONCURRENCY: Final = 50
"""Of each private worker: more than all slots of the default load."""


def run_to_the_end(asked: Asked, place: Installation | None, folder: Path, *, command: Sequence[str]) -> int:
    """Carry out a run; return its exit code. Raises CommandFailed where it could not even begin."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(
            f"--report: {folder}: {error.strerror}; expected a folder that can be made, or written to",
            exit_code=EXIT_USAGE,
        ) from None
    console = console_for_lines()
    # What is lost and found again meanwhile is in the report; only what nobody expected is told here.
    configure_logging(level="ERROR", form="console")
    try:
        work = _run(asked, place, folder, shown_command(command), console)
        return asyncio.run(until_signal(work, say=console.print))
    except LocalServersError as error:
        raise CommandFailed(str(error), exit_code=error.exit_code) from None
    except TurnstileError as error:
        raise CommandFailed(str(error), exit_code=EXIT_UNREACHABLE) from None
    except OSError as error:
        raise CommandFailed(f"the run failed: {error}", exit_code=EXIT_FAILED) from None


def shown_command(words: Sequence[str]) -> str:
    """Return a command line as a report may keep it: without passwords in URLs."""
    return without_passwords(" ".join(["stress", *words]))


def console_for_lines() -> Console:
    """Return a console that is wide enough for tables where it is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _LINE_WIDTH_ELSEWHERE
    return console


async def _run(
    asked: Asked, place: Installation | None, folder: Path, command_line: str, console: Console
) -> int:
    stages = stages_of(asked)
    facts = Facts(
        seed=asked.seed,
        command_line=command_line,
        started_at=datetime.now(UTC),
        machine=Machine.here(),
        versions=library_versions(),
        installation=asked.describe() if place is None else place.describe(),
    )
    keeper = Keeper(folder, facts)
    try:
        if place is None:
            async with running_locally(
                executors=asked.executors,
                workers=asked.workers,
                concurrency=_WORKER_CONCURRENCY,
                actions=max(stage.load.actions for stage in stages),
                lease_seconds=asked.lease_seconds,
                say=console.print,
            ) as system:
                keeper.know(versions=await asyncio.to_thread(system.versions))
                await _carry_out(stages, system.installation, system, keeper, console)
        else:
            await check_ready(place, max(stage.load.actions for stage in stages))
            await _carry_out(stages, place, None, keeper, console)
    except asyncio.CancelledError:
        # What is known is worth more than what is missing; where nothing is, an earlier report stays.
        if keeper.stages:
            keeper.failures.append("the run was broken off")
            keeper.show(keeper.report(), console)
        raise
    report = keeper.report()
    keeper.show(report, console)
    return 0 if report.kept else EXIT_BROKEN


async def _carry_out(
    stages: Sequence[Stage],
    place: Installation,
    system: LocalSystem | None,
    keeper: Keeper,
    console: Console,
) -> None:
    with live_view(console) as view:
        for number, stage in enumerate(stages, 1):
            try:
                recording = await drive_stage(
                    stage,
                    place,
                    seed=keeper.facts.seed,
                    show=view.show,
                    number=number,
                    stages=len(stages),
                    breaker=system,
                )
            except (TurnstileError, LocalServersError) as error:
                keeper.failures.append(f"{stage.name}: {error}")
                view.failed(stage.title, str(error))
                return
            view.judging(stage.title)
            await asyncio.to_thread(keeper.keep, _with_collapses(recording, system))
            view.judged(keeper.stages[-1])


def _with_collapses(recording: Recording, system: LocalSystem | None) -> Recording:
    """Return the recording with what ended by itself since it began."""
    if system is None:
        return recording
    collapses = [each for each in system.collapses if each.at.timestamp() * 1e9 >= recording.began_at]
    told = (
        f"{each.name} ended by itself, exit code {each.exit_code}: {each.last_lines}" for each in collapses
    )
    return replace(recording, collapses=tuple(told))
