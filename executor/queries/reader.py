"""Reads executions, actions, queues and logs for people and programs, and never writes.

In: ids, filters, where a page starts. Out: schemas, and where the next page starts; each page from one
snapshot of the rows, so that its numbers agree with each other. `read_limiter` bounds the concurrent reads.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import asyncpg

from turnstile.common.database import Database
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status
from turnstile.common.fields import PRIORITIES
from turnstile.common.json_limits import readable
from turnstile.common.schemas import QueueStats
from turnstile.executor.queries.action_rows import (
    error_of,
    page_of,
    parsed,
    read_action,
    read_action_detail,
    read_queue_stats,
    row_fields,
)
from turnstile.executor.queries.estimate import (
    SLOTS_MAX,
    AheadAtGate,
    PastGrant,
    RecentGrants,
    estimated_start,
    is_measured_at_gates,
    is_measured_in_pool,
    may_be_estimated,
)
from turnstile.executor.queries.gates import record_with_steps, with_gates, with_steps
from turnstile.executor.queries.read_limiter import LimitedReader, ReadLimiter
from turnstile.executor.queries.schemas import (
    CAUSES_MAX,
    HOLDERS_MAX,
    POOL_POSITIONS_MAX,
    ActionDetail,
    ActionQueuePage,
    AttemptDetail,
    AuditLogEntry,
    ChangeEntry,
    ExecutionDetail,
    ExecutionRecord,
    LogEntry,
    QueuedExecution,
    SlotHolder,
    StoredAction,
    StoredExecution,
    StoredKey,
    SubjectKind,
    SubmissionDetail,
    WaitingOnPool,
)
from turnstile.executor.queries.statements import (
    ExecutionFilter,
    Statement,
    counted_executions,
    ended_executions,
    listed_executions,
    unfinished_executions,
)
from turnstile.executor.queries.waiting_reason import (
    Facts,
    Health,
    Trouble,
    first_trouble,
    holder_to_explain,
    stopping_of,
    waiting_on,
)
from turnstile.executor.sql import query

if TYPE_CHECKING:
    from turnstile.common.database import Connection

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


class Match(NamedTuple):
    """One execution that a filter selects."""

    id: ExecutionId
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """A page of what a bulk operation selects; it may be short, even empty, and not be the last."""

    items: Sequence[Match] = ()
    next_id: int | None = None
    """Where the next page starts; None: nothing is left."""
    up_to_id: int | None = None
    """The last execution that any of the pages reads."""
    action_is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPage:
    """Executions, newest first; the page may be short, even empty, and not be the last."""

    items: list[ExecutionRecord]
    next_id: int | None = None
    """Before this id the next page starts; None: nothing is left."""
    searched_until: datetime | None = None
    """The page has read as many executions as it may, down to those created at this instant; None: it was
    not cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Executions by status."""

    by_status: Mapping[Status, int]
    is_cut: bool = False
    """There are more executions than were read: the newest were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far the logs of an execution were read."""

    attempt: int = 0
    chars: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Pieces of logs; `is_ended`: nothing can follow."""

    items: list[LogEntry]
    position: LogPosition
    is_ended: bool


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

    def __init__(
        self, database: Database, limiter: ReadLimiter, health: Health, *, stop_enforced_seconds: float
    ) -> None:
        """`stop_enforced_seconds`: after them the executor ends an attempt that its worker did not stop."""
        super().__init__(database, limiter)
        self._stop_enforced_seconds = stop_enforced_seconds
        self._health = health

    async def execution(self, execution_id: ExecutionId) -> ExecutionDetail | None:
        """Return one execution with its position, the reason why it waits, and its attempts."""
        async with self.snapshot() as connection:
            row = await connection.fetchrow(query("execution"), execution_id, True)
            if row is None:
                return None
            facts, gated = await self._explained(connection, row, causes_max=CAUSES_MAX)
        recent = await self._recent_grants(execution_id, facts) if may_be_estimated(facts) else None
        attempts = parsed(AttemptDetail, row["attempts"])
        detail = ExecutionDetail(
            **_recorded(row),
            position=facts.position,
            queue_length=None if facts.position is None else row["depth"],
            waiting_on=waiting_on(facts),
            estimated_start=None if recent is None else estimated_start(facts, recent),
            stopping=stopping_of(row, self._stop_enforced_seconds),
            progress=attempts[-1].progress if attempts else None,
            attempts=attempts,
        )
        return detail if gated is None else with_steps(detail, gated)

    async def submission(self, request_id: UUID) -> SubmissionDetail | None:
        """Return what became of a submission in a transaction; None: there is none that is committed."""
        row = await self._row("SELECT * FROM turnstile.submission($1)", request_id)
        return None if row is None else SubmissionDetail(request_id=request_id, **row)

    async def action_of(self, execution_id: int) -> str | None:
        """Return the action of an execution; None: there is no such execution."""
        row = await self._row(query("action_of"), execution_id)
        return None if row is None else str(row["ref"])

    async def executions(self, wanted: ExecutionFilter, *, before_id: int, limit: int) -> ExecutionPage:
        """Return executions, newest first: candidates and documents are bounded."""
        found = await self._selected(
            wanted, lambda action: listed_executions(wanted, action, before_id=before_id, limit=limit)
        )
        if found is None:
            return ExecutionPage(items=[])
        records = [record_with_steps(row, _recorded(row)) for row in found if row["id"] is not None]
        first = found[0]
        return ExecutionPage(items=records, next_id=first["next_id"], searched_until=first["searched_until"])

    async def counts(self, wanted: ExecutionFilter) -> Counts:
        """Count the newest matching executions by status; a bounded number is read."""
        found = await self._selected(wanted, lambda action: counted_executions(wanted, action))
        if found is None:
            return Counts(by_status={})
        by_status = {Status(row["status"]): row["executions"] for row in found if row["status"] is not None}
        return Counts(by_status=by_status, is_cut=bool(found[-1]["executions"]))

    async def named(
        self, execution_ids: Sequence[ExecutionId], scope: Sequence[str] | None = None
    ) -> list[Match]:
        """Return those of these executions that exist, in ascending order of their ids.

        With `scope` only those of actions whose names begin with one of its prefixes.
        """
        found = await self._rows(query("named_executions"), execution_ids, scope)
        return sorted(Match(ExecutionId(row["id"]), Status(row["status"])) for row in found)

    async def unfinished(self, wanted: ExecutionFilter, *, before_id: int, limit: int) -> Matches:
        """Return matching executions that have not ended, newest first; `next_id` leads to earlier ones."""
        found = await self._selected(
            wanted, lambda action: unfinished_executions(wanted, action, before_id=before_id, limit=limit)
        )
        return _matches(found)

    async def ended(
        self,
        wanted: ExecutionFilter,
        *,
        after_id: int,
        up_to_id: int | None,
        limit: int,
        not_made_under: str | None = None,
    ) -> Matches:
        """Return matching executions that have ended, oldest first; `next_id` leads to later ones.

        Without `up_to_id` the newest execution of this moment is the last that is read. What a bulk
        retry under the idempotency key `not_made_under` made is left out, and what was made of that.
        """
        if up_to_id is None:
            newest = await self._row("SELECT coalesce(max(id), 0) AS id FROM execution")
            assert newest is not None
            up_to_id = int(newest["id"])
        ids = {"after_id": after_id, "up_to_id": up_to_id}
        found = await self._selected(
            wanted,
            lambda action: ended_executions(
                wanted, action, **ids, limit=limit, not_made_under=not_made_under
            ),
        )
        return replace(_matches(found), up_to_id=up_to_id)

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

    async def logs(
        self, execution_id: ExecutionId, *, attempt: int | None, after: LogPosition, limit: int
    ) -> LogPage | None:
        """Return what follows `after`, of one attempt or of all; None: there is no such execution.

        Of an attempt that still runs this is what its worker has flushed so far.
        """
        read = after.attempt, after.chars
        found = await self._rows(query("logs"), execution_id, attempt, *read, limit, _LOG_CHARS_MAX)
        if not found:
            return None
        last = found[-1]
        is_ended = last["is_last"] and last["is_over"]
        if last["attempt"] is None:
            return LogPage(items=[], position=after, is_ended=is_ended)
        items = [LogEntry(attempt=row["attempt"], at=row["at"], text=_log_text(row)) for row in found]
        position = LogPosition(attempt=last["attempt"], chars=last["start"] + len(last["text"]))
        return LogPage(items=items, position=position, is_ended=is_ended)

    async def _explained(
        self, connection: "Connection", row: "Row", *, causes_max: int
    ) -> "tuple[Facts, Row | None]":
        """Return the facts that decide why an execution waits, and its gates, if it may have any.

        Reads the reasons of at most `causes_max` other executions: what its first idle holder waits for, what
        the holder of that waits for, and so on.
        """
        facts, gated = _facts(row, first_trouble(self._health, row["pool"])), None
        if row["may_have_gates"]:
            gated = await connection.fetchrow(query("execution_gates"), row["id"], HOLDERS_MAX)
        if gated is not None:
            facts = with_gates(facts, gated)
        if isinstance(waiting_on(facts), WaitingOnPool):
            facts = _with_pool(facts, await connection.fetchrow(*_pool_position(row["id"])))
        elif causes_max and (holder := holder_to_explain(facts)) is not None:
            held = await connection.fetchrow(query("execution"), holder, False)
            if held is not None:
                of_holder, _ = await self._explained(connection, held, causes_max=causes_max - 1)
                facts = replace(facts, cause=waiting_on(of_holder))
        return facts, gated

    async def _recent_grants(self, execution_id: ExecutionId, facts: Facts) -> RecentGrants | None:
        if is_measured_in_pool(facts):
            row = await self._live_row(query("pool_grants"), execution_id, _GRANTS_MIN, SLOTS_MAX)
            return None if row is None else _recent_grants(row)
        if is_measured_at_gates(facts):
            gate = facts.gate
            row = await self._live_row(
                query("gate_grants"),
                execution_id,
                None if gate is None else gate.id,
                _GRANTS_MIN,
                SLOTS_MAX,
                1 if gate is None else gate.position,
            )
            return None if row is None else _grants_at_gate(row)
        # Of a wide queue most of the latest runs have not ended.
        wanted = max(_GRANTS_MIN, _GRANTS_PER_SLOT * (facts.max_concurrent or 0))
        row = await self._live_row(
            query("queue_grants"),
            execution_id,
            _GRANTS_SCANNED_MAX,
            min(wanted, _GRANTS_SCANNED_MAX),
            SLOTS_MAX,
        )
        return None if row is None else _recent_grants(row)

    async def _selected(
        self, wanted: ExecutionFilter, build: Callable[[int | None], Statement]
    ) -> "Sequence[Row] | None":
        """Return a page of executions; None: there is no such action."""
        async with self.snapshot() as connection:
            action_id = None
            if wanted.action_ref is not None:
                action_id = await connection.fetchval(
                    "SELECT id FROM action WHERE ref = $1", wanted.action_ref
                )
                if action_id is None:
                    return None
            # The first one imports SQLAlchemy, and other requests are answered meanwhile.
            text, *arguments = await asyncio.to_thread(build, action_id)
            return await connection.fetch(text, *arguments)


