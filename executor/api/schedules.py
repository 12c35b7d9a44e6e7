"""The routes of schedules: define, change, pause; their next occurrences; run one now."""

from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Query, Response
from fastapi.openapi.models import Example
from pydantic import AwareDatetime, BaseModel, Field

from turnstile.common.domain.errors import Code
from turnstile.common.fields import Instant, check_schedule
from turnstile.common.requests import read_model, read_request
from turnstile.common.schedules import ScheduleDefinition, request_body, zone_of
from turnstile.executor.api.bodies import DefinitionFields, StrictModel
from turnstile.executor.api.definition_routes import (
    Change,
    DefinitionKind,
    Texts,
    add_definition_routes,
)
from turnstile.executor.api.executions import Acceptance, submit_one
from turnstile.executor.api.paging import Page
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes, documented
from turnstile.executor.leader.commands import unknown
from turnstile.executor.leader.door import request_of
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.schemas import StoredSchedule

_COUNT_MAX: Final = 100


class ScheduleFields(DefinitionFields):
    """Fields of a definition. The path names the schedule."""

    definition = ScheduleDefinition


class ScheduleDeleted(BaseModel):
    """The schedule was deleted."""

    name: str = Field(examples=["nightly-report"])


class Preview(StrictModel):
    """Which occurrences to show."""

    count: int = Field(default=10, ge=1, le=_COUNT_MAX, description="How many.")
    after: Instant | None = Field(default=None, description="Those after this instant; absent: after now.")


class Occurrence(BaseModel):
    """One occurrence."""

    scheduled_for: AwareDatetime = Field(description="Its instant, in UTC.")
    local: AwareDatetime = Field(description="The same, in the time zone of the schedule.")
    due_at: AwareDatetime = Field(description="When its execution is admitted: `jitter` is added.")


class Occurrences(BaseModel):
    """The next occurrences, also of a paused schedule."""

    items: list[Occurrence]


_SCHEDULES: Final[DefinitionKind[StoredSchedule]] = DefinitionKind(
    name="schedule",
    noun="a schedule",
    named_by="name",
    check=check_schedule,
    example="nightly-report",
    fields=ScheduleFields,
    examples={
        "cron": Example(
            summary="At six on workdays in Berlin",
            value={"action_ref": "reports.render", "cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin"},
        ),
        "every": Example(
            summary="Every 15 minutes, and not while the last one runs",
            value={"action_ref": "mirror.sync", "every": "15m", "overlap": "skip"},
        ),
    },
    stored=StoredSchedule,
    page=Page[StoredSchedule],
    find=DefinitionReader.schedule,
    list_after=lambda reader, after, limit, _: reader.schedules(after_name=after, limit=limit),
    texts=Texts(
        all="List schedules by name, with what became of their last occurrences",
        read="Read a schedule, and what became of its last occurrences",
        put="Replace the definition of a schedule; it takes effect at once",
        patch="Change fields of a schedule; they take effect at once",
        pause="Pause a schedule: no occurrence counts until it is resumed; its executions continue",
        changes="Each with who, when and what; stored in the transaction of the change. The changes of a "
        "deleted schedule stay.",
        more={
            "patch": "A changed `cron`, `every`, `timezone`, `start_at` or `end_at` counts from the change "
            "on. To go from `cron` to `every`, send the other one as null."
        },
    ),
)

routes = ApiRoutes(prefix="/schedules", tag="schedules")
add_definition_routes(routes, _SCHEDULES)


@routes.delete(
    "/{name}",
    summary="Delete a schedule; its executions continue",
    responses=documented(Code.NOT_FOUND, Code.PRECONDITION_FAILED),
)
async def delete_schedule(name: Annotated[str, _SCHEDULES.existing], change: Change) -> ScheduleDeleted:
    await change.decide("schedule", name, None)
    return ScheduleDeleted(name=name)


@routes.get(
    "/{name}/occurrences",
    summary="Show the next occurrences of a schedule, also over a change of daylight saving time",
    responses=documented(Code.NOT_FOUND),
)
async def get_occurrences(
    parts: Parts, name: Annotated[str, _SCHEDULES.existing], query: Annotated[Preview, Query()]
) -> Occurrences:
    found = await parts.definitions.schedule(name)
    if found is None:
        raise unknown("schedule", name)
    return _preview(found.stored.definition(), query)


@routes.post(
    "/occurrences",
    summary="Show the next occurrences of a schedule that is not stored; nothing is changed",
    responses=documented(Code.TOO_LARGE),
)
async def post_occurrences(fields: ScheduleFields, query: Annotated[Preview, Query()]) -> Occurrences:
    named = {"name": "preview", "action_ref": "preview", **fields.given}
    return _preview(read_model(ScheduleDefinition, named), query)


def _preview(schedule: ScheduleDefinition, query: Preview) -> Occurrences:
    after = (query.after or datetime.now(UTC)).timestamp()
    zone = zone_of(schedule.timezone)
    return Occurrences(
        items=[
            Occurrence(
                scheduled_for=datetime.fromtimestamp(each, UTC),
                local=datetime.fromtimestamp(each, zone),
                due_at=datetime.fromtimestamp(schedule.due_at(each), UTC),
            )
            for each in schedule.preview(after, query.count)
        ]
    )


@routes.post(
    "/{name}/run",
    summary="Run a schedule now, also while it is paused",
    description="An execution beside the occurrences: `overlap` does not apply, and `scheduled_for` is null.",
    status_code=202,
    responses=documented(
        Code.NOT_FOUND, Code.INVALID_PARAMETERS, Code.UNKNOWN_ACTION, Code.TOO_LARGE, Code.QUEUE_FULL
    ),
)
async def post_run(parts: Parts, name: Annotated[str, _SCHEDULES.existing], response: Response) -> Acceptance:
    found = await parts.definitions.schedule(name)
    if found is None:
        raise unknown("schedule", name)
    requested = read_request(request_body(found.stored.definition()))
    return await submit_one(parts.inbox, request_of(requested, may_be_urgent=True), response)
