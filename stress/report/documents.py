"""The files of a report: `report.json` for programs and `report.html` for people.

The page starts with the result, then the metrics, then each scenario with its pictures. Its layout is in
`page.html.j2` and `page.css`.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic_core import to_json

from turnstile.stress.recording import SECOND
from turnstile.stress.report import wording
from turnstile.stress.report.charts.style import Picture
from turnstile.stress.report.run_report import RunReport, ScenarioReport

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


def as_html(report: RunReport, of_scenarios: Sequence[Sequence[Picture]]) -> str:
    """Return the content of `report.html`, one file without references to others."""
    environment = Environment(
        loader=PackageLoader("turnstile.stress.report", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = list(zip(report.scenarios, of_scenarios, strict=True))
    return environment.get_template(_TEMPLATE).render(report=report, sections=sections, say=wording)
