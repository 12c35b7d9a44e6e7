"""Docs, alerts and the dashboard name exactly the metrics and events that the code has."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from turnstile.common.telemetry.metrics import Histogram, Instrument, Meter
from turnstile.executor import metrics as executor_metrics
from turnstile.worker import metrics as worker_metrics

ROOT = Path(__file__).parents[3]
TELEMETRY = (ROOT / "docs" / "telemetry.md").read_text()
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
RULES = ROOT / "deploy" / "alerts" / "turnstile.rules.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "turnstile.json").read_text())
METERS: dict[str, Meter] = {"executor": executor_metrics.METER, "worker": worker_metrics.METER}
LABELS_KNOWN = {
    "action_ref", "code", "kind", "pool", "reason", "repair", "resource", "result", "server", "source",
    "state", "status", "task", "write",
}  # fmt: skip
LEVELS = {"debug", "info", "warning", "error"}


def instruments() -> Iterator[Instrument]:
    for meter in METERS.values():
        yield from meter.instruments


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [*(rule["expr"] for rule in alerts()), *panels]


def names_in(expression: str) -> set[str]:
    """The metrics that a PromQL expression reads: its words, without labels, ranges, functions, operators."""
    plain = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expression)
    plain = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", plain)
    plain = re.sub(r"\b[a-z_]+\s*\(", " ", plain)
    return set(re.findall(r"[a-z_]\w*", plain)) - {"and", "or", "unless", "bool", "offset"}


def labels_in(expression: str) -> set[str]:
    """The labels that a PromQL expression selects or groups by."""
    grouped = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression)
    selected = re.findall(r"\{([^}]*)\}", expression)
    words = [word for part in grouped for word in re.findall(r"\w+", part)]
    return {*words, *(name for part in selected for name in re.findall(r"(\w+)\s*(?:=|!)", part))}


def samples() -> set[str]:
    """The names of our samples in a scrape."""
    return {
        f"{each.name}{suffix}"
        for each in instruments()
        for suffix in (("_bucket", "_sum", "_count") if isinstance(each, Histogram) else ("",))
    }


def test_the_documented_metrics_are_the_declared_ones() -> None:
    declared: dict[str, list[str]] = {}
    for service, meter in METERS.items():
        for each in meter.instruments:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            services_of = declared.setdefault(
                f"| `{each.name}` | {each.kind} | {labels} | {{}} | {each.meaning} |", []
            )
            services_of.append(service)
    expected = [row.format(", ".join(services)) for row, services in declared.items()]
    assert sorted(re.findall(r"^\| `turnstile_.*$", TELEMETRY, flags=re.MULTILINE)) == sorted(expected)


def test_metrics_have_units_in_their_names_and_few_labels() -> None:
    for each in instruments():
        assert each.name.startswith("turnstile_")
        assert not re.search(r"_(ms|millis|minutes|percent)\b", each.name)
        assert set(each.labels) <= LABELS_KNOWN, each.name


def test_every_metric_and_label_that_alerts_and_dashboard_read_exists() -> None:
    assert len(expressions()) > 40
    known = samples() | {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    for expression in expressions():
        assert names_in(expression), expression
        assert names_in(expression) <= known, expression
        assert labels_in(expression) <= LABELS_KNOWN | {"instance", "le"}, expression


def test_every_alert_has_a_section_in_the_runbook() -> None:
    titles = re.findall(r"^### (Turnstile\w+)$", RUNBOOK, flags=re.MULTILINE)
    assert titles == sorted(titles, key=[rule["alert"] for rule in alerts()].index)
    assert len(titles) == len(alerts())
    for rule in alerts():
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]


@cache
def events() -> list[tuple[str, str, str]]:
    """Place, level and event of each line that the services can log."""
    found = []
    for file in sorted(
        each for part in ("common", "executor", "worker") for each in (ROOT / part).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level), args=[event, *_]):
                    if level in LEVELS:
                        found.append((f"{file.name}:{node.lineno}", level, ast.unparse(event)))
                case ast.Call(func=ast.Name(id="Episodes"), args=[_, event], keywords=keywords):
                    levels = [ast.unparse(each.value) for each in keywords if each.arg == "level"]
                    level = levels[0].rpartition(".")[2].lower() if levels else "warning"
                    found.append((f"{file.name}:{node.lineno}", level, ast.unparse(event)))
                case _:
                    pass
    return found


def test_every_log_line_has_a_stable_event_name() -> None:
    assert len(events()) > 40
    for place, _, event in events():
        assert re.fullmatch(r"'[a-z]+(_[a-z]+)*'", event), f"{place}: {event}"


def test_every_event_that_the_documentation_names_is_logged_at_that_level_in_one_place() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (debug|info|warning|error) \|", TELEMETRY, flags=re.MULTILINE)
    assert len(rows) > 8
    for event, level in rows:
        assert [each[1] for each in events() if each[2] == repr(event)] == [level], event
