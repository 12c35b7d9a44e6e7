"""Keeps what a run has come to: recordings, their verdicts and figures, and the report made of them.

In: a `Recording` after the other. Out: `recordings/` in the report's folder, and a `RunReport`. What is kept
can be judged again by a later version: `judge_again`.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter
from rich.console import Console

from turnstile.stress.check.judge import judge
from turnstile.stress.figures.five import five_figures
from turnstile.stress.figures.measure import measure
from turnstile.stress.recording import Recording
from turnstile.stress.report.document import Document
from turnstile.stress.report.machine import Machine
from turnstile.stress.report.run_report import RunReport, StageReport
from turnstile.stress.report.summary import print_summary
from turnstile.stress.report.write import JSON, PAGE, write_report

RECORDINGS: Final = "recordings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a report says of its run besides what was recorded."""

    seed: int
    command_line: str
    started_at: datetime
    machine: Machine
    versions: Mapping[str, str] = field(default_factory=dict)
    installation: str


class Keeper:
    """The report of a run while it grows."""

    def __init__(self, folder: Path, facts: Facts) -> None:
        """Begin a report; what an earlier run left in the folder stays until there is something to keep."""
        self.facts = facts
        self.stages: list[StageReport] = []
        self.failures: list[str] = []
        self._folder = folder
        self._began = time.monotonic()

    def know(self, *, versions: Mapping[str, str]) -> None:
        """Add what was found out about the installation."""
        self.facts = replace(self.facts, versions={**self.facts.versions, **versions})

    def keep(self, recording: Recording) -> None:
        """Write a recording down, judge it and measure it."""
        if not self.stages:
            shutil.rmtree(self._folder / RECORDINGS, ignore_errors=True)
        recording.save(self._folder / RECORDINGS / f"{len(self.stages) + 1:02}-{recording.stage.name}")
        self.stages.append(judged(recording))

    def report(self) -> RunReport:
        """Return what the run comes to."""
        return _report(self.facts, self.stages, tuple(self.failures), seconds=time.monotonic() - self._began)

    def show(self, report: RunReport, console: Console) -> None:
        """Print the summary and write the report's files."""
        show(self._folder, report, console)


def judged(recording: Recording) -> StageReport:
    """Judge and measure one recording."""
    return StageReport(recording=recording, verdict=judge(recording), figures=measure(recording))


def judge_again(folder: Path) -> RunReport:
    """Judge all recordings of a report anew; raises OSError or ValueError where there are none."""
    document = TypeAdapter(Document).validate_json((folder / JSON).read_bytes())
    places = sorted((folder / RECORDINGS).iterdir())
    facts = Facts(
        seed=document.seed,
        command_line=document.command_line,
        started_at=document.started_at,
        machine=document.machine,
        versions=document.versions,
        installation=document.installation,
    )
    stages = [judged(Recording.load(place)) for place in places]
    return _report(facts, stages, document.collapses, seconds=document.seconds)


def show(folder: Path, report: RunReport, console: Console) -> None:
    """Print the summary of a report and write its files."""
    print_summary(console, report)
    write_report(folder, report)
    console.print(f"Report: {folder / PAGE}", soft_wrap=True)


def _report(
    facts: Facts, stages: list[StageReport], failures: tuple[str, ...], *, seconds: float
) -> RunReport:
    return RunReport(
        stages=tuple(stages),
        five=five_figures([(each.recording, each.verdict, each.figures) for each in stages]),
        seed=facts.seed,
        command_line=facts.command_line,
        started_at=facts.started_at,
        seconds=seconds,
        machine=facts.machine,
        versions=facts.versions,
        installation=facts.installation,
        collapses=failures,
    )
