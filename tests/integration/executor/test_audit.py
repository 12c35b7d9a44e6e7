"""The audit finds each kind of wrong row, by name, and no false ones."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import asyncpg
import pytest

from tests.integration.leader.test_memory_equals_rows import Walk
from tests.support.ledger import Led, session_on
from tests.support.served import Served
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.asking.asker import Asker
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.queries.audit import Auditor, AuditReport, checks
from turnstile.executor.questions.protocol import Answered, LeaderState, Unanswered

# In the statements `<late>` is a time long ago, `<ended>` an ended execution, `<waits>` one that waits below
# the low id, `<held>` one that is at a worker. Each is followed by the checks that find its corruption.
_VALUES: Final = {
    "<late>": "now() - interval '1 h'",
    "<ended>": "(SELECT max(id) FROM ledger.execution WHERE completed_at IS NOT NULL)",
    "<waits>": (
        "(SELECT max(w.id) FROM ledger.waiting w"
        " WHERE NOT EXISTS (SELECT FROM ledger.first_grant g WHERE g.id = w.id))"
    ),
    "<held>": "(SELECT min(id) FROM ledger.live WHERE worker_id IS NOT NULL)",
}
_SCENE: Final = """
SELECT EXISTS (SELECT FROM ledger.live WHERE status = 'delayed')
   AND EXISTS (SELECT FROM ledger.live WHERE worker_id IS NOT NULL)
   AND EXISTS (SELECT FROM ledger.waiting w
               WHERE NOT EXISTS (SELECT FROM ledger.first_grant g WHERE g.id = w.id))
   AND EXISTS (SELECT FROM ledger.attempt)
"""
CORRUPTIONS: Final = [
    ("INSERT INTO ledger.waiting SELECT id, now(), NULL, 3, action_ref, key FROM ledger.execution"
     " WHERE id = <ended>", {"kept_row"}),
    ("INSERT INTO ledger.waiting VALUES (999999, now(), NULL, 3, 'plain', '')", {"kept_row"}),
    ("INSERT INTO ledger.granted VALUES (1, 1, 'w', now(), ARRAY[<ended>], ARRAY[0])", {"granted_row"}),
    ("DELETE FROM ledger.worker", {"held_worker"}),
    ("DELETE FROM ledger.definition WHERE kind = 'action'", {"known_action"}),
    ("INSERT INTO ledger.pending_end SELECT id, 'failed', 1, 1, 0, 'w', now(), now(), now(), now()"
     " FROM ledger.execution WHERE id = <ended>", {"pending_end"}),
    ("UPDATE ledger.live SET due_at = <late> WHERE status = 'delayed'", {"due"}),
    ("UPDATE ledger.waiting SET expires_at = <late> WHERE id = <waits>", {"expiry"}),
    ("INSERT INTO ledger.inbox (command_id, kind, size_bytes, submitted_at, body)"
     " VALUES (gen_random_uuid(), 'cancel', 2, <late>, '{}')", {"undecided"}),
    ("DELETE FROM ledger.waiting WHERE id = <waits>", {"unfinished_kept"}),
    ("UPDATE ledger.live SET attempt = attempt + 1 WHERE id = <held>", {"attempts"}),
    ("DELETE FROM ledger.attempt", {"attempts"}),
    ("UPDATE ledger.attempt SET attempt = attempt + 1000", {"attempts"}),
    ("INSERT INTO ledger.log VALUES (999999, 1, 0, now(), 'x')", {"orphan"}),
    ("INSERT INTO ledger.progress VALUES (999999, 1, 0.5, NULL, NULL, now())", {"orphan"}),
]  # fmt: skip


class AskedLeader:
    """Answers every question with one state, or not at all."""

    def __init__(self, state: LeaderState | None) -> None:
        self.state = state

    async def ask(self, question: object, seconds: float = 2.0) -> Any:
        if self.state is None:
            return Unanswered(why="no_answer", message="no leader answered within 2 s")
        return Answered(epoch=1, turn=1, at=0.0, body=self.state)


def leader_state(**fields: Any) -> LeaderState:
    given: dict[str, Any] = {
        "executor_id": "a", "epoch": 1, "turn": 1, "led_seconds": 1.0, "has_broker": True, "actions": 0,
        "waiting": 0, "at_workers": 0, "delayed": 0, "workers": 0, "unfinished": False, "events_stored": 0,
        "batches_unpublished": 0, "parameters_bytes": 0, "messages_refused": 0,
    }  # fmt: skip
    return LeaderState(**given | fields)


@pytest.fixture
async def walk(ledger: Ledger, database: Database) -> Walk:
    """A ledger on which much has happened, at the present time."""
    walk = Walk(await Led.by(ledger), seed=1)
    walk.now = time.time() - 60.0
    await walk.begin()
    for number in range(1000):
        await walk.step()
        if number > 150 and await database.fetchval(_SCENE):
            return walk
    raise AssertionError("the walk led to no such scene")


def wrong(found: AuditReport) -> dict[str, int]:
    return {check.name: check.faults for check in found.checks if check.faults}


def statement_of(corruption: str) -> str:
    for name, value in _VALUES.items():
        corruption = corruption.replace(name, value)
    return corruption


async def test_after_every_turn_of_a_random_walk_every_check_is_clean(walk: Walk, database: Database) -> None:
    auditor = Auditor(database)
    read: dict[str, int] = {}
    for _ in range(50):
        await walk.step()
        found = await auditor.audit()
        assert (wrong(found), found.clean) == ({}, True)
        read |= {check.name: check.rows for check in found.checks if check.rows}
    assert {check.name for check in checks(record=True)} - read.keys() <= {
        "pending_end", "undecided", "expiry"
    }  # fmt: skip


class InsideTransaction:
    """Reads what an open transaction did, and leaves the transaction open."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.connection.transaction():
            yield self.connection


