"""The files of a report: `report.json` for programs and `report.html` for people.

The page starts with the result, then the metrics, then each scenario with its pictures. Its layout is in
`page.html.j2` and `page.css`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic_core import to_json

from turnstile.stress.recording import SECOND
from turnstile.stress.report import wording
from turnstile.stress.report.charts.style import Picture
from turnstile.stress.report.run_report import RunReport, ScenarioReport
from turnstile.stress.scenario import Load

_TEMPLATE: Final = "page.html.j2"
SCHEMA_VERSION: Final = 2
"""Increases when a key changes its meaning or is removed; new keys do not change it."""


def as_json(report: RunReport) -> bytes:
    """Return the content of `report.json`; null is what was not measured."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "passed": report.passed,
        "violations": report.violations,
        "executions": report.executions,
        **{field.name: getattr(report.info, field.name) for field in fields(report.info)},
        "seconds": report.seconds,
        "collapses": report.collapses,
        "metrics": report.metrics,
        "scenarios": [_scenario(scenario) for scenario in report.scenarios],
    }
    return to_json(document, indent=1, inf_nan_mode="null") + b"\n"


def _scenario(report: ScenarioReport) -> dict[str, Any]:
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
        "counters": recording.counters,
        "audit": recording.audit,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSection:
    """The part of the page on one scenario."""

    report: ScenarioReport
    load: str
    limit: str
    rows: tuple[tuple[str, str], ...]
    pictures: tuple[Picture, ...]


def as_html(report: RunReport, of_scenarios: Sequence[Sequence[Picture]]) -> str:
    """Return the content of `report.html`, one file without references to others."""
    environment = Environment(
        loader=PackageLoader("turnstile.stress.report", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["recovery_row"] = wording.recovery_row
    sections = [
        ScenarioSection(
            report=scenario,
            load=_load(scenario.scenario.load),
            limit=wording.limit(scenario.recording),
            rows=tuple(_rows(scenario)),
            pictures=tuple(pictures),
        )
        for scenario, pictures in zip(report.scenarios, of_scenarios, strict=True)
    ]
    return environment.get_template(_TEMPLATE).render(report=report, sections=sections, say=wording)


def _load(load: Load) -> str:
    parts = [
        f"{wording.counted(load.executions, 'execution')} of {wording.counted(load.actions, 'action')}",
        f"{wording.counted(load.keys, 'concurrency key')} each" if load.keys else "",
        f"durations {load.mix}",
        wording.counted(load.submitters, "submitter"),
        "as fast as the broker confirms them"
        if load.rate is None
        else f"{load.rate:.3g} requests per second",
    ]
    return ", ".join(part for part in parts if part)


def _rows(report: ScenarioReport) -> Iterator[tuple[str, str]]:
    metrics = report.metrics
    rate = wording.rate(metrics.executions_per_second)
    yield "Ended", f"{metrics.ended:,} in {wording.seconds(metrics.seconds)}: {rate}"
    yield "Requests confirmed by the broker", wording.rate(metrics.sent_per_second)
    yield (
        "Peak slots, peak running in one queue",
        f"{metrics.peak_slots:,}, {metrics.peak_runs:,}",
    )
    for name, spread in (
        ("Handover on a full queue", metrics.hand_over),
        ("of that: end to grant", metrics.end_to_grant),
        ("Grant to start", metrics.grant_to_start),
        ("Request to answer", metrics.answer),
    ):
        if spread is not None:
            yield name, f"{wording.spread(spread)} ({spread.count:,})"
    if metrics.idle_share is not None:
        yield "Slots idle while executions waited", wording.share(metrics.idle_share)
    if metrics.started_out_of_order is not None and report.scenario.limit != 1:
        share = wording.share(metrics.started_out_of_order)
        yield "Started after a later request", f"{share} (granted in order, started concurrently)"
