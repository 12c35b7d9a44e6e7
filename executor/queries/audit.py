"""Recounts everything in one snapshot, and reports what does not agree (P1, P3, P4, P7).

In: the settings, which say when a step is late. Out: for each check how many rows it read, how many are
wrong, and the first of them. It reads one snapshot, so concurrent work raises no false alarm; lateness is
measured with bounds that a healthy watchdog keeps. One audit at a time, on one connection. The checks are in
the files `executor/sql/audit_*.sql`, each under a line `-- check <name> of <what an id names>: <what must
hold>`; those of one file are one statement, so that what they share is read once.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import asyncpg
from pydantic import AwareDatetime, Field

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.schemas import Schema
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.sql import query

if TYPE_CHECKING:
    from turnstile.common.database import Connection

EXAMPLES_MAX: Final = 100
_TIMEOUT_SECONDS: Final = 25.0
"""For the whole audit: HTTP answers within 30 s."""
_TICKS_OF_GRACE: Final = 5
_GRACE_SECONDS: Final = 5.0
_THOUSAND_ROWS_SECONDS: Final = 1.0
"""Time that a watchdog may take for a thousand rows."""
_HEAD: Final = re.compile(r"^-- check (?P<name>\w+) of (?P<subject>\w+): (?P<says>.+)$", re.MULTILINE)
_LIVE: Final = ("audit_queues", "audit_gates", "audit_live", "audit_links")
_HISTORY: Final = ("audit_history",)
_PREPARE: Final = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL statement_timeout = '25s';
SET LOCAL plan_cache_mode = force_custom_plan;
SET LOCAL work_mem = '64MB';
SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL jit = off
"""
"""Memory for one hash of a million ids; one processor, so that the work itself keeps the others."""


class WrongRow(Schema):
    """One wrong row."""

    id: int = Field(description="Id of the subject of the check.")
    expected: str
    found: str


class CheckResult(Schema):
    """The result of one check."""

    name: str = Field(examples=["queue_depth"])
    says: str = Field(description="What must hold.")
    subject: str = Field(
        description="What the ids identify: execution, queue, gate, pool, action, or submission (its ticket)."
    )
    rows: int = Field(description="Rows that it read.")
    faults: int = Field(description="Rows that are wrong.")
    examples: list[WrongRow] = Field(description="The first wrong rows, by id.")


class AuditReport(Schema):
    """The results of all checks, at one instant."""

    clean: bool = Field(description="No check found a wrong row.")
    checked_at: AwareDatetime
    checks: list[CheckResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition that must hold for every row that it reads."""

    name: str
    says: str
    subject: str
    """What its ids identify: `execution`, `queue`, `gate`, `pool`, `action` or `submission`."""
    statement: str

    def examples(self) -> str:
        """Return the statement that lists the first wrong rows."""
        return _framed(query("audit_examples").replace(":check", self.statement))


@cache
def check_groups(*, record: bool) -> tuple[tuple[Check, ...], ...]:
    """Return the checks of the live tables, and with `record` those that read the whole history too.

    The checks of one group are one statement.
    """
    files = (*_LIVE, *_HISTORY) if record else _LIVE
    return tuple(tuple(_checks_in(query(file))) for file in files)


def _late_after_seconds(settings: ExecutorSettings) -> tuple[float, ...]:
    """Return the parameters of `audit_frame`: after how many seconds a step counts as late."""
    tick_seconds = settings.watchdog_interval
    return (
        settings.dispatch_timeout,
        settings.settle_timeout,
        settings.stop_timeout,
        settings.lease_duration,
        tick_seconds * _TICKS_OF_GRACE + _GRACE_SECONDS,
        tick_seconds + _THOUSAND_ROWS_SECONDS,
        settings.webhook_lease_seconds(),
    )


def _tally(checks: Sequence[Check]) -> str:
    """Return the statement that counts the rows and the wrong rows of each check, by name."""
    frame = query("audit_tally")
    tallies = (frame.replace(":name", f"'{each.name}'").replace(":check", each.statement) for each in checks)
    return _framed("\nUNION ALL\n".join(tallies))


def _framed(question: str) -> str:
    return query("audit_frame").replace(":question", question)


def _checks_in(text: str) -> Iterator[Check]:
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        statement, _, _ = text[head.end() : end].rpartition(";")
        yield Check(name=head["name"], says=head["says"], subject=head["subject"], statement=statement)


class Auditor:
    """Runs audits. Safe to share between tasks."""

    def __init__(self, database: Database, settings: ExecutorSettings) -> None:
        self._database = database
        self._bounds = _late_after_seconds(settings)
        self._lock = asyncio.Lock()

    async def audit(self, *, record: bool = True, examples_max: int = 10) -> AuditReport:
        """Recount the live tables, and with `record` the whole history too, at the cost of reading it.

        Raises Unavailable after the timeout.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._lock, self._snapshot() as connection:
                checked_at = await connection.fetchval("SELECT now()")
                found = [
                    check
                    for checks in check_groups(record=record)
                    for check in await self._results(connection, checks, examples_max)
                ]
        except (TimeoutError, asyncpg.QueryCanceledError):
            raise Unavailable(
                f"the audit did not finish within {_TIMEOUT_SECONDS:g} s; "
                "leave the history out (record=false, --live), or repeat it under less load"
            ) from None
        return AuditReport(clean=not any(each.faults for each in found), checked_at=checked_at, checks=found)

    async def _results(
        self, connection: "Connection", checks: Sequence[Check], examples_max: int
    ) -> list[CheckResult]:
        tallies = {row["name"]: row for row in await connection.fetch(_tally(checks), *self._bounds)}
        return [
            CheckResult(
                name=check.name,
                says=check.says,
                subject=check.subject,
                rows=tallies[check.name]["rows"],
                faults=tallies[check.name]["faults"],
                examples=await self._examples(connection, check, examples_max)
                if tallies[check.name]["faults"]
                else [],
            )
            for check in checks
        ]

    async def _examples(self, connection: "Connection", check: Check, rows_max: int) -> list[WrongRow]:
        wrong = await connection.fetch(check.examples(), *self._bounds, rows_max)
        return [WrongRow(**row) for row in wrong]

    @asynccontextmanager
    async def _snapshot(self) -> "AsyncIterator[Connection]":
        async with self._database.transaction() as connection:
            await connection.execute(_PREPARE)
            yield connection
