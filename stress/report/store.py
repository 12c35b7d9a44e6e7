"""Stores a run in the report's folder: recordings, `report.json`, `report.html` and `pictures/*.png`.

Recordings can be checked again by a later version: `check_again`.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter
from rich.console import Console

from turnstile.stress.check.rules import check_recording
from turnstile.stress.metrics.run import run_metrics
from turnstile.stress.metrics.scenario import measure_scenario
from turnstile.stress.recording import Recording
from turnstile.stress.report.charts import pictures_of
from turnstile.stress.report.documents import as_html, as_json
from turnstile.stress.report.run_report import RunInfo, RunReport, ScenarioReport
from turnstile.stress.report.summary import print_summary

_RECORDINGS: Final = "recordings"
_JSON: Final = "report.json"
_PAGE: Final = "report.html"
_PICTURES: Final = "pictures"


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredRun(RunInfo):
    """What a later check needs from `report.json`."""

    seconds: float
    collapses: tuple[str, ...]


class ReportStore:
    """The growing report of a run."""

    def __init__(self, folder: Path, info: RunInfo) -> None:
        """Begin a report; an earlier report in the folder stays until the first recording."""
        self.info = info
        self.scenarios: list[ScenarioReport] = []
        self.failures: list[str] = []
        self._folder = folder
        self._began = time.monotonic()

    def add_versions(self, versions: Mapping[str, str]) -> None:
        """Add versions of the installation's servers."""
        self.info = replace(self.info, versions={**self.info.versions, **versions})

    def add(self, recording: Recording) -> None:
        """Save a recording, check it and measure it."""
        if not self.scenarios:
            shutil.rmtree(self._folder / _RECORDINGS, ignore_errors=True)
        recording.save(self._folder / _RECORDINGS / f"{len(self.scenarios) + 1:02}-{recording.scenario.name}")
        self.scenarios.append(_scenario_report(recording))

    def report(self) -> RunReport:
        """Return the report so far."""
        seconds = time.monotonic() - self._began
        return _run_report(self.info, self.scenarios, tuple(self.failures), seconds=seconds)


def check_again(folder: Path) -> RunReport:
    """Check and measure all recordings of a report again; raises OSError or ValueError without any."""
    stored = TypeAdapter(_StoredRun).validate_json((folder / _JSON).read_bytes())
    info = RunInfo(**{field.name: getattr(stored, field.name) for field in fields(RunInfo)})
    scenarios = [_scenario_report(Recording.load(each)) for each in sorted((folder / _RECORDINGS).iterdir())]
    return _run_report(info, scenarios, stored.collapses, seconds=stored.seconds)


def show_report(folder: Path, report: RunReport, console: Console) -> None:
    """Print the summary of a report and write its files."""
    print_summary(console, report)
    write_report(folder, report)
    console.print(f"Report: {folder / _PAGE}", soft_wrap=True)


def write_report(folder: Path, report: RunReport) -> None:
    """Write all files of a report; those of an earlier report are replaced."""
    pictures = folder / _PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    # First the file that cannot fail: the metrics are saved even if a picture fails.
    (folder / _JSON).write_bytes(as_json(report))
    of_scenarios = [pictures_of(scenario) for scenario in report.scenarios]
    for stale in pictures.glob("*.png"):
        stale.unlink()
    for picture in chain.from_iterable(of_scenarios):
        (pictures / f"{picture.name}.png").write_bytes(picture.png)
    (folder / _PAGE).write_text(as_html(report, of_scenarios), encoding="utf-8")


def _scenario_report(recording: Recording) -> ScenarioReport:
    return ScenarioReport(
        recording=recording, verdict=check_recording(recording), metrics=measure_scenario(recording)
    )


def _run_report(
    info: RunInfo, scenarios: list[ScenarioReport], collapses: tuple[str, ...], *, seconds: float
) -> RunReport:
    return RunReport(
        info=info,
        scenarios=tuple(scenarios),
        metrics=run_metrics([(each.recording, each.verdict, each.metrics) for each in scenarios]),
        seconds=seconds,
        collapses=collapses,
    )
