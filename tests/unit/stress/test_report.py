"""A report says the same on the console, as text and as JSON, and contains every violation."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.stress.histories import correct, fault
from turnstile.stress.check.verdict import Finding, Rule, Verdict
from turnstile.stress.metrics import Recovery, ScenarioMetrics, Spread
from turnstile.stress.recording import SECOND, Recording
from turnstile.stress.report.live import LiveView
from turnstile.stress.report.run_report import RunInfo, RunReport, ScenarioReport
from turnstile.stress.report.store import write_report
from turnstile.stress.report.summary import print_summary
from turnstile.stress.scenario import FaultKind, Progress

KILLED = replace(fault(FaultKind.KILL_WORKER, 250, 1_250), target="worker-1")
SPREAD = Spread(count=500, p50_ms=4.13, p90_ms=6.4, p99_ms=8.75, max_ms=1203.0)


def scenario_report(
    recording: Recording | None = None, *, broken: tuple[Finding, ...] = ()
) -> ScenarioReport:
    """Return the report of a scenario that passed, except for these findings."""
    recording = recording or correct(400, faults=(KILLED,))
    broken_rules = {finding.rule: finding for finding in broken}
    findings = (broken_rules.get(rule, Finding(rule=rule, checked=400, broken=0)) for rule in Rule)
    ended = len(recording.executions)
    return ScenarioReport(
        recording=recording,
        verdict=Verdict(findings=tuple(findings)),
        metrics=ScenarioMetrics(
            ended=ended,
            seconds=2.0 if ended else 0.0,
            executions_per_second=ended / 2,
            hand_over=SPREAD if ended else None,
            peak_slots=2,
            peak_runs=1,
            recoveries=tuple(_recoveries(recording)),
        ),
    )


def run_report(*scenarios: ScenarioReport, collapses: tuple[str, ...] = ()) -> RunReport:
    """Return the report of a run of these scenarios."""
    return RunReport(
        scenarios=scenarios,
        info=RunInfo(
            seed=7,
            command_line="stress run --local",
            started_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
            machine="A processor with quite a long name of its own, cores: 2, 23.5 GiB, Linux 6.1",
            versions={"turnstile": "0.1.0", "rabbitmq": "3.10.8"},
            installation="private: 2 executors, 2 workers",
        ),
        seconds=61.5,
        collapses=collapses,
    )


def nothing_happened() -> Recording:
    """Return a recording without requests."""
    full = correct(3)
    return replace(
        full,
        orders=full.orders[:0],
        executions=full.executions[:0],
        attempts=full.attempts[:0],
        runs=full.runs[:0],
        ended_at=full.began_at,
    )


def _recoveries(recording: Recording) -> list[Recovery]:
    return [
        Recovery(
            kind=fault.kind,
            target=fault.target,
            at_seconds=(fault.began_at - recording.began_at) / SECOND,
            healed_seconds=(fault.healed_at - fault.began_at) / SECOND,
            lost_runs=2,
            reclaim_seconds=3.0,
            stall_seconds=0.21,
        )
        for fault in recording.faults
    ]


HOSTILE = "<script>alert('stress.00')</script> [bold]&amp; \"quoted\""
OVER_LIMIT = Finding(
    rule=Rule.LIMIT_HELD, checked=400, broken=2, examples=(f"execution 7 of {HOSTILE}", "execution 9: 5 of 4")
)
OVERTAKEN = Finding(rule=Rule.GRANTED_IN_ORDER, checked=398, broken=1, examples=("execution 11 before 10",))


def broken_run() -> RunReport:
    kept = scenario_report(correct(400, faults=(replace(KILLED, target=HOSTILE),)))
    other = correct(400, keys=3)
    hostile = replace(other.scenario, name="second", title=f"Scenario of {HOSTILE}")
    return run_report(
        kept,
        scenario_report(replace(other, scenario=hostile), broken=(OVER_LIMIT, OVERTAKEN)),
        collapses=(f"worker-2 ended by itself {HOSTILE}",),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(folder, broken_run())
    return folder


def printed(report: RunReport) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    print_summary(console, report)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_text_contains_every_violation_and_example(folder: Path) -> None:
    text = (folder / "report.txt").read_text()
    for finding in (OVER_LIMIT, OVERTAKEN):
        assert finding.rule.value in text
        assert all(example in text for example in finding.examples)
    assert f"FAIL Scenario of {HOSTILE}" in text
    assert f"worker-2 ended by itself {HOSTILE}" in text
    assert "PASS" not in text


def test_the_json_says_what_the_summary_says(folder: Path) -> None:
    document = json.loads((folder / "report.json").read_text())
    lines = printed(broken_run())
    assert document["schema_version"] == 3
    assert (document["passed"], document["violations"], document["executions"]) == (False, 3, 800)
    assert any("FAIL 3 violations, 1 error, over 800 executions in 2 scenarios" in line for line in lines)
    for scenario in document["scenarios"]:
        row = next(line for line in lines if f" {scenario['metrics']['ended']:,} " in line)
        assert f"{scenario['metrics']['executions_per_second']:,.0f}/s" in row
        for finding in scenario["findings"]:
            found = [
                line
                for line in lines
                if f"{scenario['scenario']['title']}: {finding['description']}: " in line
            ]
            assert len(found) == (1 if finding["broken"] else 0)
            assert all(any(example in line for line in lines) for example in finding["examples"])
    assert document["machine"] == broken_run().info.machine
    assert document["scenarios"][0]["metrics"]["hand_over"]["p99_ms"] == 8.75
    assert document["scenarios"][0]["scenario"]["load"]["executions"] == 400
    assert document["scenarios"][0]["mix"] == str(correct().scenario.load.mix)


def test_a_run_without_a_completed_scenario_fails() -> None:
    assert not run_report().passed
    assert printed(run_report())[-1].startswith("FAIL ")
    assert not run_report(scenario_report(), collapses=("executor-1 ended by itself",)).passed


def test_no_line_of_the_summary_is_cut_at_100_columns() -> None:
    lines = printed(broken_run())
    assert not any("…" in line for line in lines)
    assert any(example in line for line in lines for example in OVER_LIMIT.examples)
    tables = lines[: next(number for number, line in enumerate(lines) if line.startswith("ERROR"))]
    assert max(len(line.rstrip()) for line in tables) <= 100
    assert any("4.13 ms / 8.75 ms" in line for line in tables)


def test_the_rules_of_gates_are_counted_over_all_scenarios() -> None:
    lines = [line for line in printed(broken_run()) if line.startswith(Rule.RATE_KEPT.value)]
    assert [line.split()[-2:] for line in lines] == [["800", "0"]]


def test_each_recovery_has_a_line() -> None:
    (line,) = [
        line for line in printed(run_report(scenario_report())) if line.startswith("kill worker: worker-1")
    ]
    assert [part for part in ("1.00 s", " 2 ", "3.00 s", "210 ms") if part not in line] == []


def test_a_scenario_in_which_nothing_ended_is_reported(tmp_path: Path) -> None:
    report = run_report(scenario_report(nothing_happened()))
    write_report(tmp_path, report)
    assert json.loads((tmp_path / "report.json").read_text())["scenarios"][0]["metrics"]["hand_over"] is None
    assert printed(report)


def progress_at(elapsed: float, ended: int, note: str = "") -> Progress:
    return Progress(
        scenario=correct(2).scenario, elapsed_seconds=elapsed,
        sent=400, ended=ended, waiting=1234, active=4, note=note,
    )  # fmt: skip


def test_there_is_a_line_every_two_seconds_and_for_each_fault() -> None:
    console = Console(file=io.StringIO(), width=60)
    assert isinstance(console.file, io.StringIO)
    view = LiveView(console)
    view.begin("Scenario 2 of 3: A simulated scenario")
    for step in range(45):
        view.show(progress_at(step / 10, 10 * step, "kill worker [bold]worker-1" if step == 33 else ""))
    view.checked(scenario_report(broken=(OVER_LIMIT,)))
    view.failed("A third scenario", "no executor answers")
    lines = console.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["Scenario", "0.0", "2.0", "3.3", "3.4", "✗", "✗"]
    assert "400 sent, 1,234 waiting, 4 running, 20" in lines[2]
    assert "100/s" in lines[2]
    assert "kill worker [bold]worker-1" in lines[3]
    assert Rule.LIMIT_HELD.value in lines[5]
    assert "no executor answers" in lines[6]
