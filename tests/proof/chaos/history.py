"""The history of a run, from witnesses that do not decide: rows, the run log, a listener, the submitters.

In: the database after everything has drained, the folder, the listener's queue, what was submitted, and the
faults. Out: a `Witnessed`, with the tables of `turnstile.stress.check` and the definitions over time.
Instants are nanoseconds since 1970, by the clock of the database, which is that of this machine.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import asyncpg
import numpy as np

from tests.proof.chaos.listener import read_listener
from tests.proof.chaos.submitters import SubmitLog
from tests.proof.run_log import RUN_LOG, Run, booted_at, read_runs
from tests.support.history import session_of
from turnstile.common.domain.states import Status
from turnstile.stress.check.definitions import (
    Definition,
    DefinitionChange,
    DefinitionHistory,
    Definitions,
    history_of,
    limit_of,
    pauses,
)
from turnstile.stress.check.excuses import merged
from turnstile.stress.check.gates import UNLIMITED
from turnstile.stress.check.history import FOREIGN, History
from turnstile.stress.check.limits import ALWAYS, LimitPeriod, LimitTimeline
from turnstile.stress.check.passages import Passer, Stay
from turnstile.stress.recording import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    NONE,
    NOT_ENDED,
    ORDER,
    RUN,
    Answer,
    Outcome,
    RunEnd,
    Table,
    empty,
    status_code,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK_SLACK_NS: Final = 50_000_000
"""Two clocks of one machine, one of which is being adjusted."""
_SETTLING_NS: Final = 20_000_000
"""A change and the grants of its turn have one instant; this is for the rounding of instants."""
_EXECUTIONS: Final = """
SELECT e.id, e.action_ref, nullif(e.key, '') AS key, e.priority, e.metadata ->> 'tag' AS tag,
       e.status::text AS status, e.attempt, e.created_at, e.queued_at, e.scheduled_at, e.started_at,
       e.completed_at, e.worker_id, e.passages::text AS passages
