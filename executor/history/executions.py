"""Reads executions, their attempts and logs, and never writes.

In: ids, filters, where a page starts. Out: values of the HTTP API, and where the next page starts; each page
from one snapshot of the rows, so that its numbers agree with each other. A page has plain values in the shape
of their schemas: a model of each execution would cost more than all else.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import asyncpg

from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.json_limits import readable
from turnstile.executor.history.filters import ExecutionFilter
from turnstile.executor.queries.read_limiter import LimitedReader
from turnstile.executor.queries.rows import error_of, parsed
from turnstile.executor.queries.schemas import (
    AttemptDetail,
    GateStep,
    LogEntry,
    StoredExecution,
    SubmissionDetail,
)
from turnstile.executor.queries.stopping import Run
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    from turnstile.executor.history import selects

    Row: TypeAlias = asyncpg.Record

_STATEMENTS: Final = statements("history/history.sql")
_LOG_CHARS_MAX: Final = 1024 * 1024
_FIELDS: Final = tuple(StoredExecution.model_fields)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An execution as it is now, with what tells how it is being stopped."""

    stored: StoredExecution
    gates: Sequence[GateStep]
    """The gates of its latest attempt that it has passed, in order, and where it waited at its end."""
    timeout_seconds: float | None
    cancel_reason: str | None
    """Set while it has been asked to stop."""
    cancel_requested_at: datetime | None
    read_at: datetime
    stop_grace_seconds: float | None = None
    """How long its worker lets it stop by itself; None: unknown, and in a list."""
    attempts: Sequence[AttemptDetail] = ()
    """Oldest first; empty in a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Executions, newest first; the page may be short, even empty, and not be the last."""

    items: Sequence[Mapping[str, Any]]
    """Each in the shape of an `ExecutionRecord` or a `GatedExecutionRecord`."""
    next_id: int | None
    """Before this id the next page starts; None: nothing is left."""
    searched_until: datetime | None
    """The page has read as many executions as it may, down to those created at this instant; None: it was
    not cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Executions by status."""

    by_status: Mapping[Status, int]
    is_cut: bool
    """There are more executions than were read: the newest were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far the logs of an execution were read."""

    attempt: int = 0
    chars: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Pieces of logs; `is_ended`: nothing can follow."""

    items: Sequence[LogEntry]
    position: LogPosition
    is_ended: bool


class Executions(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    _selects: "_Selects | None" = None

    async def execution(self, execution_id: ExecutionId) -> Record | None:
        """Return one execution with its attempts; None: there is none."""
        async with self.snapshot() as connection:
            row = await connection.fetchrow(_STATEMENTS["execution"], execution_id)
        if row is None:
            return None
        return replace(
            _record(row),
            attempts=parsed(AttemptDetail, row["attempts"]),
            stop_grace_seconds=row["stop_grace_seconds"],
        )

    async def action_of(self, execution_id: int) -> str | None:
        """Return the action of an execution; None: there is no such execution."""
        row = await self._row(_STATEMENTS["action_of"], execution_id)
        return None if row is None else str(row["action_ref"])

    async def has_action(self, ref: str) -> bool:
        """Return whether there is such an action, or was."""
        return await self._row(_STATEMENTS["has_action"], ref) is not None

    async def submission(self, request_id: UUID) -> SubmissionDetail | None:
        """Return what became of a request; None: there is none that is committed."""
        row = await self._row("SELECT * FROM turnstile.submission($1)", request_id)
        return None if row is None else SubmissionDetail(request_id=request_id, **row)

    async def listed(
        self, wanted: ExecutionFilter, *, before_id: int, limit: int, after_id: int | None = None
    ) -> Page:
        """Return executions, newest first, or with `after_id` oldest first.

        Candidates and documents are bounded.
        """
        found = await self._selected(
            lambda of: of.listed_executions(wanted, before_id=before_id, after_id=after_id, limit=limit),
            planning=_STATEMENTS["by_key"],
        )
        return Page(
            items=[_listed(row) for row in found if row["id"] is not None],
            next_id=found[0]["next_id"],
            searched_until=found[0]["searched_until"],
        )

    async def counts(self, wanted: ExecutionFilter) -> Counts:
        """Count the newest matching executions by status; a bounded number is read."""
        found = await self._selected(lambda of: of.counted_executions(wanted))
        by_status = {Status(row["status"]): row["executions"] for row in found if row["status"] is not None}
        return Counts(by_status=by_status, is_cut=bool(found[-1]["executions"]))

    async def named(
        self, execution_ids: Sequence[ExecutionId], scope: Sequence[str] | None = None
    ) -> list[Match]:
        """Return those of these executions that exist, in ascending order of their ids.

        With `scope` only those of actions whose names begin with one of its prefixes.
        """
        found = await self._rows(_STATEMENTS["named"], execution_ids, scope)
        return sorted(Match(ExecutionId(row["id"]), Status(row["status"])) for row in found)

    async def unfinished(self, wanted: ExecutionFilter, *, before_id: int, limit: int) -> Matches:
        """Return matching executions that have not ended, newest first; `next_id` leads to earlier ones."""
        found = await self._selected(
            lambda of: of.unfinished_executions(wanted, before_id=before_id, limit=limit)
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
            newest = await self._row("SELECT coalesce(max(id), 0) AS id FROM ledger.execution")
            assert newest is not None
            up_to_id = int(newest["id"])
        bounds = {"after_id": after_id, "up_to_id": up_to_id, "limit": limit}
        found = await self._selected(
            lambda of: of.ended_executions(wanted, **bounds, not_made_under=not_made_under)
        )
        return replace(_matches(found), up_to_id=up_to_id)

    async def logs(
        self, execution_id: ExecutionId, *, attempt: int | None, after: LogPosition, limit: int
    ) -> LogPage | None:
        """Return what follows `after`, of one attempt or of all; None: there is no such execution.

        Of an attempt that still runs this is what its worker has sent so far.
        """
        read = after.attempt, after.chars
        found = await self._rows(_STATEMENTS["logs"], execution_id, attempt, *read, limit, _LOG_CHARS_MAX)
        if not found:
            return None
        last = found[-1]
        is_ended = last["is_last"] and last["is_over"]
        if last["attempt"] is None:
            return LogPage(items=[], position=after, is_ended=is_ended)
        items = [LogEntry(attempt=row["attempt"], at=row["at"], text=_log_text(row)) for row in found]
        position = LogPosition(attempt=last["attempt"], chars=last["start"] + len(last["text"]))
        return LogPage(items=items, position=position, is_ended=is_ended)

    async def _selected(
        self, build: "Callable[[_Selects], selects.Statement]", *, planning: str = ""
    ) -> "Sequence[Row]":
        if self._selects is None:
            # It imports SQLAlchemy, and other requests are answered meanwhile.
            self._selects = await asyncio.to_thread(_import_selects)
        text, *arguments = build(self._selects)
        async with self.snapshot(planning) as connection:
            return await connection.fetch(text, *arguments)


_Selects: TypeAlias = Any
"""The module `selects`."""


def _import_selects() -> "_Selects":
    from turnstile.executor.history import selects  # noqa: PLC0415

    return selects


def _record(row: "Row") -> Record:
    return Record(
        stored=StoredExecution(**_stored(row)),
        gates=_gates(row),
        timeout_seconds=row["timeout_seconds"],
        cancel_reason=row["cancel_reason"],
        cancel_requested_at=row["cancel_requested_at"],
        read_at=row["read_at"],
    )


def _listed(row: "Row") -> Mapping[str, Any]:
    run = Run(
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        timeout_seconds=row["timeout_seconds"],
        cancel_requested_at=row["cancel_requested_at"],
        read_at=row["read_at"],
    )
    shown = {**_stored(row), "stopping": run.asked_at() is not None}
    gates = _gates(row)
    return {**shown, "gates": gates} if gates and is_terminal(Status(row["status"])) else shown


def _stored(row: "Row") -> dict[str, Any]:
    """Return the fields of `StoredExecution`, in their order."""
    fields = {name: row.get(name) for name in _FIELDS}
    fields["parameters"] = readable(row["parameters"], otherwise={})
    fields["result"] = readable(row["result"])
    fields["error"] = error_of(row)
    fields["metadata"] = readable(row["metadata"], otherwise={})
    return fields


def _gates(row: "Row") -> list[GateStep]:
    return [step(*each) for each in json.loads(row["passages"] or "[]")]


def step(gate: str, units: int, arrived_at: float, passed_at: float | None) -> GateStep:
    """Return a gate that was passed, or where it waited at its end; instants in seconds since 1970."""
    return GateStep(
        gate=gate,
        units=units,
        arrived_at=datetime.fromtimestamp(arrived_at, UTC),
        passed_at=None if passed_at is None else datetime.fromtimestamp(passed_at, UTC),
    )


def _matches(found: "Sequence[Row]") -> Matches:
    items = [Match(row["id"], Status(row["status"])) for row in found if row["id"] is not None]
    return Matches(items=items, next_id=found[0]["next_id"])


def _log_text(row: "Row") -> str:
    """Return a piece, after a line that names what is missing of the log before it."""
    missing, text = row["missing"], str(row["text"])
    return f"[{missing} characters before this were cut]\n{text}" if missing else text
