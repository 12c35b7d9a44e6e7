"""What the conformance kit reads from the trace of a worker."""

from pathlib import Path

from turnstile.testing.worker_check.scene import Trace


def trace_of(folder: Path, *lines: str) -> Trace:
    trace = Trace(folder / "trace")
    trace.path.write_text("".join(f"{line}\n" for line in lines))
    return trace


def test_runs_that_overlap_are_counted_and_runs_that_follow_each_other_are_not(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path, "begin 1 10.0", "runs 1 10.3", "begin 2 10.3", "runs 2 10.6", "begin 3 10.5", "runs 3 11"
    )
    assert trace.most_at_once() == 2
    assert trace.most_at_once(1, 2) == 1


def test_a_line_that_is_not_whole_yet_is_not_read(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "begin 2 10.5", "begin 1 10.0")
    with trace.path.open("a") as lines:
        lines.write("begin 3 1")
    assert trace.begun() == ["1", "2"]
