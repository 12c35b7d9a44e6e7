"""A run as JSON: everything that the summary and the page say, for programs.

In: a `RunReport`. Out: `report.json`, a `Document`: the field names below are the keys, durations and
instants carry their unit in their name, null is what was not measured. `schema_version` grows when a key
changes its meaning or goes; new keys may come without.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic_core import to_json

from turnstile.stress.figures.values import FiveFigures, StageFigures
from turnstile.stress.recording import ActionCounters, Audit, InjectedFault, Recording
from turnstile.stress.report.machine import Machine
from turnstile.stress.report.run_report import RunReport, StageReport
from turnstile.stress.stage import Stage
from turnstile.stress.tables import SECOND

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingDocument:
    """One rule, broken or not."""

    rule: str
    """Its name, which stays."""
    says: str
    """The rule as a sentence."""
    looked_at: int
    broken: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDocument:
    """One fault as it happened, in seconds from the beginning of its stage."""

    kind: str
    target: str
    began_seconds: float
    healed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDocument:
    """One stage."""

    stage: Stage
    mix: str
    """The durations of its load, as they are given on the command line."""
    kept: bool
    figures: StageFigures
    findings: tuple[FindingDocument, ...]
    faults: tuple[FaultDocument, ...]
    counters: tuple[ActionCounters, ...]
    audit: Audit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The whole file."""

    schema_version: int
    kept: bool
    violations: int
    executions: int
    seed: int
    command_line: str
    started_at: datetime
    seconds: float
    machine: Machine
    versions: Mapping[str, str]
    installation: str
    collapses: tuple[str, ...]
    five_figures: FiveFigures
    stages: tuple[StageDocument, ...]


def as_json(report: RunReport) -> bytes:
    """Return the file's content."""
    return to_json(document_of(report), indent=1, inf_nan_mode="null") + b"\n"


def document_of(report: RunReport) -> Document:
    """Return what the file says."""
    return Document(
        schema_version=SCHEMA_VERSION,
        kept=report.kept,
        violations=report.violations,
        executions=report.executions,
        seed=report.seed,
        command_line=report.command_line,
        started_at=report.started_at,
        seconds=report.seconds,
        machine=report.machine,
        versions=report.versions,
        installation=report.installation,
        collapses=report.collapses,
        five_figures=report.five,
        stages=tuple(_stage(stage) for stage in report.stages),
    )


def _stage(report: StageReport) -> StageDocument:
    recording = report.recording
    return StageDocument(
        stage=recording.stage,
        mix=str(recording.stage.load.mix),
        kept=not report.broken,
        figures=report.figures,
        findings=tuple(
            FindingDocument(
                rule=finding.rule.name.lower(),
                says=finding.rule.value,
                looked_at=finding.looked_at,
                broken=finding.broken,
                examples=finding.examples,
            )
            for finding in report.verdict.findings
        ),
        faults=tuple(_fault(recording, fault) for fault in recording.faults),
        counters=recording.counters,
        audit=recording.audit,
    )


def _fault(recording: Recording, fault: InjectedFault) -> FaultDocument:
    return FaultDocument(
        kind=fault.kind.value,
        target=fault.target,
        began_seconds=(fault.began_at - recording.began_at) / SECOND,
        healed_seconds=(fault.healed_at - recording.began_at) / SECOND,
    )
