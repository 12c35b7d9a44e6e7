"""Judges the history of a run. Pure, and the same for both modes.

In: a `Witnessed` and `Bounds`. Out: one sentence for each broken promise, and `Statistics`. The rules are
those of `turnstile.stress.check`; here are only those of what was submitted and published: each request is
one execution, that ends as its submitter asked for, and every end is published.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.proof.chaos.history import Window, Witnessed, moment, passers, tables_of
from tests.proof.chaos.submitters import Sent
from turnstile.common.domain.states import TERMINAL, Status
from turnstile.stress.check.excuses import merged
from turnstile.stress.check.gates import IdleAllowance, replayed
from turnstile.stress.check.history import History
from turnstile.stress.check.order import started_at_workers
from turnstile.stress.check.passages import GateHistory, check_passages
from turnstile.stress.check.queues import held_by, idle_at_workers, moves_of_entries
from turnstile.stress.check.rules import RULES
from turnstile.stress.check.timelines import queue_entries
from turnstile.stress.recording import NEVER

_ENDS: Final = frozenset(map(str, TERMINAL))
_RESUMED_NS: Final = 1_000_000_000
_FAILING_REFS: Final = frozenset({"chaos.mail"})
"""Actions whose first attempt fails, for some ids."""
_FAILURES: Final = 3
"""With so many planned failures an execution may use up its attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Upper bounds on durations, outside all windows."""

    idle_seconds: float
    """A free slot beside a runnable waiting execution."""
    overlap_seconds: float
    """How long a run may continue after its attempt was reclaimed."""
    worker_slots: int
    windows: Sequence[Window] = ()
    """In which idle slots are excused."""
    overlap_windows: Sequence[Window] = ()
    """In which a worker could stop nothing."""
    abandoned_refs: Collection[str] = ()
    """Actions that may be abandoned, since their workers are lost repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts and worst times of a whole run, faults included."""

    executions: int
    ends: Mapping[str, int]
    grants: int
    runs: int
    reclaims: int
    workers_lost: int
    completions_published: int
    worst_idle_seconds: float
    """A free slot beside a runnable waiting execution, outside all windows."""
    passages: Mapping[str, int]
    """How much of each guarantee of gates was checked."""


def judged(seen: Witnessed, bounds: Bounds) -> tuple[list[str], Statistics]:
    """Return everything that breaks a promise, and the statistics."""
    tables = tables_of(
        seen,
        overlap_seconds=bounds.overlap_seconds,
        overlap_windows=bounds.overlap_windows,
        windows=bounds.windows,
    )
    queues, worst_idle_ns = replayed_queues(seen, tables, bounds)
    gates = check_passages(GateHistory(passers=list(passers(seen)), definitions=seen.definitions))
    broken = [
        *(
            f"{ruling.rule}: {what}"
            for rule in (*RULES, started_at_workers)
            for ruling in [rule(tables)]
            for what, _ in ruling.each()
        ),
        *(what for _, what in queues),
        *(
            f"{each.rule}: {each.what} ({each.gate}, execution {each.execution_id},"
            f" at {moment(each.at):%H:%M:%S.%f})"
            for each in gates.broken
        ),
        *_of_submissions(seen, bounds),
        *_of_events(seen),
    ]
    statistics = Statistics(
        executions=len(seen.executions),
        ends=Counter(row["status"] for row in seen.executions),
        grants=len(tables.attempts),
        runs=len(seen.runs),
        reclaims=sum(row["outcome"] == "reclaimed" for row in seen.ended_attempts),
        workers_lost=len(seen.lost),
        completions_published=len(seen.published),
        worst_idle_seconds=worst_idle_ns / 1e9,
        passages={rule.name.lower(): count for rule, count in gates.checked.items()},
    )
    return broken, statistics


def replayed_queues(seen: Witnessed, tables: History, bounds: Bounds) -> tuple[list[tuple[str, str]], int]:
    """Replay limit, order and idle slots of the queues without other gates.

    Returns what is broken, each with its action, and the longest time that a slot was idle.
    """
    ended_at = max((at for at in tables.attempts["ended_at"].tolist() if at != NEVER), default=0)
    excused = [
        *(window.nanoseconds for window in bounds.windows),
        *held_by(tables.attempts, tables.limits, bounds.worker_slots, ended_at),
        *_pauses_of_pools(seen),
    ]
    names = {number: (ref, key) for (ref, key), number in seen.queues.items()}
    allowance = IdleAllowance(seconds=bounds.idle_seconds, excused=merged(excused))
    moves = moves_of_entries(queue_entries(tables), tables.limits)
    broken: list[tuple[str, str]] = []
    worst_idle_ns = 0
    for gate in replayed(moves, until=ended_at, allowance=allowance):
        worst_idle_ns = max(worst_idle_ns, gate.longest_idle_ns)
        for each in gate.broken:
            ref, key = names[each.gate]
            where = ref if key is None else f"{ref}, key {key}"
            broken.append((ref, f"{each.rule}: {each.what} ({where}, at {moment(each.at):%H:%M:%S.%f})"))
    broken += [
        (names[each.gate][0], f"{each.rule}: {each.what} (at {moment(each.at):%H:%M:%S.%f})")
        for each in idle_at_workers(tables, bounds.idle_seconds, until=ended_at)
    ]
    return broken, worst_idle_ns


def _pauses_of_pools(seen: Witnessed) -> Iterator[tuple[int, int]]:
    for history in seen.definitions.pools.values():
        ends = [*history.changed_at, NEVER - _RESUMED_NS]
        for (since, version), until in zip(history.versions, ends, strict=True):
            if version["paused"]:
                yield since, until + _RESUMED_NS


def _of_submissions(seen: Witnessed, bounds: Bounds) -> Iterator[str]:
    """Each one ends as was asked for, and is completed only by a run of its last attempt."""
    ran = {(run.execution_id, run.attempt) for run in seen.runs}
    sent = {str(number): each for number, each in seen.log.sent.items()}
    for row in seen.executions:
        status, named = row["status"], f"execution {row['id']} of {row['action_ref']}"
        each = sent.get(row["tag"] or "")
        if each is not None and status in _ENDS and status not in _ends_of(each, seen, bounds):
            yield f"{named}, submission {row['tag']}, ended as {status}, for which there was no cause"
        if status == Status.COMPLETED and (row["id"], row["attempt"]) not in ran:
            yield f"{named} was completed without a run of its attempt {row['attempt']}"
        if row["attempt"] == 0 and any((row["id"], number) in ran for number in (0, 1)):
            yield f"{named} ran and has no attempt"


def _ends_of(sent: Sent, seen: Witnessed, bounds: Bounds) -> set[Status]:
    """Return how it may end."""
    body = sent.body
    ends = {Status.COMPLETED}
    if "timeout" in body:
        # Slow processes may be slower than it; what must take longer never completes.
        ends = {Status.TIMEOUT} | (
            {Status.COMPLETED} if body["parameters"]["seconds"] < body["timeout"] else set()
        )
    if body["parameters"].get("failures", 0) >= _FAILURES:
        ends.add(Status.FAILED)
    if "ttl" in body:
        ends.add(Status.EXPIRED)
        if body["parameters"].get("failures", 0) or body["action_ref"] in _FAILING_REFS:
            # A failure whose retry would be due after its time to live is the last.
            ends.add(Status.FAILED)
    if sent.submit.number in seen.log.cancelled:
        ends.add(Status.CANCELLED)
    if body["action_ref"] in bounds.abandoned_refs:
        ends.add(Status.ABANDONED)
    return ends


def _of_events(seen: Witnessed) -> Iterator[str]:
    """Every end was published at least once, and nothing else was."""
    for row in seen.executions:
        if row["status"] in _ENDS:
            found = seen.published.get(row["id"], set())
            if found != {row["status"]}:
                what = ", ".join(sorted(found)) or "nothing"
                yield f"execution {row['id']} ended as {row['status']}, published was {what}"
