"""A load finds exactly what the turns wrote: random turns against a dictionary per table."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.ledger import admitted, ended, living
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import TERMINAL, Status
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.records import (
    AdmittedRow,
    AttemptRow,
    Checkpoint,
    ClockChange,
    DefinitionRow,
    EarlyCancelRow,
    EndedRow,
    EventRow,
    GrantRow,
    Journal,
    LiveRow,
    Loaded,
    LogRow,
    Turn,
    WaitingRow,
    WorkerRow,
)
from turnstile.executor.queue_manager.decisions import Passage
from turnstile.executor.sql import text_of

_ROW_TABLES = ("granted", "live", "worker", "event", "early_cancel", "definition")
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
instants = st.integers(0, 4_000_000_000_000_000).map(lambda microseconds: microseconds / 1_000_000)
seconds = st.floats(0, 1e9)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
json_texts = documents.map(lambda value: json.dumps(value).encode())
objects = st.dictionaries(texts, documents, max_size=3)
counts = st.integers(0, 2**31 - 1)
big = st.integers(0, 2**62)
errors = st.tuples(texts, texts)
passages = st.lists(st.builds(Passage, texts, counts, seconds, seconds), max_size=2).map(tuple)
starts = st.dictionaries(texts, st.lists(seconds, max_size=3).map(tuple), max_size=2)
totals = st.dictionaries(texts, st.tuples(big, big), max_size=3)
clocks = st.lists(
    st.builds(
        ClockChange,
        gate=texts,
        priority=st.integers(1, 5),
        virtual=st.integers(0, 2**90),
        finish=st.dictionaries(texts, st.none() | st.integers(0, 2**90), max_size=2),
    ),
    max_size=2,
).map(tuple)


@dataclass(slots=True)
class Model:
    """What a load must find, as dictionaries."""

    executions: dict[int, AdmittedRow] = field(default_factory=dict)
    ends: dict[int, EndedRow] = field(default_factory=dict)
    attempts: dict[tuple[int, int], AttemptRow] = field(default_factory=dict)
    rows: dict[str, dict[Any, Any]] = field(default_factory=lambda: {name: {} for name in _ROW_TABLES})
    logs: dict[tuple[int, int, int], str] = field(default_factory=dict)
    waiting: dict[int, WaitingRow] = field(default_factory=dict)
    journals: list[Journal] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    low_id: int = 1
    reserved_id: int = 1
    instant_max: float = 0.0
    counter: int = 0

    def apply(self, turn: Turn) -> None:
        self.executions |= {row.id: row for row in turn.admitted}
        self.ends |= {row.id: row for row in turn.ended}
        self.attempts |= {(row.execution_id, row.attempt): row for row in turn.attempts}
        for log in turn.logs:
            self.logs.setdefault((log.execution_id, log.attempt, log.start), log.text)
        self.waiting |= {row.id: row for row in turn.waiting}
        gone = [row.worker_id for row in turn.workers if row.gone_at is not None]
        for name, key, new, over in (
            ("granted", lambda row: (row.epoch, row.counter), turn.granted, turn.grants_over),
            ("live", lambda row: row.id, turn.live, turn.live_over),
            ("worker", lambda row: row.worker_id, turn.workers, gone),
            ("event", lambda row: row.id, turn.events, turn.events_over),
            ("early_cancel", lambda row: row.id, turn.early_cancels, turn.early_cancels_over),
        ):
            self.rows[name] |= {key(row): row for row in new}
            for each in over:
                self.rows[name].pop(each, None)
        for each in turn.waiting_over:
            self.waiting.pop(each, None)
        for row in turn.definitions:
            self.rows["definition"].pop((row.kind, row.name), None)
            if row.body is not None:
                self.rows["definition"][row.kind, row.name] = replace(row, changed_by=None)
        if turn.checkpoint is not None:
            self.checkpoint, self.journals = turn.checkpoint, []
        elif turn.journal:
            self.journals.append(turn.journal)
        self.low_id = self.low_id if turn.low_id is None else turn.low_id
        self.reserved_id = max(self.reserved_id, turn.reserved_id or 0)
        self.instant_max = max(self.instant_max, turn.at)
        self.counter = max([self.counter, *(each for row in turn.granted for each in row.counters)])

    def living(self) -> dict[int, WaitingRow]:
        recent = {
            row.id: WaitingRow(
                id=row.id,
                action_ref=row.action_ref,
                key=row.key,
                priority=row.priority,
                queued_at=row.created_at,
                expires_at=row.expires_at,
            )
            for row in self.executions.values()
            if row.id >= self.low_id and row.id not in self.ends
        }
        return self.waiting | recent

    def check(self, loaded: Loaded) -> None:
        assert {row.id: row for row in living(loaded)} == self.living()
        for name, found in (
            ("granted", {(row.epoch, row.counter): row for row in loaded.grants}),
            ("live", {row.id: row for row in loaded.live}),
            ("worker", {row.worker_id: row for row in loaded.workers}),
            ("event", {row.id: row for row in loaded.events}),
            ("early_cancel", {row.id: row for row in loaded.early_cancels}),
            ("definition", {(row.kind, row.name): row for row in loaded.definitions}),
        ):
            assert found == self.rows[name]
        assert (loaded.checkpoint, list(loaded.journals)) == (self.checkpoint, self.journals)
        assert (loaded.low_id, loaded.reserved_id) == (self.low_id, self.reserved_id)
        assert loaded.instant_max == self.instant_max
        singled = {each for row in loaded.grants for each in row.execution_ids} | {
            row.id for row in loaded.live
        }
        packed = [each for queue in loaded.packed for each in queue.ids]
        assert not singled & set(packed)
        assert all(each < loaded.low_id for each in packed)
        for queue in loaded.packed:
            assert list(queue.ids) == sorted(queue.ids)


@st.composite
def executions(draw: st.DrawFn, execution_id: int) -> AdmittedRow:
    return admitted(
        execution_id,
        action_ref=draw(texts),
        key=draw(texts),
        priority=draw(st.integers(1, 5)),
        status=draw(st.sampled_from([Status.QUEUED, Status.DELAYED])),
        created_at=draw(instants),
        run_at=draw(st.none() | instants),
        expires_at=draw(st.none() | instants),
        timeout_seconds=draw(st.none() | seconds),
        parameters=json.dumps(draw(objects)).encode(),
        request_hash=draw(st.uuids()),
        idempotency_key=draw(st.none() | texts.map(lambda text: f"{execution_id} {text}")),
        callback_url=draw(st.none() | texts),
        traceparent=draw(st.none() | texts),
        retry_of=draw(st.none() | big),
        metadata=draw(st.none() | objects.map(lambda value: json.dumps(value).encode())),
    )


@st.composite
def ends(draw: st.DrawFn, execution_id: int) -> EndedRow:
    status = draw(st.sampled_from(sorted(TERMINAL)))
    is_completed = status is Status.COMPLETED
    return ended(
        execution_id,
        status=status,
        attempt=draw(st.integers(1, 9)),
        failures=draw(counts),
        reclaims=draw(counts),
        worker_id=draw(texts if is_completed else st.none() | texts),
        queued_at=draw(instants),
        scheduled_at=draw(instants if is_completed else st.none() | instants),
        started_at=draw(st.none() | instants),
        completed_at=draw(instants),
        result=draw(st.none() | json_texts) if is_completed else None,
        error=None if is_completed else draw(st.none() | errors),
        passages=draw(passages),
    )


@st.composite
def live_rows(draw: st.DrawFn, execution_id: int) -> LiveRow:
    status = draw(st.sampled_from(sorted(set(Status) - TERMINAL)))
    is_at_worker = status in (Status.SCHEDULED, Status.RUNNING)
    return LiveRow(
        id=execution_id,
        action_ref=draw(texts),
        key=draw(texts),
        priority=draw(st.integers(1, 5)),
        status=status,
        attempt=draw(counts),
        failures=draw(counts),
        reclaims=draw(counts),
        queued_at=draw(instants),
        expires_at=draw(st.none() | instants),
        due_at=draw(instants if status is Status.DELAYED else st.none()),
        ttl_seconds=draw(st.none() | seconds),
        timeout_seconds=draw(st.none() | seconds),
        cancel_reason=draw(st.none() | texts),
        cancel_requested_at=draw(st.none() | instants),
        grant=draw(st.builds(Grant, big, big)) if is_at_worker else None,
        worker_id=draw(texts) if is_at_worker else None,
        scheduled_at=draw(instants) if is_at_worker else None,
        started_at=draw(instants) if status is Status.RUNNING else None,
        held=tuple(draw(st.lists(st.tuples(texts, counts), max_size=2))),
        is_holding=draw(st.booleans()),
        is_impatient=draw(st.booleans()),
        passages=draw(passages),
    )


@st.composite
def workers(draw: st.DrawFn) -> WorkerRow:
    is_gone = draw(st.booleans())
    return WorkerRow(
        worker_id=draw(st.sampled_from("uvw")),
        session=draw(big),
        secret_hash=draw(st.binary(max_size=4)),
        name=draw(texts),
        pools=tuple(draw(st.lists(texts, max_size=2))),
        actions=draw(st.none() | st.lists(texts, max_size=2).map(tuple)),
        concurrency=draw(counts),
        lease_seconds=draw(seconds),
        is_taking=draw(st.booleans()),
        is_draining=draw(st.booleans()),
        about=draw(objects),
        not_ready=draw(st.none() | texts),
        draining_at=draw(st.none() | instants),
        draining_count=draw(st.none() | counts),
        registered_at=draw(instants),
        heard_at=draw(instants),
        gone_at=draw(instants) if is_gone else None,
        gone_why=draw(st.sampled_from(["stopped", "lost"])) if is_gone else None,
        held_ids=tuple(draw(st.lists(big, max_size=2))) if is_gone else None,
    )


@st.composite
def early_cancels(draw: st.DrawFn, cancel_id: int) -> EarlyCancelRow:
    by_id = draw(st.booleans())
    return EarlyCancelRow(
        id=cancel_id,
        execution_id=draw(big) if by_id else None,
        idempotency_key=None if by_id else draw(texts),
        reason=draw(texts),
        kept_until=draw(instants),
        properties=draw(st.none() | texts),
    )


definitions = st.builds(
    DefinitionRow,
    kind=st.sampled_from(["action", "key", "resource", "pool"]),
    name=st.sampled_from("ab"),
    body=st.none() | objects,
    changed_by=st.none() | objects,
)


@st.composite
def turns(draw: st.DrawFn, model: Model, epoch: int, number: int) -> Turn:
    """A turn that may follow what the model has."""

    def some(ids: Any, most: int = 3) -> list[Any]:
        found = sorted(ids)
        return draw(st.lists(st.sampled_from(found), max_size=most, unique=True)) if found else []

    first = max([model.low_id - 1, *model.executions]) + draw(st.integers(1, 3))
    new = [draw(executions(first + each)) for each in range(draw(st.integers(0, 3)))]
    alive = (set(model.executions) | {row.id for row in new}) - set(model.ends)
    over = some(alive)
    alive -= set(over)
    reserved_id = new[-1].id + draw(counts) + 1 if new else draw(st.none() | st.just(1))
    last_id = max(model.reserved_id, reserved_id or 0)
    low_id = draw(st.none() | st.integers(model.low_id, max(model.low_id, min(first, last_id))))
    aged = [row for row in model.living().values() if row.id in alive and row.id < (low_id or 0)]
    have = set(model.waiting) | set(model.rows["live"])
    live = [draw(live_rows(each)) for each in some(alive, 2)]
    lived = {row.id for row in live} | set(model.rows["live"])
    counter = model.counter + draw(st.integers(1, 3))
    at_worker = some(alive)
    granted = [
        GrantRow(
            epoch=epoch,
            counter=counter,
            worker_id=draw(texts),
            granted_at=draw(instants),
            execution_ids=tuple(at_worker),
            counters=tuple(counter + 2 * n for n in range(len(at_worker))),
        )
    ]
    event_id = max(model.rows["event"], default=0) + 1
    cancel_id = max(model.rows["early_cancel"], default=0) + 1
    new_workers = {row.worker_id: row for row in draw(st.lists(workers(), max_size=2))}
    attempt = max((number for _, number in model.attempts), default=0) + 1
    return Turn(
        epoch=epoch,
        number=number,
        at=draw(instants),
        admitted=new,
        ended=[draw(ends(each)) for each in over],
        attempts=[
            AttemptRow(
                execution_id=each,
                attempt=attempt,
                outcome=draw(texts),
                worker_id=draw(texts),
                scheduled_at=draw(instants),
                started_at=draw(st.none() | instants),
                ended_at=draw(instants),
                error=draw(st.none() | errors),
            )
            for each in some(alive, 1)
        ],
        logs=draw(
            st.lists(
                st.builds(
                    LogRow,
                    execution_id=st.integers(1, 2),
                    attempt=st.just(1),
                    start=st.integers(0, 1),
                    text=texts,
                ),
                max_size=2,
            )
        ),
        granted=granted if at_worker else [],
        grants_over=some(model.rows["granted"]),
        live=live,
        live_over=some(set(model.rows["live"]) - {row.id for row in live}) + some(over),
        waiting=[row for row in aged if row.id not in have and row.id not in lived],
        waiting_over=some(set(model.waiting) & set(over), 9) + some(set(model.waiting) & lived),
        low_id=low_id,
        reserved_id=reserved_id,
        workers=list(new_workers.values()),
        definitions=draw(st.lists(definitions, max_size=2)),
        events=[EventRow(id=event_id, body=draw(st.binary(max_size=4)))] if draw(st.booleans()) else [],
        events_over=some(model.rows["event"]),
        early_cancels=[draw(early_cancels(cancel_id))] if draw(st.booleans()) else [],
        early_cancels_over=some(model.rows["early_cancel"]),
        answers=[(draw(st.uuids()), draw(st.binary(max_size=4)))] if draw(st.booleans()) else [],
        journal=draw(st.builds(Journal, totals=totals, clocks=clocks, starts=starts)),
        checkpoint=draw(st.none() | st.builds(Checkpoint, totals=totals, clocks=clocks, starts=starts)),
    )


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A smaller story is not worth minutes of servers.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(data=st.data())
def test_a_load_finds_what_the_turns_wrote(
    database_url: str, runner: asyncio.Runner, data: st.DataObject
) -> None:
    model = Model()
    runner.run(_empty(database_url))
    pair = [Ledger(database_url), Ledger(database_url)]
    try:
        for leader in data.draw(st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=3)):
            ledger = pair[leader]
            epoch = runner.run(ledger.take_over(f"executor {leader}"))
            model.counter = 0
            for number in range(1, data.draw(st.integers(1, 4)) + 1):
                turn = data.draw(turns(model, epoch, number))
                runner.run(ledger.write(turn))
                model.apply(turn)
            model.check(runner.run(ledger.load(epoch)))
        runner.run(_check_history(database_url, model))
    finally:
        for ledger in pair:
            runner.run(ledger.close())


async def _empty(url: str) -> None:
    """Leave the tables as they were created."""
    names = re.findall(r"^CREATE TABLE (\S+)", text_of("leader/tables.sql"), re.MULTILINE)
    first_rows = re.findall(r"^INSERT INTO .*;$", text_of("leader/tables.sql"), re.MULTILINE)
    assert len(first_rows) == 2
    connection = await asyncpg.connect(url)
    names += ["ledger.log", "ledger.webhook"]
    await connection.execute(f"TRUNCATE {', '.join(names)};" + "".join(first_rows))
    await connection.close()


async def _check_history(url: str, model: Model) -> None:
    """Compare the records of executions and attempts, which a load does not read."""
    connection = await asyncpg.connect(url)
    found = {row["id"]: row for row in await connection.fetch("SELECT * FROM ledger.execution")}
    attempts = await connection.fetch("SELECT * FROM ledger.attempt")
    logs = await connection.fetch("SELECT * FROM ledger.log")
    webhooks = await connection.fetch("SELECT * FROM ledger.webhook")
    await connection.close()
    assert {(row["execution_id"], row["attempt"], row["start"]): row["text"] for row in logs} == model.logs
    urls = {each: model.executions[each].callback_url for each in model.ends}
    due = {row["execution_id"]: row["url"] for row in webhooks}
    assert due == {each: url for each, url in urls.items() if url is not None}
    assert found.keys() == model.executions.keys()
    for execution_id, request in model.executions.items():
        end = model.ends.get(execution_id)
        row = dict(found[execution_id])
        for name in ("queued_at", "scheduled_at", "started_at", "completed_at"):
            _same_instant(row[name], None if end is None else getattr(end, name))
        for name in ("created_at", "run_at", "expires_at"):
            _same_instant(row[name], getattr(request, name))
        for name in (
            "action_ref",
            "key",
            "priority",
            "timeout_seconds",
            "idempotency_key",
            "callback_url",
            "traceparent",
            "retry_of",
        ):
            assert row[name] == getattr(request, name)
        for name, text in (
            ("parameters", request.parameters),
            ("metadata", request.metadata),
            ("result", None if end is None else end.result),
        ):
            assert (row[name] and json.loads(row[name])) == (text and json.loads(text))
        assert row["status"] == (request.status if end is None else end.status)
        if end is not None:
            assert (row["attempt"], row["failures"], row["reclaims"]) == (
                end.attempt,
                end.failures,
                end.reclaims,
            )
            assert row["worker_id"] == end.worker_id
            assert (row["error_type"], row["error_message"]) == (end.error or (None, None))
    assert {(row["execution_id"], row["attempt"]) for row in attempts} == model.attempts.keys()
    for each in attempts:
        attempt = model.attempts[each["execution_id"], each["attempt"]]
        assert (each["outcome"], each["worker_id"]) == (attempt.outcome, attempt.worker_id)
        assert (each["error_type"], each["error_message"]) == (attempt.error or (None, None))


def _same_instant(found: Any, written: float | None) -> None:
    assert (None if found is None else found.timestamp()) == written
