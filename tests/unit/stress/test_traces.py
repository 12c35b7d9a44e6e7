"""From trace files to runs, and the observation of process exits: real files and processes."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.integration.localservers.watching import wait_until
from turnstile.stress.drive.pacing import Clock
from turnstile.stress.drive.traces import TRACE, ProcessTrace, TraceFolder, traced_runs
from turnstile.stress.local.faults import ExitWatch
from turnstile.stress.recording import EXECUTION, NEVER, RunEnd, Table, empty
from turnstile.stress.trace import START, STOP, TraceWriter

CLOCK = Clock(offset_ns=1_000)


def executions(*ids: int) -> Table:
    table = empty(EXECUTION, len(ids))
    table["execution_id"] = ids
    table["number"] = np.arange(len(ids))
    table["queue"] = np.arange(len(ids)) + 10
    return table


def process(*records: tuple[int, int, int], pid: int = 1) -> ProcessTrace:
    """Return the trace of attempt 1: instant, execution id, kind."""
    return ProcessTrace(pid=pid, records=np.array([(at, 0, i, 1, kind) for at, i, kind in records], TRACE))


def rows(runs: Table) -> list[tuple[int, int, int, RunEnd]]:
    return [
        (int(r["execution_id"]), int(r["started_at"]), int(r["stopped_at"]), RunEnd(r["end"])) for r in runs
    ]


def test_records_from_before_the_scenario_are_ignored(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.write(START, 1, 101, 1)
    writer.write(STOP, 1, 101, 1)
    folder = TraceFolder.now(tmp_path)
    assert folder.read() == []
    writer.write(START, 2, 102, 3)
    (found,) = folder.read()
    assert found.pid == os.getpid()
    assert found.records[["number", "execution_id", "attempt", "kind"]].tolist() == [(2, 102, 3, START)]


def test_an_incomplete_record_is_not_read(tmp_path: Path) -> None:
    TraceWriter(tmp_path).write(START, 1, 101, 1)
    (file,) = tmp_path.iterdir()
    folder = TraceFolder(folder=tmp_path, sizes_bytes={})
    with file.open("ab") as torn:
        torn.write(b"\1" * (TRACE.itemsize - 1))
    (found,) = folder.read()
    assert found.records["execution_id"].tolist() == [101]


def test_overlapping_runs_are_separate() -> None:
    trace = process((1, 7, START), (2, 5, START), (3, 7, STOP), (4, 5, STOP))
    runs = traced_runs([trace], CLOCK, {}, executions(5, 7))
    assert sorted(rows(runs)) == [(5, 1_002, 1_004, RunEnd.STOPPED), (7, 1_001, 1_003, RunEnd.STOPPED)]
    assert runs["queue"].tolist() == [11, 10]
    assert runs["number"].tolist() == [1, 0]


def test_an_attempt_that_ran_in_two_processes_is_two_runs() -> None:
    both = [process((1, 7, START), (3, 7, STOP)), process((2, 7, START), (4, 7, STOP), pid=2)]
    runs = traced_runs(both, CLOCK, {}, executions(7))
    assert runs["process"].tolist() == [0, 1]
    assert runs["stopped_at"].tolist() == [1_003, 1_004]


@pytest.mark.parametrize(
    ("exits", "stopped_at", "end"),
    [
        ({1: 1_900}, 1_900, RunEnd.KILLED),
        ({2: 1_900}, NEVER, RunEnd.UNKNOWN),
        ({1: 1_000}, NEVER, RunEnd.UNKNOWN),
    ],
    ids=["its process died", "another one died", "one of the same id died before"],
)
def test_a_start_without_a_stop_ends_with_its_process(
    exits: dict[int, int], stopped_at: int, end: RunEnd
) -> None:
    trace = process((1, 5, START), (2, 5, STOP), (3, 7, START))
    runs = traced_runs([trace], CLOCK, exits, executions(5, 7))
    assert rows(runs) == [(5, 1_001, 1_002, RunEnd.STOPPED), (7, 1_003, stopped_at, end)]


LASTING = ["sleep", "1000"]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(LASTING) as started:
        yield started
        started.kill()


def test_the_exit_of_a_traced_process_is_observed_before_its_parent_reaps_it(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    (tmp_path / f"{child.pid}-1.trace").touch()
    watch = ExitWatch(tmp_path)
    watch.poll()
    assert watch.exits == {}
    killed_at = time.time_ns()
    child.kill()

    def is_recorded() -> bool:
        watch.poll()
        return child.pid in watch.exits

    wait_until(is_recorded)
    assert killed_at < watch.exits[child.pid] <= time.time_ns()
    # It is a zombie until its parent reaps it.
    os.kill(child.pid, 0)