def _facts(row: "Row", trouble: Trouble | None) -> Facts:
    return Facts(
        status=Status(row["status"]),
        run_at=row["run_at"],
        scheduled_at=row["scheduled_at"],
        position=row["position"],
        paused=row["paused"],
        max_concurrent=row["max_concurrent"],
        active_count=row["active_count"],
        holders=row["holder_ids"] or (),
        unclaimed=row["unclaimed_ids"] or (),
        pool=row["pool"],
        served=row["served"],
        pools_with_it=row["pools_with_it"] or (),
        trouble=trouble,
        pool_capacity=row["pool_capacity"],
        pool_held=row["pool_held"],
        pool_paused=row["pool_paused"],
        pool_slots=row["pool_slots"],
    )


def _pool_position(execution_id: ExecutionId) -> Statement:
    return query("pool_position"), execution_id, POOL_POSITIONS_MAX, HOLDERS_MAX


def _with_pool(facts: Facts, row: "Row | None") -> Facts:
    if row is None:
        return facts
    return replace(
        facts, pool_position=row["position"], pool_waiting=row["waiting"], pool_holders=row["holders"]
    )


def _recent_grants(row: "Row") -> RecentGrants:
    grants: dict[bool, list[PastGrant]] = {True: [], False: []}
    for own, queued_ago, granted_ago, claimed_after, lasted in readable(row["grants"]) or ():
        grants[own].append(
            PastGrant(
                queued_ago=queued_ago,
                granted_ago=max(granted_ago, 0.0),
                claimed_after=claimed_after,
                lasted=lasted,
            )
        )
    return RecentGrants(
        read_at=row["read_at"],
        own=grants[True],
        others=grants[False],
        ages=row["ages"] or (),
        ahead=row["ahead"],
    )


