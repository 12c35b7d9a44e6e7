"""Reads the present state for a scrape: from the leader, and what only the rows have from the database.

In: questions to the leader, a few pages within a deadline, at most once a second. Out: values of the gauges
in `executor.metrics`. Every executor shows the same values, so an aggregation over executors takes the
maximum. What was not answered is absent: an old depth would be wrong.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.telemetry.metrics import Gauge, Labels, LabelValues
from turnstile.executor import metrics
from turnstile.executor.asking.asker import Asker
from turnstile.executor.leader_counts import LeaderCounts
from turnstile.executor.metrics import METER
from turnstile.executor.questions.protocol import (
    PAGE_MAX,
    ActionStats,
    Answered,
    GateGauges,
    Gates,
    PoolGauge,
    Question,
    ResourceGauge,
    Stats,
    Workers,
    WorkerState,
)

logger = logging.getLogger(__name__)

_FRESH_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 5.0
"""For all questions of one scrape, and for the database."""
_PAGES_MAX: Final = 20
_STATES: Final = ("live", "draining", "overdue")
_OF_ACTIONS: Final = (
    metrics.QUEUE_DEPTH, metrics.SLOTS_HELD, metrics.OLDEST_SECONDS, metrics.SLOT_LIMIT, metrics.WAITING,
)  # fmt: skip
_OF_RESOURCES: Final[Mapping[Gauge, str]] = {
    metrics.RESOURCE_HELD: "held",
    metrics.RESOURCE_WAITING: "waiting",
    metrics.RESOURCE_HELD_WAITING: "held_waiting",
    metrics.RESOURCE_PAUSED: "paused",
}
_OF_POOLS: Final[Mapping[Gauge, str]] = {
    metrics.POOL_CAPACITY: "capacity",
    metrics.POOL_HELD: "held",
    metrics.POOL_PAUSED: "paused",
}
_OF_DATABASE: Final = (metrics.DEAD_LETTERS, metrics.SUBMISSION_LEFT_SECONDS)
_DEAD_LETTERS: Final = "SELECT d.code, count(*) AS letters FROM ledger.dead_letter d GROUP BY d.code"
_INBOX: Final = """
SELECT coalesce(extract(epoch FROM now() - min(i.submitted_at)), 0)::float8 FROM ledger.inbox i
"""
_NAMES: Final = {"resource": LabelValues(100), "pool": LabelValues(100)}

A = TypeVar("A")


class _Unanswered(Exception):
    """The leader did not answer."""


class Gauges:
    """The gauges of one executor."""

    def __init__(self, database: Database, asker: Asker) -> None:
        self._database, self._asker = database, asker
        self._counts = LeaderCounts()
        self._not_read = Episodes(logger, "gauges_not_read")
        self._lock = asyncio.Lock()
        self._read_at = -_FRESH_SECONDS

    async def refresh(self) -> None:
        """Read the gauges, unless that was done within the last second."""
        async with self._lock:
            if time.monotonic() - self._read_at < _FRESH_SECONDS:
                return
            self._counts.take(await self._asker.counts())
            await asyncio.gather(self._ask_leader(), self._read_database())
            self._read_at = time.monotonic()

    async def _ask_leader(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                actions, at = await self._actions()
                gates = (await self._answer(Gates())).body
                workers = await self._workers()
        except (_Unanswered, TimeoutError) as error:
            self._not_read.failed("leader", reason=str(error) or "no answer in time")
            metrics.SCRAPE_FAILURES.add()
            for gauge in (
                *_OF_ACTIONS, *_OF_RESOURCES, metrics.RESOURCE_CAPACITY, *_OF_POOLS, metrics.POOL_WAITING,
                metrics.WORKERS,
            ):  # fmt: skip
                gauge.values = {}
        else:
            self._not_read.works("leader")
            _show_actions(actions, at)
            _show_gates(gates)
            counts = Counter(map(_state_of, workers))
            metrics.WORKERS.values = {(state,): float(counts[state]) for state in _STATES}

    async def _answer(self, question: Question[A]) -> Answered[A]:
        answer = await self._asker.ask(question)
        if not isinstance(answer, Answered):
            raise _Unanswered(answer.message)
        return answer

    async def _actions(self) -> tuple[list[ActionStats], float]:
        found: list[ActionStats] = []
        after_ref = ""
        for _ in range(_PAGES_MAX):
            answer = await self._answer(Stats(after_ref=after_ref, limit=PAGE_MAX))
            found += answer.body.items
            if answer.body.next_ref is None:
                return found, answer.at
            after_ref = answer.body.next_ref
        raise _Unanswered(f"there are more than {_PAGES_MAX * PAGE_MAX} actions")

    async def _workers(self) -> list[WorkerState]:
        found: list[WorkerState] = []
        after_id = ""
        for _ in range(_PAGES_MAX):
            page = (await self._answer(Workers(after_id=after_id, limit=PAGE_MAX))).body
            found += page.items
            if page.next_id is None:
                return found
            after_id = page.next_id
        raise _Unanswered(f"there are more than {_PAGES_MAX * PAGE_MAX} workers")

    async def _read_database(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._database.transaction() as connection:
                letters = await connection.fetch(_DEAD_LETTERS)
                inbox_seconds = await connection.fetchval(_INBOX)
        except (Unavailable, asyncpg.PostgresError, TimeoutError) as error:
            self._not_read.failed("database", reason=str(error) or "no answer in time")
            for gauge in _OF_DATABASE:
                gauge.values = {}
        else:
            self._not_read.works("database")
            metrics.SUBMISSION_LEFT_SECONDS.values = {(): inbox_seconds}
            # A code without dead letters is zero: it must differ from one that could not be read.
            counts = dict.fromkeys((*map(str, metrics.DEAD_LETTER_CODES), "other"), 0.0)
            for row in letters:
                counts[metrics.dead_letter_label(row["code"])] += row["letters"]
            metrics.DEAD_LETTERS.values = {(code,): count for code, count in counts.items()}


def _state_of(worker: WorkerState) -> str:
    if worker.is_lost:
        return "lost"
    if worker.lease_left_seconds < 0:
        return "overdue"
    return "draining" if worker.is_draining else "live"


def _show_actions(actions: Sequence[ActionStats], at: float) -> None:
    shown: dict[Gauge, dict[Labels, float]] = {gauge: {} for gauge in _OF_ACTIONS}
    for action in actions:
        if (stats := action.stats) is None:
            continue
        name = METER.action_refs[action.action_ref]
        _add(shown[metrics.QUEUE_DEPTH], (name,), stats.queue_length)
        _add(shown[metrics.SLOTS_HELD], (name,), stats.active_count + stats.held_waiting)
        for reason, count in stats.waiting.items():
            _add(shown[metrics.WAITING], (name, reason), count)
        oldest = stats.oldest_enqueued_at
        oldest_seconds = 0.0 if oldest is None else max(at - oldest, 0.0)
        of_name = shown[metrics.OLDEST_SECONDS]
        of_name[name,] = max(of_name.get((name,), 0.0), oldest_seconds)
        # A sum of the limits of several actions has no meaning.
        if stats.max_concurrent is not None and name == action.action_ref:
            shown[metrics.SLOT_LIMIT][name,] = stats.max_concurrent
    for gauge, values in shown.items():
        gauge.values = values


def _show_gates(gates: GateGauges) -> None:
    _show_sums(_OF_RESOURCES, "resource", gates.resources)
    _show_sums(_OF_POOLS, "pool", gates.pools)
    names = _NAMES["resource"]
    metrics.RESOURCE_CAPACITY.values = {
        # A sum of the capacities of several resources has no meaning.
        (each.name,): each.capacity
        for each in gates.resources
        if names[each.name] == each.name
    }
    waiting: dict[Labels, float] = {}
    for pool in gates.pools:
        _add(waiting, (_NAMES["pool"][pool.name],), 0 if pool.paused else max(pool.wanted - pool.held, 0))
    metrics.POOL_WAITING.values = waiting


def _show_sums(
    gauges: Mapping[Gauge, str], kind: str, rows: Iterable[ResourceGauge] | Iterable[PoolGauge]
) -> None:
    shown: dict[Gauge, dict[Labels, float]] = {gauge: {} for gauge in gauges}
    for row in rows:
        for gauge, field in gauges.items():
            value: Any = getattr(row, field)
            _add(shown[gauge], (_NAMES[kind][row.name],), float(value))
    for gauge, values in shown.items():
        gauge.values = values


def _add(values: dict[Labels, float], labels: Labels, value: float) -> None:
    values[labels] = values.get(labels, 0.0) + value
