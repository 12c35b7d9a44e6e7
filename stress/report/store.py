"""Stores a run in the report's folder: recordings, `report.txt` and timelines for readers, `report.json`.

A later version can check the recordings again: `check_again`.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import to_json
from rich.console import Console

from turnstile.stress.check.rules import check_recording
from turnstile.stress.metrics import measure_scenario
from turnstile.stress.recording import SECOND, Recording
from turnstile.stress.report.run_report import RunInfo, RunReport, ScenarioReport
from turnstile.stress.report.summary import WIDTH, print_summary
from turnstile.stress.report.timeline import timeline

_RECORDINGS: Final = "recordings"
_JSON: Final = "report.json"
_TEXT: Final = "report.txt"
_PICTURE: Final = "timeline-{}.svg"
SCHEMA_VERSION: Final = 3
"""Increases when a key changes its meaning or is removed; new keys do not change it."""


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
        return RunReport(
            info=self.info,
            scenarios=tuple(self.scenarios),
            seconds=time.monotonic() - self._began,
            collapses=tuple(self.failures),
        )


def check_again(folder: Path) -> RunReport:
    """Check and measure all recordings of a report again; raises OSError or ValueError without any."""
    stored = TypeAdapter(_StoredRun).validate_json((folder / _JSON).read_bytes())
    recordings = sorted((folder / _RECORDINGS).iterdir())
    return RunReport(
        info=RunInfo(**{field.name: getattr(stored, field.name) for field in fields(RunInfo)}),
        scenarios=tuple(_scenario_report(Recording.load(each)) for each in recordings),
        seconds=stored.seconds,
        collapses=stored.collapses,
    )


def show_report(folder: Path, report: RunReport, console: Console) -> None:
    """Print the summary of a report and write its files."""
    print_summary(console, report)
    write_report(folder, report)
    console.print(f"Report: {folder / _TEXT}", soft_wrap=True)


def write_report(folder: Path, report: RunReport) -> None:
    """Write the files of a report; those of an earlier report are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _JSON).write_bytes(_as_json(report))
    with (folder / _TEXT).open("w", encoding="utf-8") as file:
        print_summary(Console(file=file, width=WIDTH), report)
    for old in folder.glob(_PICTURE.format("*")):
        old.unlink()
    for scenario in report.scenarios:
        if (picture := timeline(scenario.recording)) is not None:
            (folder / _PICTURE.format(scenario.scenario.name)).write_text(picture, encoding="utf-8")


def _as_json(report: RunReport) -> bytes:
    """Return the content of `report.json`; null is what was not measured."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "passed": report.passed,
        "violations": report.violations,
        "executions": report.executions,
        **{field.name: getattr(report.info, field.name) for field in fields(report.info)},
        "seconds": report.seconds,
        "collapses": report.collapses,
        "scenarios": [_scenario_json(scenario) for scenario in report.scenarios],
    }
    return to_json(document, indent=1, inf_nan_mode="null") + b"\n"


def _scenario_json(report: ScenarioReport) -> dict[str, Any]:
    recording = report.recording
    return {
        "scenario": recording.scenario,
        "mix": str(recording.scenario.load.mix),
        "passed": not report.broken,
        "metrics": report.metrics,
        "findings": [
            {
                "rule": finding.rule.name.lower(),
                "description": finding.rule.value,
                "checked": finding.checked,
                "broken": finding.broken,
                "examples": finding.examples,
            }
            for finding in report.verdict.findings
        ],
        "faults": [
            {
                "kind": fault.kind,
                "target": fault.target,
                "began_seconds": (fault.began_at - recording.began_at) / SECOND,
                "healed_seconds": (fault.healed_at - recording.began_at) / SECOND,
            }
            for fault in recording.faults
        ],
        "definition_changes": 0 if recording.gates is None else recording.gates.changed,
        "counters": recording.counters,
        "audit": recording.audit,
    }


def _scenario_report(recording: Recording) -> ScenarioReport:
    return ScenarioReport(
        recording=recording, verdict=check_recording(recording), metrics=measure_scenario(recording)
    )
