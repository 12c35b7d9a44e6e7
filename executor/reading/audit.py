"""Recounts everything in one snapshot, and says what does not agree (P1, P3, P4, P7).

In: what is late, by the settings. Out: one line per check: how many rows it looked at, how many are wrong,
and the first of them. It reads one snapshot of the rows, so it raises no false alarm however much goes on
meanwhile; what is late is judged with bounds that a healthy watchdog keeps. It takes one connection, one
audit at a time. Next: `audit_checks` and the files `audit_*` of `executor.sql`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import asyncpg
from pydantic import AwareDatetime, Field

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.reading.audit_checks import Check, CheckGroup, check_groups
from turnstile.executor.reading.execution_shapes import Shape
from turnstile.executor.settings import ExecutorSettings

if TYPE_CHECKING:
    from turnstile.common.database import Connection

EXAMPLES_MAX: Final = 100
_TIMEOUT_SECONDS: Final = 25.0
"""For all of it: HTTP answers within 30 s."""
_TICKS_OF_GRACE: Final = 5
_GRACE_SECONDS: Final = 5.0
_THOUSAND_ROWS_SECONDS: Final = 1.0
"""What one full sweep of the watchdog may take."""
_PREPARE: Final = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL statement_timeout = '25s';
SET LOCAL plan_cache_mode = force_custom_plan;
SET LOCAL work_mem = '64MB';
SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL jit = off
"""
"""Room for one hash of a million ids; one processor, so that the work itself keeps the others."""


class ExampleShape(Shape):
    """One row that is wrong."""

    id: int = Field(description="Of what the check is about.")
    expected: str
    found: str


class CheckShape(Shape):
    """What one check found."""

    name: str = Field(examples=["queue_depth"])
    says: str = Field(description="What must hold.")
    subject: str = Field(description="What the ids name: execution, queue or action.")
    rows: int = Field(description="How many it looked at.")
    faults: int = Field(description="How many are wrong.")
    examples: list[ExampleShape] = Field(description="The first that are wrong, by id.")


class AuditShape(Shape):
    """Everything recounted, at one instant."""

    clean: bool = Field(description="No check found a fault.")
    checked_at: AwareDatetime
    checks: list[CheckShape]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditBounds:
    """From when on a step counts as missed: the watchdog's own bounds, and how often it looks."""

    dispatch_timeout_seconds: float
    settle_timeout_seconds: float
    stop_timeout_seconds: float
    lease_seconds: float
    tick_seconds: float
    webhook_lease_seconds: float

    @classmethod
    def of(cls, settings: ExecutorSettings) -> Self:
        """Return the bounds of a service with these settings."""
        return cls(
            dispatch_timeout_seconds=settings.dispatch_timeout,
            settle_timeout_seconds=settings.settle_timeout,
            stop_timeout_seconds=settings.stop_timeout,
            lease_seconds=settings.lease_duration,
            tick_seconds=settings.watchdog_interval,
            webhook_lease_seconds=settings.webhook_lease_seconds(),
        )

    def arguments(self) -> tuple[float, ...]:
        """Return the parameters of `audit_frame`."""
        return (
            self.dispatch_timeout_seconds,
            self.settle_timeout_seconds,
            self.stop_timeout_seconds,
            self.lease_seconds,
            self.tick_seconds * _TICKS_OF_GRACE + _GRACE_SECONDS,
            self.tick_seconds + _THOUSAND_ROWS_SECONDS,
            self.webhook_lease_seconds,
        )


class Auditor:
    """Runs audits. Safe to share between tasks."""

    def __init__(self, database: Database, bounds: AuditBounds) -> None:
        self._database = database
        self._arguments = bounds.arguments()
        self._turn = asyncio.Lock()

    async def audit(self, *, record: bool = True, examples_max: int = 10) -> AuditShape:
        """Recount what lives, and with `record` the whole record too, at the cost of reading it.

        Raises Unavailable when it takes too long: nothing was found out then.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._turn, self._snapshot() as connection:
                checked_at = await connection.fetchval("SELECT now()")
                found = [
                    check
                    for group in check_groups(record=record)
                    for check in await self._look(connection, group, examples_max)
                ]
        except (TimeoutError, asyncpg.QueryCanceledError):
            raise Unavailable(
                f"the audit did not end within {_TIMEOUT_SECONDS:g} s; "
                "leave the record out (record=false, --live), or ask again when there is less to do"
            ) from None
        return AuditShape(clean=not any(each.faults for each in found), checked_at=checked_at, checks=found)

    async def _look(self, connection: "Connection", group: CheckGroup, examples_max: int) -> list[CheckShape]:
        tallies = {row["name"]: row for row in await connection.fetch(group.tally(), *self._arguments)}
        return [
            CheckShape(
                name=check.name,
                says=check.says,
                subject=check.subject,
                rows=tallies[check.name]["rows"],
                faults=tallies[check.name]["faults"],
                examples=await self._examples(connection, check, examples_max)
                if tallies[check.name]["faults"]
                else [],
            )
            for check in group.checks
        ]

    async def _examples(self, connection: "Connection", check: Check, rows_max: int) -> list[ExampleShape]:
        wrong = await connection.fetch(check.examples(), *self._arguments, rows_max)
        return [ExampleShape(**row) for row in wrong]

    @asynccontextmanager
    async def _snapshot(self) -> "AsyncIterator[Connection]":
        async with self._database.transaction() as connection:
            await connection.execute(_PREPARE)
            yield connection
