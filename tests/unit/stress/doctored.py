"""Ways to break a lawful history: each changes one thing, and names the rules that must find it.

In: a recording of `histories`. Out: the same with one thing wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from tests.unit.stress.histories import MILLISECOND, Plan
from turnstile.common.domain.states import Status
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, SECOND, Answer, Outcome, RunEnd, Table, status_code

Doctor = Callable[[Recording], Recording]

CROWDED: Final = Plan(limit=2, executions=200)
"""Two slots for each of three queues that are never empty."""
STEADY: Final = Plan(limit=2, executions=200, durations_ms=(20,))
FREE: Final = Plan(limit=None, executions=60)
ALONE: Final = Plan(limit=1, executions=200, durations_ms=(0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is done to which history, and what must be found."""

    doctor: Doctor
    words: str
    """That some example must contain."""
    rules: frozenset[Rule]
    plan: Plan = CROWDED


def case(doctor: Doctor, words: str, *rules: Rule, plan: Plan = CROWDED) -> Case:
    return Case(doctor=doctor, words=words, rules=frozenset(rules), plan=plan)


def changed(recording: Recording, table: str, row: int, **values: Any) -> Recording:
    """Return the recording with other values in one row."""
    copy = getattr(recording, table).copy()
    for name, value in values.items():
        copy[name][row] = value
    return replace(recording, **{table: copy})


def with_tables(recording: Recording, **tables: Any) -> Recording:
    return replace(recording, **tables)


def set_to(table: str, row: int, **values: Any) -> Doctor:
    return lambda recording: changed(recording, table, row, **values)


def moved(table: str, row: int, name: str, milliseconds: float) -> Doctor:
    """Let one instant be earlier or later."""

    def doctor(recording: Recording) -> Recording:
        then = int(getattr(recording, table)[name][row]) + round(milliseconds * MILLISECOND)
        return changed(recording, table, row, **{name: then})

    return doctor


def without(table: str, row: int) -> Doctor:
    return lambda recording: with_tables(recording, **{table: np.delete(getattr(recording, table), row)})


def with_one_more(table: str, row: int, **values: Any) -> Doctor:
    """Let a row be there once more, with other values."""

    def doctor(recording: Recording) -> Recording:
        old: Table = getattr(recording, table)
        more = with_tables(recording, **{table: np.append(old, old[row : row + 1])})
        return changed(more, table, len(old), **values)

    return doctor


def together(*doctors: Doctor) -> Doctor:
    def doctor(recording: Recording) -> Recording:
        for one in doctors:
            recording = one(recording)
        return recording

    return doctor


def in_line_behind(recording: Recording, row: int = 20) -> tuple[int, int]:
    """Return two attempts that follow each other in their queue, both waiting at the first one's grant."""
    attempts = recording.attempts
    own = np.flatnonzero(attempts["queue"] == attempts["queue"][row])
    own = own[np.argsort(attempts["granted_at"][own], kind="stable")]
    for first, second in pairwise(own[10:]):
        if attempts["waiting_since"][second] < attempts["granted_at"][first] < attempts["granted_at"][second]:
            return int(first), int(second)
    raise AssertionError("nobody waits in this history")


def granted_too_soon(recording: Recording) -> Recording:
    _, second = in_line_behind(recording)
    attempts = recording.attempts
    own = attempts[attempts["queue"] == attempts["queue"][second]]
    freed_at = int(own["ended_at"][own["ended_at"] <= attempts["granted_at"][second]].max())
    return changed(recording, "attempts", second, granted_at=freed_at - 100_000)


def ran_too_long(recording: Recording) -> Recording:
    """Let a run go on until the next one has started: by little, so that its attempt is hardly over."""
    _, second = in_line_behind(recording)
    runs = recording.runs
    next_start = runs["started_at"][runs["execution_id"] == recording.attempts["execution_id"][second]][0]
    before = (runs["queue"] == recording.attempts["queue"][second]) & (runs["stopped_at"] < next_start)
    last = int(np.argmax(np.where(before, runs["stopped_at"], 0)))
    return changed(recording, "runs", last, stopped_at=int(next_start) + 100_000)


def changed_places(recording: Recording) -> Recording:
    """Let the second of two in line pass the first: each lives the other's life from the grant on."""
    first, second = in_line_behind(recording)
    ids = recording.attempts["execution_id"]
    names = ("granted_at", "started_at", "ended_at")
    recording = _exchanged(recording, "attempts", first, second, *names)
    runs = recording.runs["execution_id"].tolist()
    return _exchanged(
        recording, "runs", runs.index(ids[first]), runs.index(ids[second]), "started_at", "stopped_at"
    )


