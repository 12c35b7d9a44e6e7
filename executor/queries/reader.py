"""Reads executions, actions, queues and logs for people and programs, and never writes.

In: ids, filters, where a page starts. Out: schemas, and where the next page starts; each page from one
snapshot of the rows, so that its numbers agree with each other. `read_limiter` bounds the concurrent reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import asyncpg

from turnstile.common.fields import PRIORITIES
from turnstile.common.json_limits import readable
from turnstile.common.schemas import QueueStats
from turnstile.executor.queries.action_rows import (
    page_of,
    read_action,
    read_action_detail,
    read_queue_stats,
)
from turnstile.executor.queries.read_limiter import LimitedReader
from turnstile.executor.queries.schemas import (
    HOLDERS_MAX,
    ActionDetail,
    ActionQueuePage,
    AuditLogEntry,
    ChangeEntry,
    QueuedExecution,
    SlotHolder,
    StoredAction,
    StoredKey,
    SubjectKind,
)
from turnstile.executor.sql import query

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

KEYS_MAX: Final = 100
"""Most concurrency keys in the statistics of one action."""
_LOG_CHARS_MAX: Final = 1024 * 1024
_GRANTS_SCANNED_MAX: Final = 500
_GRANTS_MIN: Final = 200
_GRANTS_PER_SLOT: Final = 3


QUEUED_ID_MAX: Final = 2**58 - 1
"""The largest execution id that a position in a queue can hold (`turnstile.place_of`)."""


class QueueStart(NamedTuple):
    """A page of waiting executions begins behind this one, in the order of priorities and ids."""

    priority: int = PRIORITIES[0]
    id: int = 0
    """At most `QUEUED_ID_MAX`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogFilter:
    """Which rows of the audit log are selected: all conditions must hold; None: no condition."""

    subject_kind: str | None = None
    subject: str | None = None
    action_ref: str | None = None
    verb: str | None = None
    user: str | None = None
    recorded_after: datetime | None = None
    """This instant or later."""
    recorded_before: datetime | None = None
    """Earlier than this instant."""
    scope: tuple[str, ...] | None = None
    """Only rows about actions whose names begin with one of these."""


class Reader(LimitedReader):
    """Safe to share between tasks."""

    async def action(self, ref: str) -> StoredAction | None:
        """Return one action."""
        row = await self._row(query("action"), ref)
        return None if row is None else read_action(row)

    async def action_detail(self, ref: str) -> ActionDetail | None:
        """Return one action with the schemas of its code."""
        async with self.snapshot() as connection:
            row = await connection.fetchrow(query("action"), ref)
            derived = await connection.fetch(query("code_schemas"), ref)
        return None if row is None else read_action_detail(read_action(row), derived)

    async def actions(
        self, *, after_ref: str | None, limit: int, scope: Sequence[str] | None = None
    ) -> tuple[list[StoredAction], str | None]:
        """Return actions in the order of their names, and the name after which the next page starts.

        With `scope` only those whose names begin with one of its prefixes.
        """
        found = await self._rows(query("actions"), after_ref or "", limit + 1, scope)
        return page_of(found, limit, read_action, lambda action: action.ref)

    async def keys(
        self, ref: str, *, after_key: str | None, limit: int
    ) -> tuple[list[StoredKey], str | None]:
        """Return the keys of an action that have settings, in order, and after which the next page starts."""
        found = await self._rows(query("action_keys"), ref, after_key or "", limit + 1)
        return page_of(found, limit, lambda row: StoredKey(**row), lambda key: key.concurrency_key)

    async def key(self, ref: str, key: str) -> StoredKey | None:
        """Return the settings of one key of an action, if it has any."""
        row = await self._row(query("action_key"), ref, key)
        return None if row is None else StoredKey(**row)

    async def changes(
        self, kind: SubjectKind, name: str, *, before_id: int, limit: int
    ) -> tuple[list[ChangeEntry], int | None]:
        """Return the changes of a definition, newest first, and the id before which the next page starts."""
        found = await self._rows(query("definition_changes"), kind, name, before_id, limit + 1)
        return page_of(found, limit, _change, lambda change: change.id)

    async def audit_log(
        self, wanted: AuditLogFilter, *, before_id: int, limit: int
    ) -> tuple[list[AuditLogEntry], int | None]:
        """Return what operators did, newest first, and the id before which the next page starts."""
        async with self.snapshot() as connection:
            found = await connection.fetch(
                query("audit_log"),
                before_id,
                wanted.subject_kind,
                wanted.subject,
                wanted.action_ref,
                wanted.verb,
                wanted.user,
                wanted.recorded_after,
                wanted.recorded_before,
                wanted.scope,
                limit + 1,
            )
        return page_of(found, limit, _audit_log_entry, lambda entry: entry.id)

    async def queue_stats(self, ref: str) -> QueueStats | None:
        """Return the state of the queues of an action."""
        row = await self._live_row(query("queue_stats"), ref, KEYS_MAX)
        return None if row is None else read_queue_stats(row)

    async def queue(
        self, ref: str, *, concurrency_key: str | None, start: QueueStart, limit: int
    ) -> tuple[ActionQueuePage, QueueStart | None]:
        """Return queued executions in order, slot holders, and where the next page starts."""
        async with self.snapshot() as connection:
            queued = await connection.fetch(query("queue_waiting"), ref, concurrency_key, *start, limit + 1)
            holders = await connection.fetch(query("queue_holders"), ref, concurrency_key, HOLDERS_MAX)
        items, rest = page_of(
            queued,
            limit,
            lambda row: QueuedExecution(**row),
            lambda last: QueueStart(last.priority, last.id),
        )
        shown_holders = [SlotHolder(**row) for row in holders]
        return ActionQueuePage(action_ref=ref, items=items, holders=shown_holders, next_cursor=None), rest


def _change(row: "Row") -> ChangeEntry:
    return ChangeEntry(**{**row, "old": readable(row["old"]), "new": readable(row["new"])})


def _audit_log_entry(row: "Row") -> AuditLogEntry:
    return AuditLogEntry(**{**row, "before": readable(row["before"]), "after": readable(row["after"])})
