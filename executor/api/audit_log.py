"""`GET /audit-log`: what operators did: who, when, from where, and what changed."""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from turnstile.common.fields import Instant
from turnstile.executor.api.auth import CallerScope
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import Page, Paging, page_before
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes
from turnstile.executor.queries.definition_reader import AuditLogFilter
from turnstile.executor.queries.schemas import AuditLogEntry, SubjectKind, Verb


class AuditLogListing(Paging):
    """Which rows to list; all conditions must hold."""

    subject_kind: SubjectKind | None = None
    subject: FilterText | None = Field(
        default=None, description="Id or name of the subject.", examples=["reports.render"]
    )
    action_ref: FilterText | None = Field(
        default=None, description="Rows about this action, its executions and their webhooks."
    )
    verb: Verb | None = None
    user: FilterText | None = Field(default=None, description="Name of the token.", examples=["alice"])
    recorded_after: Instant | None = Field(default=None, description="This instant or later.")
    recorded_before: Instant | None = Field(default=None, description="Earlier than this instant.")


routes = ApiRoutes(tag="operation")


@routes.get(
    "/audit-log",
    summary="List what operators did, newest first",
    description="One row per changed subject, stored in the transaction of the change. A change of many "
    "executions by a filter has one more row, of the kind `executions`, with the filter. Submissions and "
    "cancel messages over AMQP are not in it: they carry no token.",
)
async def get_audit_log(
    parts: Parts, query: Annotated[AuditLogListing, Query()], scope: CallerScope
) -> Page[AuditLogEntry]:
    wanted = AuditLogFilter(**query.model_dump(exclude={"limit", "cursor"}), scope=scope)
    return await page_before(
        "audit-log",
        query,
        lambda before, limit: parts.definitions.audit_log(wanted, before_id=before, limit=limit),
    )
