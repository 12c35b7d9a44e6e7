"""The checker is checked: a correct history passes, and each way to break a promise is named."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from operator import is_
from typing import Any, Final

import pytest

from tests.proof.history.checker import statistics, violations
from tests.proof.history.example_history import BOOTED_AT, A, B, HistoryWriter, correct_history
from tests.proof.history.recording import (
    AttemptEvent,
    Bounds,
    Event,
    ExecutionEvent,
    PoolEvent,
    QueueEvent,
    Recording,
    SlotEvent,
    Step,
    WaitingEvent,
    Window,
    WorkerChange,
    WorkerEvent,
)
from tests.proof.history.replay import waited_for_workers
from turnstile.common.domain.states import Status

BOUNDS: Final = Bounds(idle_seconds=1.0, leak_seconds=2.0, reclaim_seconds=5.0, overlap_seconds=0.5)

Edit = Callable[[Recording], Recording]


def broken(recording: Recording, bounds: Bounds = BOUNDS) -> list[str]:
    return [str(violation) for violation in violations(recording, bounds=bounds)]


def where(kind: type[Event], **fields: Any) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, kind) and all(getattr(event, k) == v for k, v in fields.items())


attempt = partial(where, AttemptEvent)
execution = partial(where, ExecutionEvent)
queue = partial(where, QueueEvent)
slot = partial(where, SlotEvent)
waiting = partial(where, WaitingEvent)
worker = partial(where, WorkerEvent)


def without(condition: Callable[[Event], bool]) -> Edit:
    return lambda r: replace(r, events=[event for event in r.events if not condition(event)])


def changed(condition: Callable[[Event], bool], **fields: Any) -> Edit:
    """Change the first matching event."""

    def edit(r: Recording) -> Recording:
        index = next(number for number, event in enumerate(r.events) if condition(event))
        return replace(
            r, events=[*r.events[:index], replace(r.events[index], **fields), *r.events[index + 1 :]]
        )

    return edit


def again(condition: Callable[[Event], bool], **fields: Any) -> Edit:
    """Repeat the first matching event at the end."""

    def edit(r: Recording) -> Recording:
        event = next(event for event in r.events if condition(event))
        last = r.events[-1].stamp
        stamp = replace(
            event.stamp, seq=last.seq + 1, at=last.at + timedelta(milliseconds=1), txid=last.txid + 1
        )
        return replace(r, events=[*r.events, replace(event, **{"stamp": stamp, **fields})])

    return edit


def slower(condition: Callable[[Event], bool], seconds: float) -> Edit:
    """Delay everything from the first matching event on, with the runs."""

    def edit(r: Recording) -> Recording:
        index = next(number for number, event in enumerate(r.events) if condition(event))
        late = timedelta(seconds=seconds)
        events: Sequence[Event] = [
            replace(event, stamp=replace(event.stamp, at=event.stamp.at + late)) for event in r.events[index:]
        ]
        before_ns = (r.events[index].stamp.at - BOOTED_AT) / timedelta(microseconds=1) * 1000
        late_ns = round(seconds * 1e9)
        runs = [
            replace(
                run,
                started_ns=run.started_ns + late_ns * (run.started_ns >= before_ns),
                stopped_ns=None
                if run.stopped_ns is None
                else run.stopped_ns + late_ns * (run.stopped_ns >= before_ns),
            )
            for run in r.runs
        ]
        return replace(r, events=[*r.events[:index], *events], runs=runs)

    return edit


def with_run(**fields: Any) -> Edit:
    """Change the run of execution 1."""
    return lambda r: replace(
        r, runs=[replace(run, **fields) if run.execution_id == 1 else run for run in r.runs]
    )


def ending(execution_id: int, attempt: int) -> Callable[[Event], bool]:
    return lambda event: (
        isinstance(event, ExecutionEvent)
        and (event.execution_id, event.attempt, event.previous) == (execution_id, attempt, Status.RUNNING)
    )


def overtaken(*, delayed: bool) -> Recording:
    """The second execution is granted before the first."""
    writer = HistoryWriter()
    writer.queue(A, 1)
    writer.worker("w")
    writer.admit(1, A, delayed=delayed)
    writer.admit(2, A, granted=True)
    if delayed:
        writer.wake(1)
    for execution_id, then in ((2, 1), (1, None)):
        writer.claim(execution_id, "w")
        writer.finish(execution_id)
        writer.settle(execution_id, then=then)
    return writer.recording()


def left_idle(seconds: float) -> Recording:
    """A slot is free beside a waiting execution for this time."""
    writer = HistoryWriter()
    writer.queue(A, 1)
    writer.worker("w")
    writer.admit(1, A)
    healed = len(writer.events)
    writer.grant(1)
    writer.claim(1, "w")
    writer.finish(1)
    writer.settle(1)
    return slower(lambda event: event.stamp.seq > healed, seconds)(writer.recording())


BROKEN: Final[dict[str, tuple[str, Edit]]] = {
    "execution 1 was granted a slot: 1 were held, the limit was 0": (
        "P1",
        changed(queue(queue_id=A), limit=0),
    ),
    "execution 4 was granted a slot: 1 were held, the limit was 0": (
        "P1",
        changed(queue(queue_id=B), paused=True),
    ),
    "were running, the limit was 1": ("P1", with_run(stopped_ns=10**13)),
    "was granted a slot while": ("P2", without(waiting(execution_id=2, step=Step.DELETE))),
    "execution 2 was granted a slot while execution 1": ("P2", lambda _: overtaken(delayed=False)),
    "sent before, is execution": (
        "P2",
        lambda r: replace(r, submitted=[replace(s, number=-s.number) for s in r.submitted]),
    ),
    "had ended as": ("P3", again(execution(execution_id=1, status=Status.COMPLETED))),
    "became": ("P3", again(execution(execution_id=1, status=Status.COMPLETED), content="[1]")),
    "and moved from": ("P3", without(execution(execution_id=1, status=Status.SCHEDULED))),
    "no transition leads from": (
        "P3",
        changed(execution(execution_id=2, status=Status.CANCELLED), status=Status.COMPLETED),
    ),
    "its first transition is": ("P3", changed(execution(execution_id=2), status=Status.RUNNING)),
    "it was inserted or deleted": (
        "P3",
        changed(execution(execution_id=1, status=Status.RUNNING), status=None),
    ),
    "was never published": ("P4", lambda r: replace(r, published=r.published[1:])),
    "which is not its end": (
        "P4",
        lambda r: replace(r, published=[*r.published, replace(r.published[0], status=Status.FAILED)]),
    ),
    "freed 2 times": ("P4", again(slot(execution_id=1, step=Step.DELETE))),
    "freed 0 times": ("P4", without(slot(execution_id=7, step=Step.DELETE))),
    "was granted 0 slots": ("P4", changed(slot(execution_id=1, step=Step.DELETE), attempt=2)),
    "before its end": (
        "P4",
        changed(
            slot(execution_id=1, step=Step.DELETE), stamp=replace(correct_history().events[0].stamp, txid=-1)
        ),
    ),
    "was not marked as ended": ("P4", without(slot(execution_id=1, is_over=True, step=Step.UPDATE))),
    "never ended": ("P4", without(ending(6, 1))),
    "was free only": ("P4", slower(slot(execution_id=1, step=Step.DELETE), 3.0)),
    "is execution 1 and execution 2": (
        "P5",
        changed(execution(execution_id=1, status=Status.QUEUED), tag="tag 2"),
    ),
    "has no execution": ("P5", without(execution(execution_id=2))),
    "was rejected and is execution": (
        "P5",
        lambda r: replace(r, submitted=[replace(s, refused=True) for s in r.submitted]),
    ),
    "was answered with execution 9": (
        "P5",
        lambda r: replace(r, submitted=[replace(s, execution_id=9) for s in r.submitted]),
    ),
    "was never sent": ("P5", lambda r: replace(r, submitted=r.submitted[1:])),
    "was still running": ("P5", without(ending(6, 1))),
    "has attempt": ("P6", changed(execution(execution_id=3, status=Status.SCHEDULED), attempt=2)),
    "was claimed 2 times": ("P6", again(execution(execution_id=1, status=Status.RUNNING))),
    "by no worker": ("P6", changed(execution(execution_id=1, status=Status.RUNNING), worker_id=None)),
    "and ended by": ("P6", changed(attempt(execution_id=3), worker_id="w2")),
    "and ended by w2": ("P6", changed(execution(execution_id=1, status=Status.COMPLETED), worker_id="w2")),
    "row of attempt 1 changed": ("P6", again(attempt(execution_id=3))),
    "was lost, and moved it": (
        "P6",
        changed(execution(execution_id=3, status=Status.RUNNING, attempt=2), worker_id="w1"),
    ),
    "has no row": ("P6", without(attempt(execution_id=3))),
    "had not registered": ("P6", without(worker(worker_id="w1"))),
    "by its status it": ("P3", without(waiting(execution_id=3, step=Step.INSERT))),
    "which was not lost": ("P6", without(worker(change=WorkerChange.LOST))),
    "worker w1 was registered after": ("P6", again(worker(worker_id="w1"))),
    "and in process 2": ("P6", lambda r: replace(r, runs=[*r.runs, replace(r.runs[0], pid=2)])),
    "ran without a claim": ("P6", without(execution(execution_id=1, status=Status.RUNNING))),
    "before its claim at": ("P6", with_run(started_ns=0)),
    "but had ended at": ("P6", with_run(stopped_ns=10**13)),
    "was free while an execution waited": ("P7", lambda _: left_idle(3.0)),
    "last heartbeat": ("P7", slower(worker(change="lost"), 6.0)),
}


def test_a_correct_history_breaks_no_promise() -> None:
    assert broken(correct_history()) == []


def test_a_delayed_execution_is_not_overtaken_before_it_is_due() -> None:
    assert broken(overtaken(delayed=True)) == []


@pytest.mark.parametrize("words", BROKEN)
def test_each_way_to_break_a_promise_is_named(words: str) -> None:
    promise, edit = BROKEN[words]
    found = broken(edit(correct_history()))
    assert [line for line in found if line.startswith(f"{promise}: ") and words in line], found


def test_bounds_do_not_count_in_a_fault_window() -> None:
    recording = left_idle(3.0)
    began_at = recording.events[3].stamp.at
    covering = replace(
        BOUNDS, windows=[Window(began_at=began_at, ended_at=began_at + timedelta(seconds=2.5))]
    )
    beside = replace(
        BOUNDS,
        windows=[Window(began_at=began_at - timedelta(seconds=9), ended_at=began_at - timedelta(seconds=6))],
    )
    assert (broken(recording, covering), len(broken(recording, beside))) == ([], 1)


def test_overlapping_windows_are_counted_once() -> None:
    def second(number: float) -> datetime:
        return BOOTED_AT + timedelta(seconds=number)

    windows = [Window(began_at=second(a), ended_at=second(b)) for a, b in ((2, 5), (0, 3), (4, 4.5), (8, 99))]
    assert replace(BOUNDS, windows=windows).seconds_outside(second(1), second(9)) == 3.0


def test_a_reclaimed_run_may_continue_for_the_bound_and_no_longer() -> None:
    recording = correct_history()
    lost_at = next(m.stamp.at for m in recording.events if isinstance(m, WorkerEvent) and m.change == "lost")

    def going_on(seconds: float) -> Recording:
        stopped_ns = round((lost_at - BOOTED_AT).total_seconds() * 1e9 + seconds * 1e9)
        runs = [replace(r, stopped_ns=stopped_ns) if r.stopped_ns is None else r for r in recording.runs]
        return replace(recording, runs=runs)

    assert broken(going_on(0.4)) == []
    assert [line[:4] for line in broken(going_on(2.0))] == ["P1: ", "P6: "]


def test_a_lowered_limit_takes_nothing_away_and_a_raised_one_gives() -> None:
    writer = HistoryWriter()
    writer.queue(A, 2)
    writer.worker("w")
    for execution_id in (1, 2):
        writer.admit(execution_id, A, granted=True)
        writer.claim(execution_id, "w")
    writer.queue(A, 1)
    writer.admit(3, A)
    for execution_id, then in ((1, None), (2, 3)):
        writer.finish(execution_id)
        writer.settle(execution_id, then=then)
    writer.claim(3, "w")
    writer.finish(3)
    writer.settle(3)
    assert broken(writer.recording()) == []


def test_limit_order_and_idle_slots_of_a_queue_before_other_gates_are_left_to_the_replay_of_gates() -> None:
    def gated(recording: Recording) -> Recording:
        events = [
            replace(event, has_gates=True) if isinstance(event, SlotEvent) else event
            for event in recording.events
        ]
        return replace(recording, events=events)

    for recording in (overtaken(delayed=False), left_idle(3.0)):
        assert broken(recording) != []
        assert broken(gated(recording)) == []


def idle_beside(
    *,
    capacity: int = 1,
    serves: str | None = None,
    pool: str = "default",
    leaves: WorkerChange | None = None,
    beside: str | None = None,
) -> Recording:
    """Another action runs, and for 3 s a slot of a queue is free beside a waiting execution."""
    writer = HistoryWriter()
    for ref, queue_id, own_pool in (("a", A, pool), ("b", B, "default")):
        writer.action(ref, pool=own_pool)
        writer.queue(queue_id, 1, of=ref)
    writer.worker("runs", capacity=capacity, serves=serves)
    if beside is not None:
        writer.worker("idle", capacity=9, serves=beside)
    writer.admit(1, B, granted=True)
    writer.claim(1, "runs")
    if leaves is not None:
        writer.worker("waits")
        writer.worker("runs", leaves)
    writer.admit(2, A)
    healed = len(writer.events)
    writer.finish(1)
    writer.settle(1)
    writer.grant(2)
    writer.claim(2, "waits" if leaves else "runs")
    writer.finish(2)
    writer.settle(2)
    return slower(lambda event: event.stamp.seq > healed, 3.0)(writer.recording())


@pytest.mark.parametrize(
    ("recording", "is_fault"),
    [
        (idle_beside(capacity=1), False),
        (idle_beside(capacity=2), True),
        (idle_beside(capacity=2, serves="b"), False),
        (idle_beside(capacity=2, serves="ab"), True),
        (idle_beside(capacity=9, pool="gpu"), False),
        (idle_beside(capacity=1, leaves=WorkerChange.DRAINED), True),
        (idle_beside(capacity=1, serves="ab", beside="c"), False),
        (idle_beside(capacity=2, serves="ab", beside="c"), True),
        (idle_beside(capacity=1, serves="ab", beside="a"), True),
    ],
    ids=[
        "all worker slots are taken",
        "a worker slot is free",
        "no worker serves it",
        "a worker serves it",
        "its own pool has no worker",
        "what a draining worker runs takes no worker slot",
        "the workers that serve it are busy",
        "one of the workers that serve it has a worker slot",
        "another worker serves it too",
    ],
)
def test_a_free_slot_is_a_fault_if_a_worker_could_run_what_waits(
    recording: Recording, is_fault: bool
) -> None:
    found = broken(recording)
    assert len(found) == is_fault, found
    assert waited_for_workers(recording.events) <= ({2} if not is_fault else set())
    assert all("was free while an execution waited" in line for line in found)


def _after(count: int) -> Callable[[Event], bool]:
    return lambda event: event.stamp.seq > count


def test_a_worker_that_comes_ends_the_excuse() -> None:
    """From the commit of its registration, the bound counts."""
    for seconds, faults in ((0.5, 0), (2.0, 1)):
        writer = HistoryWriter()
        writer.action("a")
        writer.queue(A, 1, of="a")
        writer.admit(1, A)
        came = len(writer.events)
        writer.worker("w")
        granted = len(writer.events)
        writer.grant(1)
        writer.claim(1, "w")
        writer.finish(1)
        writer.settle(1)
        late = slower(_after(came), 9.0)(writer.recording())
        recording = slower(_after(granted), seconds)(late)
        assert len(broken(recording)) == faults


def test_a_free_slot_is_no_fault_while_its_pool_is_paused() -> None:
    """From the commit of the resume on, the bound counts. What waited did not wait for a busy worker."""
    writer = HistoryWriter()
    writer.action("a")
    writer.queue(A, 1, of="a")
    writer.worker("w")
    writer.pool(paused=True, name="other")
    writer.pool(paused=True)
    writer.admit(1, A)
    admitted = len(writer.events)
    writer.pool(paused=False)
    resumed = len(writer.events)
    writer.grant(1)
    writer.claim(1, "w")
    writer.finish(1)
    writer.settle(1)
    for late_from, faults in ((admitted, 0), (resumed, 1)):
        recording = slower(_after(late_from), 9.0)(writer.recording())
        assert len(broken(recording)) == faults
        assert waited_for_workers(recording.events) == set()
    without_pause = [event for event in writer.events if not isinstance(event, PoolEvent)]
    late = slower(_after(admitted), 9.0)(replace(writer.recording(), events=without_pause))
    assert len(broken(late)) == 1


def test_the_rules_notice_each_missing_event() -> None:
    recording = correct_history()
    unnoticed = [event for event in recording.events if not broken(without(partial(is_, event))(recording))]
    assert all(_may_be_missing(event) for event in unnoticed), unnoticed


def _may_be_missing(event: Event) -> bool:
    match event:
        # The limits without a log entry, and a regular stop of a worker, hide nothing.
        case QueueEvent() | WorkerEvent(change=WorkerChange.STOPPED):
            return True
        case SlotEvent(step=Step.UPDATE, is_over=False):
            return True
        case _:
            return False


def test_the_statistics_are_those_of_the_history() -> None:
    measured = statistics(correct_history())
    assert measured.ends == {"completed": 4, "failed": 1, "timeout": 1, "cancelled": 1}
    assert (measured.executions, measured.grants, measured.runs, measured.reclaims) == (7, 8, 8, 1)
    assert (measured.workers_lost, measured.completions_published) == (1, 7)
    assert 0.2 <= measured.worst_slot_leak_seconds <= 0.5
    assert 0.0 < measured.worst_reclaim_seconds < 5.0