FROM ledger.execution e ORDER BY e.id
"""
_ATTEMPTS: Final = """
SELECT a.execution_id, a.attempt, a.outcome, a.worker_id, a.scheduled_at, a.started_at, a.ended_at
FROM ledger.attempt a ORDER BY a.execution_id, a.attempt
"""
_LOST: Final = """
SELECT w.worker_id, w.name, w.heard_at, w.gone_at FROM ledger.worker w WHERE w.gone_why = 'lost'
ORDER BY w.gone_at
"""
_DEFINITIONS: Final = (
    "SELECT d.kind, d.name, d.body::text AS body FROM ledger.definition d WHERE d.kind <> 'code'"
)
_CHANGES: Final = """
SELECT l.subject_kind, l.subject, l.recorded_at, l.before::text AS before, l.after::text AS after
FROM ledger.audit_log l WHERE l.subject_kind IN ('action', 'resource', 'pool') ORDER BY l.id
"""


def nanoseconds(at: datetime | None) -> int:
    """Return an instant in nanoseconds since 1970; NEVER: there is none."""
    return NEVER if at is None else (at - _EPOCH) // timedelta(microseconds=1) * 1000


def moment(at: int) -> datetime:
    """Return an instant that is given in nanoseconds."""
    return _EPOCH + timedelta(microseconds=at // 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time of a deliberate fault and of the recovery after it; bounds do not count there."""

    began_at: datetime
    ended_at: datetime

    @property
    def nanoseconds(self) -> tuple[int, int]:
        """Its beginning and its end."""
        return nanoseconds(self.began_at), nanoseconds(self.ended_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker that the leader has called lost."""

    worker_id: str
    name: str
    heard_at: datetime
    gone_at: datetime


@dataclass(frozen=True, kw_only=True)
class Witnessed:
    """Everything that was read."""

    executions: Sequence[asyncpg.Record]
    ended_attempts: Sequence[asyncpg.Record]
    """Attempts that were not the last ones."""
    runs: Sequence[Run]
    lost: Sequence[Lost]
    definitions: Definitions
    log: SubmitLog
    published: Mapping[int, set[str]] = field(default_factory=dict)
    """The statuses in the `execution.completed` of each execution."""
    booted_at: datetime = _EPOCH

    def at(self, boot_ns: int) -> int:
        """Convert a reading of CLOCK_BOOTTIME."""
        return nanoseconds(self.booted_at) + boot_ns

    @cached_property
    def queues(self) -> dict[tuple[str, str | None], int]:
        """The number of each queue."""
        found: dict[tuple[str, str | None], int] = {}
        for row in self.executions:
            found.setdefault((row["action_ref"], row["key"]), len(found))
        return found

    def is_gated(self, ref: str) -> bool:
        """Return whether the action had other gates than its queue at any time."""
        return any(
            version.get("uses")
            or version.get("rate.starts")
            or version.get("max_concurrent_total") is not None
            for _, version in self.definitions.action(ref).versions
        )


async def witnessed(
    database_url: str,
    amqp_url: str,
    folder: Path,
    log: SubmitLog,
    heard: dict[int, set[str]] | None = None,
) -> Witnessed:
    """Read the history, once everything has drained: in one snapshot of the database, then the listener.

    What the listener has heard is read once; `heard` keeps it for the next reading of a longer history.
    """
    heard = {} if heard is None else heard
    seen = await _read(database_url, folder, log)
    missing = [row["id"] for row in seen.executions if row["id"] not in heard]
    for execution_id, statuses in (await read_listener(amqp_url, missing)).items():
        heard.setdefault(execution_id, set()).update(statuses)
    return replace(seen, published=heard)


async def _read(database_url: str, folder: Path, log: SubmitLog) -> Witnessed:
    async with (
        session_of(database_url) as session,
        session.transaction(isolation="repeatable_read", readonly=True),
    ):
        executions = await session.fetch(_EXECUTIONS)
        attempts = await session.fetch(_ATTEMPTS)
        lost = [Lost(**row) for row in await session.fetch(_LOST)]
        definitions = _definitions(await session.fetch(_DEFINITIONS), await session.fetch(_CHANGES))
    return Witnessed(
        executions=executions,
        ended_attempts=attempts,
        runs=read_runs(folder / RUN_LOG),
        lost=lost,
        definitions=definitions,
        log=log,
        booted_at=booted_at(),
    )


def _definitions(stored: Iterable[asyncpg.Record], changes: Iterable[asyncpg.Record]) -> Definitions:
    now: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for row in stored:
        body = json.loads(row["body"])
        if row["kind"] == "key":
            ref, _, key = row["name"].partition("/")
            limit = {"max_concurrent": body["max_concurrent"]} if body.get("has_limit") else {}
            now["action", ref][f"keys.{key}"] = {**limit, "weight": body.get("weight", 1)}
        else:
            now[row["kind"], row["name"]] |= _flat(body)
    changed: dict[tuple[str, str], list[DefinitionChange]] = defaultdict(list)
    for row in changes:
        change = DefinitionChange(
            nanoseconds(row["recorded_at"]), json.loads(row["before"]), json.loads(row["after"])
        )
        changed[row["subject_kind"], row["subject"]].append(change)
    histories: dict[str, dict[str, DefinitionHistory]] = {"action": {}, "resource": {}, "pool": {}}
    for kind, name in {*now, *changed}:
        histories[kind][name] = history_of(now.get((kind, name), {}), changed[kind, name])
    return Definitions(
        actions=histories["action"],
        resources=histories["resource"],
        pools={name: pauses(history) for name, history in histories["pool"].items()},
        settling_ns=_SETTLING_NS,
    )


def _flat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition with the names of the audit log."""
    flat = dict(body)
    for name in ("rate", "retry"):
        if name in flat:
            flat |= {f"{name}.{part}": value for part, value in (flat.pop(name) or {}).items()}
    return flat


# As the tables of `turnstile.stress.check`.


def tables_of(
    seen: Witnessed,
    *,
    overlap_seconds: float,
    overlap_windows: Sequence[Window] = (),
    windows: Sequence[Window] = (),
) -> History:
    """Return the tables; a run may outlive the reclaim of its attempt by so long, and by `overlap_windows`.

    In `windows`, messages may take long.
    """
    sent = sorted(seen.log.sent.values(), key=lambda each: each.submit.submitter)
    numbers = {str(each.submit.number): number for number, each in enumerate(sent)}
    rows = [
        (
            row["id"],
            FOREIGN if row["tag"] is None else numbers.get(row["tag"], NONE),
            seen.queues[row["action_ref"], row["key"]],
            status_code(Status(row["status"])),
            row["attempt"],
            nanoseconds(row["created_at"]),
            nanoseconds(row["completed_at"]),
        )
        for row in seen.executions
    ]
    excused = sorted(window.nanoseconds for window in overlap_windows)
    executions, attempts = np.array(rows, EXECUTION), np.array(sorted(_attempts(seen, excused)), ATTEMPT)
    recorded = _starts(seen)
    keys = zip(attempts["execution_id"].tolist(), attempts["attempt"].tolist(), strict=True)
    reclaimed = attempts["outcome"] == Outcome.RECLAIMED
    runs_until = [
        _overlap_until(at, overlap_seconds, excused) if is_reclaimed else at
        for at, is_reclaimed in zip(attempts["ended_at"].tolist(), reclaimed.tolist(), strict=True)
    ]
    return History(
        orders=_orders(seen, [(each.submit.submitter, each) for each in sent], executions),
        executions=executions,
        attempts=attempts,
        runs=np.array(list(_runs(seen, executions)), RUN),
        limits=LimitTimeline(at_first=UNLIMITED, keys=1, changed=dict(_limits(seen))),
        runs_until=np.array(runs_until, np.int64),
        worker_starts=np.array([recorded.get(key, NEVER) for key in keys], np.int64),
        priorities=np.array([row["priority"] for row in seen.executions], np.int64),
        disturbed=merged(window.nanoseconds for window in windows),
        time_text=lambda instant: f"{moment(int(instant)):%H:%M:%S.%f}",
        request_text=lambda number: (
            f"submission {sent[number].submit.number} of {sent[number].submit.submitter}"
        ),
        tolerance_ns=_CLOCK_SLACK_NS,
        flawless=False,
    )


def _starts(seen: Witnessed) -> dict[tuple[int, int], int]:
    """Return when workers say that they started attempts: what children and commands record is later."""
    found = {(row["id"], row["attempt"]): nanoseconds(row["started_at"]) for row in seen.executions}
    found |= {
        (row["execution_id"], row["attempt"]): nanoseconds(row["started_at"]) for row in seen.ended_attempts
    }
    return found


def _overlap_until(ended_at: int, overlap_seconds: float, excused: Sequence[tuple[int, int]]) -> int:
    until = ended_at + round(overlap_seconds * 1e9)
    for begins, ends in excused:
        if begins <= until:
            until = max(until, ends + round(overlap_seconds * 1e9))
    return until


def _orders(seen: Witnessed, sent: Sequence[tuple[str, Any]], executions: Table) -> Table:
    """Return the requests: each submitter has one order, over all queues."""
    orders = empty(ORDER, len(sent))
    queues = dict(zip(executions["number"].tolist(), executions["queue"].tolist(), strict=True))
    senders: dict[str, int] = {}
    for number, (submitter, each) in enumerate(sent):
        orders["submitter"][number] = senders.setdefault(submitter, len(senders))
        orders["queue"][number] = queues.get(number, NONE)
        orders["confirmed_at"][number] = NEVER if each.confirmed_at is None else 0
        if each.execution_id is not None:
            orders["answer"][number], orders["execution_id"][number] = Answer.ACCEPTED, each.execution_id
    orders["sendings"] = 1
    return orders


def _attempts(seen: Witnessed, pauses: Sequence[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """Yield every grant. Permission to run is the grant: short runs report no start of their own.

    Of an attempt after a retry it is not known when its delay ended: it counts as waiting for no time.
    """
    known = {row["id"]: row for row in seen.executions}
    waiting_since: dict[int, int | None] = {
        row["id"]: nanoseconds(row["queued_at"]) for row in seen.executions
    }
    over: set[tuple[int, int]] = set()
    workers: dict[str, int] = {}

    def attempt(row: asyncpg.Record, execution: asyncpg.Record, until: int, outcome: Outcome) -> Any:
        since, worker_id = nanoseconds(row["scheduled_at"]), row["worker_id"]
        worker = NONE if worker_id is None else workers.setdefault(worker_id, len(workers))
        ref, key = execution["action_ref"], execution["key"]
        queue = NONE if seen.is_gated(ref) else seen.queues[ref, key]
        begins = waiting_since[execution["id"]]
        begins = since if begins is None else begins
        return execution["id"], row["attempt"], queue, begins, since, since, until, outcome, worker

    for row in seen.ended_attempts:
        execution = known[row["execution_id"]]
        over.add((row["execution_id"], row["attempt"]))
        outcome = NOT_ENDED.get(row["outcome"], Outcome.ENDED)
        until = nanoseconds(row["ended_at"])
        yield attempt(row, execution, until, outcome)
        waiting_since[row["execution_id"]] = None if outcome is Outcome.RETRIED else until
    for row in seen.executions:
        if row["scheduled_at"] is not None and (row["id"], row["attempt"]) not in over:
            since, until = nanoseconds(row["scheduled_at"]), nanoseconds(row["completed_at"])
            outcome = Outcome.RECLAIMED if _without_worker(row["status"], until, pauses) else Outcome.ENDED
            yield attempt(row, row, max(since, until), outcome)


def _without_worker(status: str, ended_at: int, pauses: Sequence[tuple[int, int]]) -> bool:
    """Return whether the leader may have ended it without its worker, which is lost or paused."""
    if status in (Status.CANCELLED, Status.TIMEOUT):
        return any(begins <= ended_at <= ends for begins, ends in pauses)
    return status == Status.ABANDONED


def _runs(seen: Witnessed, executions: Table) -> Iterator[tuple[int, ...]]:
    known = {row["execution_id"].item(): row for row in executions}
    for run in seen.runs:
        execution = known.get(run.execution_id)
        number, queue = (NONE, NONE) if execution is None else (execution["number"], execution["queue"])
        stopped_at = NEVER if run.stopped_ns is None else seen.at(run.stopped_ns)
        end = RunEnd.UNKNOWN if run.stopped_ns is None else RunEnd.STOPPED
        yield number, run.execution_id, run.attempt, queue, run.pid, seen.at(run.started_ns), stopped_at, end


def _limits(seen: Witnessed) -> Iterator[tuple[int, tuple[LimitPeriod, ...]]]:
    """Yield the limits of the queues without other gates; a pause is a limit of 0."""
    for (ref, key), number in seen.queues.items():
        if seen.is_gated(ref):
            continue
        versions = seen.definitions.action(ref).versions
        since = [ALWAYS, *(at - _SETTLING_NS for at, _ in versions[1:])]
        until = [*(at + _SETTLING_NS for at, _ in versions[1:]), NEVER]
        limits = [_limit(version, key) for _, version in versions]
        yield number, tuple(map(LimitPeriod, limits, since, until))


def _limit(definition: Definition, key: str | None) -> int:
    limit = 0 if definition.get("paused") else limit_of(definition, key)
    return UNLIMITED if limit is None else limit


def passers(seen: Witnessed) -> Iterator[Passer]:
    """Yield what passed the gates after its queue, with what is stored of its last attempt."""
    granted: dict[int, list[int]] = defaultdict(list)
    ended: dict[tuple[int, int], int] = {}
    for row in seen.ended_attempts:
        granted[row["execution_id"]].append(nanoseconds(row["scheduled_at"]))
        ended[row["execution_id"], row["attempt"]] = nanoseconds(row["ended_at"])
    for row in seen.executions:
        if not seen.is_gated(row["action_ref"]):
            continue
        # What ended at a gate: its gates are unknown to the replay.
        stays = () if row["scheduled_at"] is None else json.loads(row["passages"] or "[]")
        # Cancelled while it waited for a retry, it held nothing since the end of its last attempt.
        completed_at = ended.get((row["id"], row["attempt"]), nanoseconds(row["completed_at"]))
        # What came back is not in its queue while an attempt runs.
        back_at = ended.get((row["id"], row["attempt"] - 1), 0)
        yield Passer(
            execution_id=row["id"],
            action=row["action_ref"],
            key=row["key"],
            priority=row["priority"],
            created_at=nanoseconds(row["created_at"]),
            completed_at=completed_at,
            attempt=row["attempt"],
            stays=tuple(
                Stay(gate, units, max(_at(arrived), back_at), _at(passed))
                for gate, units, arrived, passed in stays
            ),
            granted_ats=tuple(granted[row["id"]][: row["attempt"] - 1]),
        )


def _at(seconds: float) -> int:
    return round(seconds * 1e6) * 1000
