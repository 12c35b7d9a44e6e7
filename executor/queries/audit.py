"""Checks the rows against each other in one snapshot, and shows what the leader found in its memory.

In: the checks in `audit_live.sql` and `audit_history.sql`, each under a line `-- check <name> of <what an id
names>: <what must hold>`, and the leader's comparison of its memory with the rows, once a minute. Out: for
each check how many rows it read, how many are wrong, and the first of them. What constraints guarantee is not
checked. One audit at a time, on one connection.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

import asyncpg
from pydantic import AwareDatetime, Field

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.schemas import Schema
from turnstile.executor.asking.asker import Asker
from turnstile.executor.questions.protocol import Answered, Leading

if TYPE_CHECKING:
    from turnstile.common.database import Connection

EXAMPLES_MAX: Final = 100
_TIMEOUT_SECONDS: Final = 25.0
"""For the whole audit: HTTP answers within 30 s."""
_LATE_SECONDS: Final = 60.0
"""After so long a step counts as late: longer than any turn or takeover."""
_HEAD: Final = re.compile(r"^-- check (?P<name>\w+) of (?P<subject>\w+): (?P<says>.+)$", re.MULTILINE)
_PREPARE: Final = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL statement_timeout = '25s';
SET LOCAL plan_cache_mode = force_custom_plan;
SET LOCAL work_mem = '64MB';
SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL jit = off
"""
"""Memory for one hash of a million ids; one processor, so that the work itself keeps the others."""
_TALLY: Final = "SELECT count(*) AS rows, count(*) FILTER (WHERE c.wrong) AS faults FROM (:check) c"
_EXAMPLES: Final = "SELECT c.id, c.expected, c.found FROM (:check) c WHERE c.wrong ORDER BY c.id LIMIT $1"


class WrongRow(Schema):
    """One wrong row."""

    id: int = Field(description="Id of the subject of the check.")
    expected: str
    found: str


class CheckResult(Schema):
    """The result of one check."""

    name: str = Field(examples=["kept_row"])
    says: str = Field(description="What must hold.")
    subject: str = Field(
        description="What the ids identify: execution, command (of the inbox), or difference (its number)."
    )
    rows: int = Field(description="Rows that it read; of `memory`: comparisons.")
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
    """What its ids identify."""
    statement: str
    """With `:late` in place of the interval after which a step is late."""


@cache
def checks(*, record: bool) -> tuple[Check, ...]:
    """Return the checks of what lives, and with `record` those that read the whole history too."""
    files = ("audit_live.sql", "audit_history.sql") if record else ("audit_live.sql",)
    folder = resources.files("turnstile.executor.queries")
    return tuple(each for file in files for each in _checks_in((folder / file).read_text(encoding="utf-8")))


def _checks_in(text: str) -> Iterator[Check]:
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        statement, _, _ = text[head.end() : end].rpartition(";")
        yield Check(
            name=head["name"], says=head["says"], subject=head["subject"],
            statement=statement,
        )  # fmt: skip


class Auditor:
    """Runs audits. Safe to share between tasks."""

    def __init__(
        self, database: Database, asker: Asker | None = None, *, late_seconds: float = _LATE_SECONDS
    ) -> None:
        """Without `asker` only the rows are checked."""
        self._database = database
        self._late = f"interval '{late_seconds:.0f} seconds'"
        self._asker = asker
        self._lock = asyncio.Lock()

    async def audit(self, *, record: bool = True, examples_max: int = 10) -> AuditReport:
        """Check what lives, and with `record` the whole history too, at the cost of reading it.

        Raises Unavailable after the timeout.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._lock:
                async with self._snapshot() as connection:
                    checked_at = await connection.fetchval("SELECT now()")
                    found = [
                        await self._result(connection, check, examples_max) for check in checks(record=record)
                    ]
                found += await self._memory(examples_max)
        except (TimeoutError, asyncpg.QueryCanceledError):
            raise Unavailable(
                f"the audit did not finish within {_TIMEOUT_SECONDS:g} s; "
                "leave the history out (record=false, --live), or repeat it under less load"
            ) from None
        return AuditReport(clean=not any(each.faults for each in found), checked_at=checked_at, checks=found)

    async def _memory(self, examples_max: int) -> list[CheckResult]:
        """Return what the leader found the last time; nothing without a leader, which remembers nothing."""
        answer = None if self._asker is None else await self._asker.ask(Leading())
        if not isinstance(answer, Answered) or not answer.body.comparisons:
            return []
        differences = answer.body.differences
        return [
            CheckResult(
                name="memory", says="what the leader remembers equals the rows, once a minute",
                subject="difference", rows=answer.body.comparisons, faults=len(differences),
                examples=[
                    WrongRow(id=number, expected="memory equals rows", found=each)
                    for number, each in enumerate(differences[:examples_max], 1)
                ],
            )
        ]  # fmt: skip

    @asynccontextmanager
    async def _snapshot(self) -> "AsyncIterator[Connection]":
        async with self._database.transaction() as connection:
            await connection.execute(_PREPARE)
            yield connection

    async def _result(self, connection: "Connection", check: Check, examples_max: int) -> CheckResult:
        statement = check.statement.replace(":late", self._late)
        tally = await connection.fetchrow(_TALLY.replace(":check", statement))
        assert tally is not None
        wrong = (
            await connection.fetch(_EXAMPLES.replace(":check", statement), examples_max)
            if tally["faults"]
            else []
        )
        return CheckResult(
            name=check.name, says=check.says, subject=check.subject, **tally,
            examples=[WrongRow(**row) for row in wrong],
        )  # fmt: skip