async def test_each_corrupted_row_is_found_by_name(walk: Walk, database: Database, database_url: str) -> None:
    async with session_on(database_url) as session:
        for corruption, names in CORRUPTIONS:
            undone = session.transaction(isolation="repeatable_read")
            await undone.start()
            changed = await session.execute(statement_of(corruption))
            found = await Auditor(cast("Database", InsideTransaction(session))).audit()
            await undone.rollback()
            assert not changed.endswith(" 0"), corruption
            assert set(wrong(found)) == names, corruption
            assert all(check.examples for check in found.checks if check.faults), corruption


def test_every_check_is_covered() -> None:
    assert {check.name for check in checks(record=True)} == {
        name for _, names in CORRUPTIONS for name in names
    }


async def test_an_audit_shows_what_the_leader_found_in_its_memory(database: Database) -> None:
    state = leader_state(comparisons=7, differences=("held w: memory (1, 5), rows None", "x", "y"))
    found = await Auditor(database, cast("Asker", AskedLeader(state))).audit(examples_max=1)
    memory = found.checks[-1]
    assert (memory.name, memory.rows, memory.faults, found.clean) == ("memory", 7, 3, False)
    assert [each.found for each in memory.examples] == ["held w: memory (1, 5), rows None"]


async def test_an_audit_ends_at_its_timeout(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.queries.audit._TIMEOUT_SECONDS", 0.3)
    async with session_on(database_url) as session, session.transaction():
        await session.execute("LOCK TABLE ledger.live IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match="record=false"):
            await Auditor(database).audit()


async def test_the_route_shows_the_report_with_a_bounded_number_of_examples(api: Served) -> None:
    clean = await api.get("/audit")
    assert (clean["clean"], [check for check in clean["checks"] if check["faults"]]) == (True, [])
    await api.database.fetch(
        "INSERT INTO ledger.log SELECT n, 1, 0, now(), 'x' FROM generate_series(1001, 1005) n"
    )
    found = await api.get("/audit", examples=1)
    (orphan,) = [check for check in found["checks"] if check["faults"]]
    assert (found["clean"], orphan["name"], orphan["rows"], orphan["faults"]) == (False, "orphan", 5, 5)
    assert orphan["examples"] == [{"id": 1001, "expected": "an execution", "found": "none, but its log"}]
    live = await api.get("/audit", record="false")
    assert "orphan" not in {check["name"] for check in live["checks"]}
    unknown = await api.http.get("/api/v1/audit", params={"deep": "yes"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_field")