def _grants_at_gate(row: "Row") -> RecentGrants:
    due = row["due"]
    at_gate = AheadAtGate(
        holders=row["holders"],
        units_ahead=row["units_ahead"],
        due=None if due is None else (due[0], due[1]),
    )
    return replace(_recent_grants(row), gate=at_gate)


def _matches(found: "Sequence[Row] | None") -> Matches:
    if found is None:
        return Matches(action_is_known=False)
    items = [Match(row["id"], Status(row["status"])) for row in found if row["id"] is not None]
    return Matches(items=items, next_id=found[0]["next_id"])


def _change(row: "Row") -> ChangeEntry:
    return ChangeEntry(**{**row, "old": readable(row["old"]), "new": readable(row["new"])})


def _audit_log_entry(row: "Row") -> AuditLogEntry:
    return AuditLogEntry(**{**row, "before": readable(row["before"]), "after": readable(row["after"])})


def _recorded(row: "Row") -> dict[str, Any]:
    documents: dict[str, Any] = {"parameters": {}, "result": None, "metadata": {}}
    return {
        **row_fields(StoredExecution, row, but={*documents, "error"}),
        **{name: readable(row[name], otherwise=default) for name, default in documents.items()},
        "error": error_of(row),
    }


def _log_text(row: "Row") -> str:
    """Return a piece, after a line that names what is missing of the log before it."""
    missing, text = row["missing"], str(row["text"])
    return f"[{missing} characters before this were cut]\n{text}" if missing else text
