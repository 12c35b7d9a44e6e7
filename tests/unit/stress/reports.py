"""Reports of simulated scenarios."""

from dataclasses import replace
from datetime import UTC, datetime

from tests.unit.stress.histories import Plan, valid_recording
from turnstile.stress.check.verdict import Finding, Rule, Verdict
from turnstile.stress.metrics import Recovery, ScenarioMetrics, Spread
from turnstile.stress.recording import SECOND, Recording
from turnstile.stress.report.run_report import RunInfo, RunReport, ScenarioReport

KILLED_AT = SECOND // 4
SPREAD = Spread(count=500, p50_ms=4.13, p90_ms=6.4, p99_ms=8.75, max_ms=1203.0)


def scenario_report(
    recording: Recording | None = None, *, broken: tuple[Finding, ...] = ()
) -> ScenarioReport:
    """Return the report of a scenario that passed, except for these findings."""
    recording = recording or valid_recording(Plan(killed_at=KILLED_AT))
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
    full = valid_recording(Plan(executions=3))
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
