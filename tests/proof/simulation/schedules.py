"""Schedules in a world: how they are defined, and what must have become of their occurrences.

The occurrences are computed again from the definition; nothing is taken from the leaders but their rows.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Final

from tests.proof.simulation.database import Postgres
from tests.proof.simulation.runner import NS
from tests.proof.simulation.story import ActionPlan, SchedulePlan
from turnstile.common.domain.states import Status
from turnstile.common.schedules import ScheduleDefinition, occurrence_of
from turnstile.executor.leader.records import AdmittedRow, DefinitionRow, ScheduleRow

_ACTION: Final = "scheduled"
_WITHIN_SECONDS: Final = 12.0
"""So long after its instant an occurrence is admitted in any case: longer than the faults."""


def define(plan: SchedulePlan, postgres: Postgres) -> None:
    """Store a schedule that begins now."""
    tables, now = postgres.tables, postgres.clock()
    paused = ActionPlan(ref=_ACTION, limit=None, keys=0, fields={}).body(limit=None, paused=True)
    tables.definitions["action", _ACTION] = DefinitionRow(kind="action", name=_ACTION, body=paused)
    begin = datetime.fromtimestamp(floor(now), UTC)
    schedule = ScheduleDefinition(
        name=plan.name, action_ref=_ACTION, every=float(plan.every), start_at=begin,
        end_at=begin + timedelta(seconds=plan.seconds), parameters={"number": 1_999_999_999},
        **plan.fields,
    )  # fmt: skip
    body = schedule.stored()
    tables.definitions["schedule", plan.name] = DefinitionRow(kind="schedule", name=plan.name, body=body)
    tables.schedules[plan.name] = ScheduleRow(name=plan.name, decided_at=floor(now), wake_at=now)


def is_left(postgres: Postgres) -> bool:
    """Return whether an occurrence is still to come."""
    return any(row.wake_at is not None for row in postgres.tables.schedules.values())


def is_scheduled(row: AdmittedRow) -> bool:
    """Return whether an execution is of a schedule."""
    return row.action_ref == _ACTION


def schedules_kept(plans: Sequence[SchedulePlan], postgres: Postgres) -> Iterator[str]:
    """Yield occurrences that became no execution, or several, or one at the wrong time."""
    admitted = [row for _, row in sorted(postgres.tables.admitted.items()) if is_scheduled(row)]
    for plan in plans:
        body = postgres.tables.definitions["schedule", plan.name].body
        schedule = ScheduleDefinition.model_validate(body)
        own = {}
        for row in admitted:
            found = occurrence_of(row.idempotency_key)
            if found is None:
                yield f"SCHEDULE execution {row.id} has no occurrence"
            elif found[0] == plan.name:
                own[round(found[1].timestamp())] = row
        yield from _kept(schedule, own, postgres)


def _kept(schedule: ScheduleDefinition, own: dict[int, AdmittedRow], postgres: Postgres) -> Iterator[str]:
    assert schedule.start_at is not None
    tables, name = postgres.tables, schedule.name
    expected = list(schedule.preview(schedule.start_at.timestamp(), 1000))
    for stray in sorted(own.keys() - set(expected)):
        yield f"SCHEDULE {name} has no occurrence {stray}, and an execution of it"
    for occurrence, row in own.items():
        if not schedule.due_at(occurrence) - 0.001 <= row.created_at <= occurrence + _WITHIN_SECONDS:
            yield f"SCHEDULE {name} {occurrence} was admitted at {row.created_at}"
    left_out = [each for each in expected if each not in own]
    if left_out and schedule.overlap != "skip":
        yield f"SCHEDULE {name} occurrences {left_out} have no execution"
    state = tables.schedules[name]
    if (state.admitted, state.skipped) != (len(own), len(left_out)):
        yield f"SCHEDULE {name} counts {state}; it has {len(own)} executions, and {len(left_out)} left out"
    if schedule.overlap == "queue":
        return
    rows = [own[each] for each in sorted(own)]
    for before, after in zip(rows, rows[1:], strict=False):
        until = tables.completed_at.get(before.id)
        if until is None or until > tables.created_at[after.id] + NS // 1000:
            yield f"SCHEDULE {name} execution {after.id} was admitted before {before.id} had ended"
        ended = tables.ended.get(before.id)
        if schedule.overlap == "skip" and ended is not None and ended.status is Status.CANCELLED:
            yield f"SCHEDULE {name} execution {before.id} was cancelled"
