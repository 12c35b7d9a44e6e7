"""Submissions of database sessions: the delay from commit to start, and how many are taken per second.

The instant of a commit is that of the client's answer, on the same machine; the start is `started_at`. For
the rates nothing may start: what is measured ends with the admission. Both are repeated beside a snapshot
that was opened before.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from benchmarks.actions import AT_ONCE, ONE_BY_ONE
from benchmarks.client import database_session
from benchmarks.report import DELAY_COLUMNS, Aim, Row, Section, delay_row
from benchmarks.system import Servers, Sizes, running_system
from benchmarks.waiting import until
from turnstile.stress.check.counts import percentile

if TYPE_CHECKING:
    import asyncpg

    Session: TypeAlias = asyncpg.Connection[asyncpg.Record]

SESSIONS: Final = (1, 8, 32)
"""Sessions that submit at once, each one request per transaction."""
_IDLE_SECONDS: Final = 0.35
"""After which the leader waits for a notification again."""
_CHANNEL: Final = "turnstile_commands"
_BULK: Final = "one statement"
_SNAPSHOT: Final = "beside a snapshot"
_ALONE: Final = "alone"
_SUBMIT: Final = "SELECT turnstile.submit($1)"
_SUBMIT_MANY: Final = "SELECT count(turnstile.submit($1)) FROM generate_series(1, $2)"
_STARTED_AT: Final = """
SELECT extract(epoch FROM started_at)::double precision FROM ledger.execution
WHERE delivery_key = $1 AND completed_at IS NOT NULL
"""
_ANY_ROW: Final = "SELECT count(*) FROM ledger.definition"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """One run: what was taken and admitted per second, and the share of transactions that notified."""

    taken: float
    admitted: float
    notified: float


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Submit one at a time, then from many sessions, then in one statement; all again beside a snapshot."""
    delays: dict[str, list[float]] = {}
    rates: dict[str, dict[str, _Rates]] = {}
    async with (
        servers.deployment("submissions") as deployment,
        running_system(deployment) as system,
        _sessions(deployment.database_url, max(SESSIONS)) as sessions,
        database_session(deployment.database_url) as watcher,
    ):
        await system.limit(ONE_BY_ONE, 0)
        await _delays(sessions[0], 2)  # the first uses prepare statements, and start the worker's process
        for condition in (_ALONE, _SNAPSHOT):
            if condition == _SNAPSHOT:
                await watcher.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await watcher.fetchval(_ANY_ROW)
            rates[condition] = await _all_rates(sessions, deployment.database_url, sizes)
            delays[condition] = await _delays(sessions[0], sizes.submits)
    return [_delay_section(delays), _rate_section(rates, sizes)]


@asynccontextmanager
async def _sessions(database_url: str, count: int) -> AsyncIterator[list["Session"]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(database_session(database_url)) for _ in range(count)]


async def _delays(session: "Session", count: int) -> list[float]:
    delays = []
    for _ in range(count):
        await asyncio.sleep(_IDLE_SECONDS)
        request_id: UUID = await session.fetchval(_SUBMIT, AT_ONCE)
        committed_at = time.time()
        started: list[float | None] = [None]

        async def has_started(request_id: UUID = request_id, started: list[float | None] = started) -> bool:
            started[0] = await session.fetchval(_STARTED_AT, request_id)
            return started[0] is not None

        # Late, so that the question does not slow down what is measured.
        await asyncio.sleep(0.03)
        await until(has_started, "the execution ends", deadline_seconds=30, pause_seconds=0.02)
        assert started[0] is not None
        delays.append(started[0] - committed_at)
    return delays


async def _all_rates(sessions: Sequence["Session"], database_url: str, sizes: Sizes) -> dict[str, _Rates]:
    rates = {}
    for count in SESSIONS:
        total = max(sizes.submitted // (4 if count == 1 else 1), count)

        async def each_commits(session: "Session", submits: int) -> None:
            for _ in range(submits):
                await session.fetchval(_SUBMIT, ONE_BY_ONE)

        work = [each_commits(session, total // count) for session in sessions[:count]]
        rates[_name(count)] = await _measured(work, database_url, total // count * count)
    work = [sessions[0].fetchval(_SUBMIT_MANY, ONE_BY_ONE, sizes.submitted)]
    rates[_BULK] = await _measured(work, database_url, sizes.submitted, transactions=1)
    return rates


def _name(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"


async def _measured(
    work: Sequence[object], database_url: str, submissions: int, *, transactions: int | None = None
) -> _Rates:
    notified = 0

    def note(*_: object) -> None:
        nonlocal notified
        notified += 1

    async with database_session(database_url) as listener:
        await listener.add_listener(_CHANNEL, note)

        async def all_admitted() -> bool:
            return not await listener.fetchval("SELECT EXISTS (SELECT FROM ledger.inbox)")

        await asyncio.sleep(_IDLE_SECONDS)
        began = time.perf_counter()
        await asyncio.gather(*work)  # type: ignore[call-overload]
        taken = time.perf_counter() - began
        await until(all_admitted, "all are admitted", deadline_seconds=60, pause_seconds=0.02)
        admitted = time.perf_counter() - began
    return _Rates(
        taken=submissions / taken,
        admitted=submissions / admitted,
        notified=notified / (transactions or submissions),
    )


def _delay_section(delays: Mapping[str, Sequence[float]]) -> Section:
    p50_max = 1000 * (percentile(delays[_ALONE], 0.5) or 0.0) * 1.2 + 1
    return Section(
        title=f"submissions: milliseconds from commit to start, {len(delays[_ALONE])} one at a time, idle",
        columns=DELAY_COLUMNS,
        rows=(
            delay_row(_ALONE, delays[_ALONE], (Aim(at_most=10, columns=("p50",)),)),
            delay_row(_SNAPSHOT, delays[_SNAPSHOT], (Aim(at_most=p50_max, columns=("p50",)),)),
        ),
    )


def _rate_section(rates: Mapping[str, Mapping[str, _Rates]], sizes: Sizes) -> Section:
    alone, beside = rates[_ALONE], rates[_SNAPSHOT]
    columns = tuple(alone)
    ratio = {name: beside[name].admitted / alone[name].admitted for name in columns}
    fast = (_name(max(SESSIONS)), _BULK)
    rows = [
        Row(name="taken", unit="1/s", cells={name: alone[name].taken for name in columns}),
        Row(name="admitted", unit="1/s", cells={name: alone[name].admitted for name in columns}),
        Row(name="notified", unit="per transaction", cells={name: alone[name].notified for name in columns}),
        Row(name=f"admitted, {_SNAPSHOT}, ratio", cells=ratio, aims=(Aim(at_least=0.8),)),
    ]
    rows[0] = replace(rows[0], aims=(Aim(at_least=5000, columns=fast),))
    return Section(
        title=f"submissions: {sizes.submitted:,} in transactions of one, and in one statement",
        columns=columns,
        rows=tuple(rows),
        note=f"{_name(1)}: a quarter of them; nothing starts",
    )
