"""Schedules as timers of the leader: which occurrences are due, and what becomes of each.

In: definitions, and the time. Out: requests like any other, each with the idempotency key of its occurrence,
and rows of the same turn that say up to where each schedule is decided. So an occurrence is decided once: by
the row, and where a schedule was deleted and made again, by the key. An idle schedule costs its memory alone.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import floor, inf
from typing import Any, Final

from msgspec import structs
from pydantic import ValidationError

from turnstile.common.invalid_values import explained
from turnstile.common.requests import read_request
from turnstile.common.schedules import ScheduleDefinition, advance, key_of, request_body
from turnstile.executor.leader.admission import Admission, Source
from turnstile.executor.leader.door import request_of
from turnstile.executor.leader.records import ScheduleRow
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.inputs import Input

logger = logging.getLogger(__name__)

Body = Mapping[str, Any]

OCCURRENCES_MAX: Final = 200
"""Of all schedules, in one turn; the others follow in the next ones."""
_TIMETABLE: Final = ("cron", "every", "timezone", "start_at", "end_at", "paused")
"""A change of these counts from its own instant: what was due before by the new ones is not made up for."""


class Schedules:
    """All schedules, as they are after what was decided in this turn too."""

    def __init__(self, rows: Iterable[ScheduleRow] = (), bodies: Mapping[str, Body] | None = None) -> None:
        self._bodies = dict(bodies or {})
        self._rows = {row.name: row for row in rows}
        self._timers = [(row.wake_at, row.name) for row in self._rows.values() if row.wake_at is not None]
        heapify(self._timers)
        self._previous: dict[str, int | None] = {}
        """Of what this turn decides: the executions of the occurrences before."""
        self.changed: dict[str, ScheduleRow | None] = {}
        """What this turn writes; None: the schedule was deleted."""
        self._noted: Counter[str] = Counter()

    def written(self) -> None:
        """Forget what the committed turn has written."""
        self.changed.clear()

    def take_noted(self) -> Mapping[str, int]:
        """Return what became of occurrences since the last call, for the metrics."""
        noted, self._noted = self._noted, Counter()
        return noted

    @property
    def next_at(self) -> float:
        """When the next occurrence is due."""
        timers = self._timers
        while timers and not self._is_current(*timers[0]):
            heappop(timers)
        return timers[0][0] if timers else inf

    def _is_current(self, wake_at: float, name: str) -> bool:
        row = self._rows.get(name)
        return row is not None and row.wake_at == wake_at

    # Definitions.

    def define(self, name: str, body: Body | None, now: float) -> None:
        """Take a changed definition; None: it was deleted."""
        old = self._bodies.get(name)
        if body is None:
            self._bodies.pop(name, None)
            self._rows.pop(name, None)
            self.changed[name] = None
            return
        self._bodies[name] = body
        row = self._rows.get(name) or ScheduleRow(name=name, decided_at=floor(now))
        if old is None or any(old.get(field) != body.get(field) for field in _TIMETABLE):
            row = structs.replace(row, decided_at=max(row.decided_at, floor(now)))
        try:
            schedule = ScheduleDefinition.model_validate(body)
        except ValidationError as invalid:
            self._stop(row, explained(invalid, whole="definition"))
            return
        following = None if schedule.paused else schedule.next_after(row.decided_at)
        wake_at = None if following is None else schedule.due_at(following)
        self._put(structs.replace(row, wake_at=wake_at, problem=None))

    def _put(self, row: ScheduleRow) -> None:
        self._rows[row.name] = self.changed[row.name] = row
        if row.wake_at is not None:
            heappush(self._timers, (row.wake_at, row.name))

    def _stop(self, row: ScheduleRow, problem: str) -> None:
        """Let a schedule rest that this host cannot compute, like one with a zone that it does not know."""
        logger.error("schedule_stopped", extra={"schedule": row.name, "reason": problem})
        self._put(structs.replace(row, wake_at=None, problem=problem))

    # Occurrences.

    def due(self, now: float) -> list[Source]:
        """Return the occurrences to decide now, and remember that they are decided."""
        found: list[Source] = []
        self._previous.clear()
        rest: list[tuple[float, str]] = []
        while self.next_at <= now and len(found) < OCCURRENCES_MAX:
            _, name = heappop(self._timers)
            found += self._due(self._rows[name], now, OCCURRENCES_MAX - len(found), rest)
        for each in rest:
            heappush(self._timers, each)
        return found

    def _due(
        self, row: ScheduleRow, now: float, most: int, rest: list[tuple[float, str]]
    ) -> Iterable[Source]:
        try:
            schedule = ScheduleDefinition.model_validate(self._bodies[row.name])
        except ValidationError as invalid:
            self._stop(row, explained(invalid, whole="definition"))
            return ()
        # Whether the one before has ended is known one turn later.
        done = advance(schedule, row.decided_at, now, most if schedule.overlap == "queue" else 1)
        changes: dict[str, Any] = {"decided_at": done.decided, "wake_at": done.wake_at}
        if done.missed is not None:
            fields = {"schedule": row.name, "catch_up": schedule.catch_up, "missed": done.missed}
            logger.warning("occurrences_missed", extra=fields)
            changes["missed_at"] = done.missed
            self._noted["missed"] += 1
        self._rows[row.name] = self.changed[row.name] = structs.replace(row, **changes)
        if done.wake_at is not None:
            rest.append((done.wake_at, row.name))
        if done.admitted and schedule.overlap != "queue":
            self._previous[row.name] = row.execution_id
        return [_source(schedule, occurrence) for occurrence in done.admitted]

    @property
    def previous_ids(self) -> Sequence[int]:
        """Return the executions of which it matters whether they have ended."""
        return [each for each in self._previous.values() if each is not None]

    def inputs(self, source: Source, admission: Admission, now: float) -> Iterator[Input]:
        """Yield what an occurrence leads to, by the overlap with the one before."""
        assert source.schedule is not None
        row = self._rows[source.schedule]
        previous = self._previous.get(row.name)
        living = None if previous is None else admission.living(previous)
        if living is not None and self._bodies[row.name].get("overlap") == "skip":
            self._noted["skipped"] += 1
            self._change(row, skipped=row.skipped + 1)
            return
        if living is not None:
            yield admission.cancel_of(living, f"the next occurrence of the schedule {row.name} has come")
        yield from admission.inputs(source, now)

    def decided(self, out: Decisions, refused: Iterable[tuple[Source, str]]) -> None:
        """Note which executions the occurrences became, and why others were refused."""
        for admitted in out.admitted:
            if (name := admitted.source.schedule) is not None:
                row = self._rows[name]
                self._noted["admitted"] += 1
                self._change(row, execution_id=admitted.id, admitted=row.admitted + 1, problem=None)
        for source, problem in refused:
            assert source.schedule is not None
            row = self._rows[source.schedule]
            self._noted["refused"] += 1
            self._change(row, refused=row.refused + 1, problem=problem)

    def _change(self, row: ScheduleRow, **changes: Any) -> None:
        self._rows[row.name] = self.changed[row.name] = structs.replace(row, **changes)


def _source(schedule: ScheduleDefinition, occurrence: int) -> Source:
    """Return an occurrence as the request that it is."""
    requested = read_request(request_body(schedule))
    key = key_of(schedule.name, occurrence)
    request = structs.replace(request_of(requested, may_be_urgent=True), idempotency_key=key)
    return Source(request=request, schedule=schedule.name)
