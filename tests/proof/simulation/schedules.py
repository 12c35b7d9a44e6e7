"""Schedules in a world: how they are defined, and what must have become of their occurrences.

The rule is in `occurrences`; nothing is taken from the leaders but their rows.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Final

from tests.proof.simulation.database import Postgres
from tests.proof.simulation.occurrences import ScheduleCounts, ScheduledExecution, occurrences_kept
from tests.proof.simulation.processes import WALL
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
    tables = postgres.tables
    own: dict[str, list[ScheduledExecution]] = {plan.name: [] for plan in plans}
    for row in filter(is_scheduled, tables.admitted.values()):
        found, ended = occurrence_of(row.idempotency_key), tables.ended.get(row.id)
        if found is None:
            yield f"SCHEDULE execution {row.id} has no occurrence"
            continue
        completed_at = tables.completed_at.get(row.id)
        execution = ScheduledExecution(
            id=row.id, occurrence=round(found[1].timestamp()),
            created_at=WALL + tables.created_at[row.id] / NS,
            completed_at=None if completed_at is None else WALL + completed_at / NS,
            is_cancelled=ended is not None and ended.status is Status.CANCELLED,
        )  # fmt: skip
        own[found[0]].append(execution)
    for name, executions in own.items():
        schedule = ScheduleDefinition.model_validate(tables.definitions["schedule", name].body)
        assert schedule.start_at is not None
        assert schedule.end_at is not None
        counted = tables.schedules[name]
        kept = occurrences_kept(
            schedule, executions, ScheduleCounts(admitted=counted.admitted, skipped=counted.skipped),
            since=round(schedule.start_at.timestamp()), until=round(schedule.end_at.timestamp()),
            within_seconds=_WITHIN_SECONDS,
        )  # fmt: skip
        yield from (f"SCHEDULE {each}" for each in kept)
