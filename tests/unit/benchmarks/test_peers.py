"""The comparison with PgQueuer: metrics of traces, medians of rounds, ratios."""

import struct
from pathlib import Path

import pytest

from benchmarks.peers.history import (
    Run,
    Stops,
    TraceRecord,
    hand_overs_ms,
    out_of_order_share,
    peak_concurrency_of_actions,
    trace_of,
)
from benchmarks.peers.job import TRACES, Group, _writer, gate_of, run
from benchmarks.peers.tables import Comparison, sections
from benchmarks.peers.variants import VARIANTS
from benchmarks.waiting import DidNotHappen
from turnstile.stress.trace import START, STOP

MS = 1_000_000
OWN = VARIANTS[0]


def trace(*lines: tuple[int, int, int, int]) -> list[TraceRecord]:
    """Return records given as milliseconds, action, number and kind."""
    return [
        TraceRecord(at=at * MS, number=number, load=1, action=action, kind=kind)
        for at, action, number, kind in lines
    ]


def one_run(*, seconds: float = 1.0, gaps: tuple[float, ...] = ()) -> Run:
    return Run(
        jobs=100,
        seconds=seconds,
        submit_seconds=0.5,
        out_of_order=0.25,
        peak_concurrency=3,
        hand_over_ms=gaps,
    )


def comparison() -> Comparison:
    return Comparison(jobs=100, handed_over=5, rounds=1, circumstances={})


def test_a_start_after_a_later_one_of_its_action_is_out_of_order() -> None:
    history = trace((1, 0, 0, START), (2, 0, 20, START), (3, 0, 10, START), (4, 0, 30, START))
    assert out_of_order_share(history) == 0.25


def test_peak_concurrency_is_that_of_one_action() -> None:
    history = trace(
        (1, 0, 0, START), (2, 1, 1, START), (3, 0, 10, START), (4, 0, 0, STOP), (5, 1, 1, STOP),
        (6, 0, 20, START),
    )  # fmt: skip
    assert peak_concurrency_of_actions(history) == 2


def test_a_stop_and_a_start_at_one_instant_do_not_overlap(tmp_path: Path) -> None:
    record = struct.Struct("<qqqii")
    lines = [
        (5, 1, 7, 0, START),
        (1, 0, 7, 0, START),
        (5, 0, 7, 0, STOP),
        (6, 1, 7, 0, STOP),
        (2, 9, 8, 0, START),
    ]
    (tmp_path / "1-1.trace").write_bytes(b"".join(record.pack(*line) for line in lines[:3]))
    (tmp_path / "2-1.trace").write_bytes(b"".join(record.pack(*line) for line in lines[3:]) + b"torn")
    history = trace_of(tmp_path, 7)
    assert [record.number for record in history] == [0, 0, 1, 1]
    assert peak_concurrency_of_actions(history) == 1
    assert Stops(tmp_path).count(7) == 2


def test_a_hand_over_is_from_the_last_stop_to_the_next_start() -> None:
    history = trace((1, 0, 0, START), (4, 0, 0, STOP), (9, 0, 1, START), (10, 0, 1, STOP), (12, 0, 2, START))
    assert hand_overs_ms(history) == (5.0, 2.0)


def test_rounds_are_shown_as_medians_and_hand_overs_together() -> None:
    compared = comparison()
    for seconds in (1.0, 2.0, 10.0):
        compared.add(OWN, Group.FREE, one_run(seconds=seconds))
    compared.add(OWN, Group.SINGLE, one_run(gaps=(1.0, 2.0)))
    compared.add(OWN, Group.SINGLE, one_run(gaps=(3.0, 4.0, 5.0)))
    free, _, _, single = sections(compared)
    assert free.rows[0].cells == {"jobs/s": 50, "taken/s": 200, "out of order, %": 25}
    assert single.rows[0].cells["p50"] == 3
    assert single.rows[0].cells["max"] == 5


def test_this_project_is_compared_with_each_variant_of_pgqueuer() -> None:
    limited = [variant for variant in VARIANTS if Group.LIMITED in variant.groups]
    compared = comparison()
    for variant, seconds in zip(limited, (2.0, 1.0, 3.0), strict=True):
        compared.add(variant, Group.LIMITED, one_run(seconds=seconds))
        compared.add(variant, Group.TIMED, one_run(seconds=seconds))
    _, at_limit, timed, _ = sections(compared)
    for section in (at_limit, timed):
        to_one, to_two = section.rows[-2:]
        assert (to_one.cells["jobs/s"], to_one.meets_aims()) == (0.5, False)
        assert (to_two.cells["jobs/s"], to_two.meets_aims()) == (1.5, True)
    assert timed.rows[1].cells["share of the ideal"] == pytest.approx(100 * 0.02 / 40)


def test_stops_are_counted_once_while_a_trace_grows(tmp_path: Path) -> None:
    file, stops = tmp_path / "1-1.trace", Stops(tmp_path)
    record = struct.Struct("<qqqii")
    first, second = record.pack(1, 5, 7, 0, STOP), record.pack(2, 6, 7, 0, STOP)
    file.write_bytes(first + second[:3])
    assert stops.count(7) == 1
    file.write_bytes(first + second + first)
    assert stops.count(7) == 2
    assert stops.count(8) == 0


async def test_a_held_job_stops_only_when_its_gate_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACES, str(tmp_path))
    _writer.cache_clear()
    gate_of(tmp_path, 1).touch()
    await run(1, 0, 0, True, 0.0)
    monkeypatch.setattr("benchmarks.peers.job._HELD_SECONDS_MAX", 0.0)
    with pytest.raises(DidNotHappen, match="the other jobs wait"):
        await run(2, 0, 0, True, 0.0)
    assert Stops(tmp_path).count(1) == 1
    assert Stops(tmp_path).count(2) == 0