def sent_the_other_way(recording: Recording) -> Recording:
    """Let two requests of one submitter for one queue have arrived the other way round."""
    orders = recording.orders
    like = (orders["submitter"] == orders["submitter"][30]) & (orders["queue"] == orders["queue"][30])
    first, second = np.flatnonzero(like)[:2].tolist()
    recording = _exchanged(recording, "orders", first, second, "execution_id")
    for table in ("executions", "runs"):
        numbers = getattr(recording, table)["number"].tolist()
        recording = _exchanged(recording, table, numbers.index(first), numbers.index(second), "number")
    return recording


def started_after_the_next(recording: Recording) -> Recording:
    first, second = in_line_behind(recording)
    ids, runs = recording.attempts["execution_id"], recording.runs["execution_id"].tolist()
    after = int(recording.runs["started_at"][runs.index(ids[second])]) + 100_000
    return changed(recording, "runs", runs.index(ids[first]), started_at=after, stopped_at=after)


def forgotten(recording: Recording) -> Recording:
    """Let an execution vanish from the record with all that it did."""
    gone = recording.executions["execution_id"][7]
    tables = {name: getattr(recording, name) for name in ("executions", "attempts", "runs")}
    return replace(recording, **{name: rows[rows["execution_id"] != gone] for name, rows in tables.items()})


def rejected(recording: Recording) -> Recording:
    """Let the request of the execution that `forgotten` takes away have been refused."""
    return changed(recording, "orders", int(recording.executions["number"][7]), answer=Answer.REJECTED)


def admitted_twice(recording: Recording) -> Recording:
    double = int(recording.executions["execution_id"].max()) + 1
    rows = (recording.executions[-1:], recording.attempts[-1:], recording.runs[-1:])
    last = int(rows[0]["execution_id"][0])
    recording = with_one_more("executions", len(recording.executions) - 1, execution_id=double)(recording)
    for table in ("attempts", "runs"):
        row = getattr(recording, table)["execution_id"].tolist().index(last)
        recording = with_one_more(table, row, execution_id=double)(recording)
    return recording


def never_ended(recording: Recording) -> Recording:
    """Let the very last execution run for ever."""
    last = recording.executions["execution_id"][-1]
    attempt = recording.attempts["execution_id"].tolist().index(last)
    run = recording.runs["execution_id"].tolist().index(last)
    return together(
        set_to("executions", -1, status=status_code(Status.RUNNING), completed_at=NEVER),
        set_to("attempts", attempt, ended_at=NEVER, outcome=Outcome.OPEN),
        set_to("runs", run, stopped_at=NEVER, end=RunEnd.UNKNOWN),
    )(recording)


def never_granted(recording: Recording) -> Recording:
    """Let one stand in line for ever, and all behind it be served."""
    first, _ = in_line_behind(recording)
    lost = recording.attempts["execution_id"][first]
    row = recording.executions["execution_id"].tolist().index(lost)
    return replace(
        changed(
            replace(recording, ended_at=recording.ended_at + 3 * SECOND),
            "executions",
            row,
            status=status_code(Status.QUEUED),
            completed_at=NEVER,
            attempt=0,
        ),
        attempts=recording.attempts[recording.attempts["execution_id"] != lost],
        runs=recording.runs[recording.runs["execution_id"] != lost],
    )


def granted_late(recording: Recording, seconds: float = 3.0) -> Recording:
    """Let the last of a queue be granted only so much later, although a slot is free."""
    last = recording.executions["execution_id"][-1]
    late_ns = round(seconds * SECOND)
    tables = {}
    for name, columns in (
        ("executions", ("completed_at",)),
        ("attempts", ("granted_at", "started_at", "ended_at")),
        ("runs", ("started_at", "stopped_at")),
    ):
        table = getattr(recording, name).copy()
        for column in columns:
            table[column][table["execution_id"] == last] += late_ns
        tables[name] = table
    return replace(recording, ended_at=recording.ended_at + late_ns, **tables)


def counted(**off: int) -> Doctor:
    """Let the counters of action 1 be off."""

    def doctor(recording: Recording) -> Recording:
        wrong = {name: getattr(recording.counters[1], name) + by for name, by in off.items()}
        counters = (recording.counters[0], replace(recording.counters[1], **wrong), *recording.counters[2:])
        return replace(recording, counters=counters)

    return doctor


def _exchanged(recording: Recording, table: str, one: int, other: int, *names: str) -> Recording:
    old = getattr(recording, table)
    recording = changed(recording, table, one, **{name: old[name][other] for name in names})
    return changed(recording, table, other, **{name: old[name][one] for name in names})
