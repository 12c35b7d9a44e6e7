"""The report: values are in their columns, an aim applies to the columns that it names."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.actions import RATE_SECONDS, RATE_STARTS
from benchmarks.comparisons import THROUGHPUT
from benchmarks.limits import rate_section
from benchmarks.report import Aim, Row, Section, as_json, markdown
from benchmarks.run import Run

ROW = Row(name="gap", unit="ms", cells={"p50": 4.0, "max": 80.0}, aims=(Aim(at_most=10, columns=("p50",)),))
SECTION = Section(title="hand-over", columns=("p50", "p99", "max"), rows=(ROW,), note="idle")


def test_an_aim_applies_to_the_columns_that_it_names() -> None:
    assert ROW.meets_aims() is True
    assert Row(name="gap", unit="ms", cells={"p50": 11.0}, aims=ROW.aims).meets_aims() is False


def test_an_aim_without_a_measured_column_does_not_apply() -> None:
    assert Row(name="gap", unit="ms", cells={"p90": 11.0}, aims=ROW.aims).meets_aims() is None


def test_markdown_leaves_a_cell_empty_where_nothing_was_measured() -> None:
    assert "| gap | 4 |  | 80 | ms | p50 ≤ 10: met |" in markdown([SECTION], {})


def test_json_contains_every_value() -> None:
    (section,) = json.loads(as_json([SECTION]))["sections"]
    assert section["rows"][0]["cells"] == {"p50": 4.0, "max": 80.0}


def test_the_share_compares_rates_of_one_run() -> None:
    def run(seconds: float) -> list[Run]:
        return [Run(executions=10_000, seconds=seconds, cpu_seconds={"executors": 1.0}, wal_bytes=50_000)]

    seconds = {"10 actions, limit 4": 4, "limit 10,000": 10, "no limit": 5}
    assert set(seconds) == set(THROUGHPUT.kinds)
    runs = {name: run(each) for name, each in seconds.items()}
    rows = {row.name: row for row in THROUGHPUT.section_of(runs, 10_000).rows}
    assert rows["limit above the demand, share of no limit"].cells == {"limit 10,000": 0.5}
    assert rows["CPU, all"].cells["10 actions, limit 4"] == 100
    assert rows["WAL"].cells["10 actions, limit 4"] == 5


@pytest.mark.parametrize(
    ("window_seconds", "share", "windows"),
    [(RATE_SECONDS, 1.0, 0), (RATE_SECONDS * 1.25, 0.8, 0), (RATE_SECONDS * 0.5, 2.0, 2 * RATE_STARTS)],
)
def test_a_rate_is_checked_in_each_window(window_seconds: float, share: float, windows: int) -> None:
    run = Run(executions=1, seconds=1.0, cpu_seconds={}, wal_bytes=0)
    granted_ats = [
        datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=window_seconds) * number
        for number in range(3)
        for _ in range(RATE_STARTS)
    ]
    used, exceeded = (row.cells for row in rate_section(granted_ats, run).rows[:2])
    assert list(used.values()) == [pytest.approx(share)]
    assert list(exceeded.values()) == [windows]
