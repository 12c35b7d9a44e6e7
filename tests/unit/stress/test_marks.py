"""From what actions wrote to runs: the real writer, the real files, and processes that died."""

import os
from pathlib import Path

import numpy as np
import pytest

from turnstile.stress.drive.clock import Clock
from turnstile.stress.drive.mark_files import MARK, MarkFolder, ProcessMarks
from turnstile.stress.drive.runs import runs_marked
from turnstile.stress.marks import START, STOP, MarkWriter
from turnstile.stress.tables import EXECUTION, NEVER, NONE, RunEnd, Table, empty

CLOCK = Clock(offset_ns=1_000)


def executions(*ids: int) -> Table:
    table = empty(EXECUTION, len(ids))
    table["execution_id"] = ids
    table["number"] = np.arange(len(ids))
    table["queue"] = np.arange(len(ids)) + 10
    return table


def process(*marks: tuple[int, int, int], pid: int = 1) -> ProcessMarks:
    """Marks of attempt 1: instant, execution id, kind."""
    return ProcessMarks(pid=pid, marks=np.array([(at, 0, i, 1, kind) for at, i, kind in marks], MARK))


def told(runs: Table) -> list[tuple[int, int, int, RunEnd]]:
    return [
        (int(r["execution_id"]), int(r["started_at"]), int(r["stopped_at"]), RunEnd(r["end"])) for r in runs
    ]


def test_what_was_written_before_the_stage_is_left_out(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path)
    writer.mark(START, 1, 101, 1)
    writer.mark(STOP, 1, 101, 1)
    folder = MarkFolder.now(tmp_path)
    assert folder.read() == []
    writer.mark(START, 2, 102, 3)
    (found,) = folder.read()
    assert found.pid == os.getpid()
    assert found.marks[["number", "execution_id", "attempt", "kind"]].tolist() == [(2, 102, 3, START)]


def test_a_mark_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    MarkWriter(tmp_path).mark(START, 1, 101, 1)
    (file,) = tmp_path.iterdir()
    folder = MarkFolder(folder=tmp_path, sizes_bytes={})
    with file.open("ab") as torn:
        torn.write(b"\1" * (MARK.itemsize - 1))
    (found,) = folder.read()
    assert found.marks["execution_id"].tolist() == [101]


def test_runs_that_overlap_are_told_apart() -> None:
    marks = process((1, 7, START), (2, 5, START), (3, 7, STOP), (4, 5, STOP))
    runs = runs_marked([marks], CLOCK, {}, executions(5, 7))
    assert sorted(told(runs)) == [(5, 1_002, 1_004, RunEnd.STOPPED), (7, 1_001, 1_003, RunEnd.STOPPED)]
    assert runs["queue"].tolist() == [10, 11]
    assert runs["number"].tolist() == [0, 1]


def test_an_attempt_that_ran_twice_at_once_is_two_runs() -> None:
    marks = process((1, 7, START), (2, 7, START), (3, 7, STOP), (4, 7, STOP))
    runs = runs_marked([marks], CLOCK, {}, executions(7))
    assert told(runs) == [(7, 1_001, 1_003, RunEnd.STOPPED), (7, 1_002, 1_004, RunEnd.STOPPED)]


def test_an_attempt_that_ran_in_two_processes_is_two_runs() -> None:
    both = [process((1, 7, START), (3, 7, STOP)), process((2, 7, START), (4, 7, STOP), pid=2)]
    runs = runs_marked(both, CLOCK, {}, executions(7))
    assert runs["process"].tolist() == [0, 1]
    assert runs["stopped_at"].tolist() == [1_003, 1_004]


@pytest.mark.parametrize(
    ("deaths", "stopped_at", "end"),
    [
        ({1: 1_900}, 1_900, RunEnd.KILLED),
        ({2: 1_900}, NEVER, RunEnd.UNKNOWN),
        ({1: 1_000}, NEVER, RunEnd.UNKNOWN),
    ],
    ids=["its process died", "another one died", "one of the same id died before"],
)
def test_a_start_without_a_stop_ends_with_its_process(
    deaths: dict[int, int], stopped_at: int, end: RunEnd
) -> None:
    marks = process((1, 5, START), (2, 5, STOP), (3, 7, START))
    runs = runs_marked([marks], CLOCK, deaths, executions(5, 7))
    assert told(runs) == [(5, 1_001, 1_002, RunEnd.STOPPED), (7, 1_003, stopped_at, end)]


def test_a_run_of_an_execution_that_is_not_in_the_record_has_no_number() -> None:
    runs = runs_marked([process((1, 6, START), (2, 6, STOP))], CLOCK, {}, executions(5, 7))
    assert (runs["number"].tolist(), runs["queue"].tolist()) == ([NONE], [NONE])


def test_no_marks_are_no_runs() -> None:
    assert len(runs_marked([], CLOCK, {}, executions(5))) == 0
