"""The audit finds each kind of wrong row, by name, and no false ones.

A scene has executions of every kind. Each corruption of a row is undone.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from tests.support.gates import grant_all, put_resource, use
from tests.support.protocol import OneConnection, Protocol, connected
from tests.support.served import serve
from turnstile.common.database import Database
from turnstile.common.domain.states import Status
from turnstile.executor.queries.audit import Auditor, AuditReport, check_groups
from turnstile.executor.settings import ExecutorSettings
from turnstile.localservers import DatabaseServer
from turnstile.worker.protocol import Claim

# Long bounds: the scene grows older from the first test to the last.
PATIENT = ExecutorSettings(dispatch_timeout=3600, settle_timeout=3600, stop_timeout=3600, webhook_timeout=300)


# In the statements `<queue>` is the queue of action a, `<late>` a time long ago, `<running>` and the like the
# first execution of that status. Each statement is followed by the checks that find its corruption.
_VALUES: Final = {
    "queue": "(SELECT q.id FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = 'a')",
    "late": "timestamptz '2020-01-01Z'",
    "r": "(SELECT id FROM gate WHERE name = 'r')",
    "f": "(SELECT id FROM gate WHERE name = 'f')",
    "gated": "(SELECT max(execution_id) FROM slot WHERE <r> = ANY (gate_ids))",
    "retried": "(SELECT min(id) FROM execution WHERE status = 'delayed' AND attempt = 1)",
}
CORRUPTIONS: Final[list[tuple[str, set[str]]]] = [
    ("UPDATE queue_state SET depth = depth + 1 WHERE queue_id = <queue>", {"queue_depth"}),
    ("UPDATE queue_state SET held = held - 1 WHERE queue_id = <queue>", {"queue_held"}),
    ("UPDATE queue_state SET head_id = 1000 WHERE queue_id = <queue>", {"queue_head"}),
    ("INSERT INTO queue_state SELECT queue_id, version + 1, depth, held, head_id, total_enqueued,"
     " total_completed, NULL, updated_at FROM queue_state WHERE queue_id = <queue>", {"queue_version"}),
    ("INSERT INTO queue_state VALUES (999, 1, 0, 0, 0, 0, 0, NULL, now())", {"queue_version"}),
    ("INSERT INTO action_queue (action_id, concurrency_key) SELECT id, 'lost' FROM action WHERE ref = 'b'",
     {"queue_version"}),
    ("UPDATE action_queue SET paused = true WHERE id = <queue>", {"queue_rules"}),
    ("UPDATE queue_state SET total_completed = 2 WHERE queue_id = <queue>", {"queue_totals"}),
    ("UPDATE action SET max_concurrent = 2 WHERE ref = 'a';"
     "UPDATE action_queue SET max_concurrent = 2 WHERE id = <queue>", {"queue_limit"}),
    ("UPDATE slot_window SET first_ticket = 1000", {"slot_ticket", "message_ticket"}),
    ("DELETE FROM slot_window", {"slot_ticket", "message_ticket"}),
    ("UPDATE due_window SET first_at = now() + interval '10 d'", {"due_bound"}),
    ("DELETE FROM due_window", {"due_bound"}),
    ("INSERT INTO waiting (line_id, place) SELECT queue_id, id FROM execution WHERE id = <delayed>",
     {"waiting_entry", "queue_depth", "queue_head"}),
    ("DELETE FROM waiting WHERE place = <queued>", {"queued_entry", "queue_depth"}),
    ("INSERT INTO waiting (line_id, place) SELECT queue_id, id FROM execution WHERE id = <running>",
     {"queued_entry", "queue_depth", "queue_head"}),
    ("UPDATE slot SET attempt = 2 WHERE execution_id = <running>", {"slot_holder", "queued_entry"}),
    ("UPDATE slot SET finished_at = now(), published_at = now() WHERE execution_id = <scheduled>",
     {"slot_holder", "queued_entry"}),
    ("DELETE FROM slot WHERE execution_id = <running>", {"queued_entry", "queue_held", "pool_held"}),
    ("UPDATE execution SET worker_id = 'other' WHERE id = <failed>", {"slot_holder"}),
    ("DELETE FROM submission_line", {"submission_entry"}),
    ("DELETE FROM submission", {"submission_entry"}),
    ("INSERT INTO submission_line (request_id, action_ref, request_bytes)"
     " SELECT request_id, action_ref, request_bytes FROM submission_line", {"submission_entry"}),
    ("UPDATE execution SET delivery_key = (SELECT request_id FROM submission LIMIT 1) WHERE id = <queued>",
     {"submission_undecided"}),
    ("INSERT INTO submission_outcome SELECT request_id, NULL, 'queue_full', 'x', now() FROM submission",
     {"submission_undecided"}),
    ("DELETE FROM worker", {"slot_worker"}),
    ("DELETE FROM delayed WHERE execution_id = <delayed>", {"delayed_until"}),
    ("INSERT INTO delayed SELECT id, queue_id, now() + interval '1 h' FROM execution WHERE id = <queued>",
     {"due_time"}),
    ("DELETE FROM expiring WHERE execution_id = <queued>", {"deadline_kept"}),
    ("UPDATE expiring SET expires_at = now() + interval '1 h' WHERE execution_id = <queued>", {"deadline"}),
    ("INSERT INTO unpublished_completion SELECT id, queue_id, now() FROM execution WHERE id = <running>",
     {"unpublished_completion"}),
    ("DELETE FROM unpublished_completion", {"queue_totals"}),
    ("UPDATE execution SET queue_id = 999 WHERE id = <scheduled>",
     {"execution_queue", "slot_holder", "queue_totals", "deadline", "deleted_totals"}),
    ("UPDATE waiting SET line_id = 999 WHERE place = <queued>",
     {"queue_depth", "waiting_entry", "queued_entry"}),
    ("UPDATE execution SET started_at = NULL WHERE id = <completed>", {"execution_state"}),
    ("UPDATE execution SET started_at = now() WHERE id = <running>", {"execution_state"}),
    ("UPDATE execution SET queued_at = NULL WHERE id = <queued>", {"execution_state"}),
    ("DELETE FROM attempt WHERE execution_id = <retried>", {"attempt_recorded"}),
    ("UPDATE attempt SET outcome = 'failed' WHERE execution_id = <retried>", {"attempt_history"}),
    ("UPDATE attempt SET execution_id = <completed> WHERE execution_id = <retried>",
     {"attempt_history", "attempt_recorded"}),
    ("UPDATE attempt SET execution_id = 999 WHERE execution_id = <retried>",
     {"attempt_history", "attempt_recorded"}),
    ("UPDATE slot SET granted_at = <late>, offered_at = <late> WHERE claimed_at IS NULL;"
     "UPDATE slot SET claimed_at = <late> WHERE claimed_at IS NOT NULL;"
     "UPDATE worker SET started_at = <late>", {"offer"}),
    ("UPDATE slot SET offered_at = NULL WHERE claimed_at IS NULL; UPDATE worker SET started_at = <late>",
     {"offer"}),
    ("UPDATE slot SET published_at = <late>, finished_at = <late> WHERE finished_at IS NOT NULL",
     {"completion", "settling"}),
    ("UPDATE slot SET finished_at = <late> WHERE finished_at IS NOT NULL", {"settling"}),
    ("UPDATE unpublished_completion SET published_at = <late>", {"completion"}),
    ("UPDATE webhook_delivery SET due_at = <late>, claimed_until = <late>", {"webhook"}),
    ("UPDATE webhook_delivery SET execution_id = <running>", {"webhook_end"}),
    ("DELETE FROM webhook_receiver", {"webhook_bound"}),
    ("UPDATE webhook_receiver SET first_at = now() + interval '10 d'", {"webhook_bound"}),
    ("INSERT INTO pruned_count VALUES (<queue>, 1)", {"queue_totals"}),
    ("UPDATE deleted_queue_total SET executions = executions + 1", {"deleted_totals"}),
    ("UPDATE deleted_queue_total SET pruned = pruned - 1", {"deleted_totals"}),
    ("UPDATE pruned_count SET queue_id = 999", {"pruned_queue", "queue_totals"}),
    ("INSERT INTO unpublished_cancel SELECT id, 1, 'gone', <late> FROM execution WHERE id = <running>",
     {"stop"}),
    ("UPDATE worker SET lost_at = <late>", {"orphan"}),
    ("UPDATE worker_lease SET expires_at = <late>", {"orphan"}),
    ("UPDATE slot SET overdue_at = <late> WHERE finished_at IS NULL AND claimed_at IS NOT NULL", {"overdue"}),
    ("UPDATE delayed SET due_at = <late>; UPDATE execution SET run_at = <late> WHERE status = 'delayed'",
     {"waking"}),
    ("UPDATE expiring SET expires_at = <late>; UPDATE execution SET expires_at = <late>"
     " WHERE expires_at IS NOT NULL", {"expiry"}),
    ("DELETE FROM slot WHERE execution_id = <failed>;"
     "UPDATE queue_state SET updated_at = <late>, total_completed = total_completed + 1, held = held - 1"
     " WHERE queue_id = <queue>; UPDATE pool_state SET held = held - 1, updated_at = <late>", {"idle_slot"}),
    ("INSERT INTO gate_state SELECT gate_id, version + 1, held, depth, head_id, heads, virtual_times,"
     " starts_taken, NULL, updated_at FROM gate_state WHERE gate_id = <r>", {"gate_version"}),
    ("INSERT INTO gate_state VALUES (999, 1, 0, 0, 0, NULL, '{0,0,0,0,0}', 0, NULL, now())",
     {"gate_version"}),
    ("DELETE FROM gate_state WHERE gate_id = <f>", {"gate_version", "gate_held", "flow_turn"}),
    ("UPDATE gate_state SET held = held + 1 WHERE gate_id = <r>", {"gate_held"}),
    ("UPDATE slot SET gate_units = '{1,1}' WHERE execution_id = <gated>", {"gate_held"}),
    ("DELETE FROM slot WHERE execution_id = <gated>",
     {"gate_held", "queue_held", "queued_entry", "pool_held"}),
    ("UPDATE pool_state SET held = held + 1", {"pool_held"}),
    ("UPDATE slot SET pool_id = 999 WHERE execution_id = <running>", {"pool_held"}),
    ("DELETE FROM pool_state", {"pool_version", "pool_held"}),
    ("UPDATE pool_state SET depth = depth + 1", {"pool_depth"}),
    ("INSERT INTO ready_queue SELECT action_id, id, queue_id FROM execution WHERE id = <queued>",
     {"pool_depth", "pool_turn"}),
    ("ALTER TABLE gate_state DROP CONSTRAINT ck_gate_state_passed_within_capacity;"
     "UPDATE gate_state SET granted_capacity = 1 WHERE gate_id = <r>", {"gate_capacity"}),
    ("UPDATE gate_state SET depth = depth + 1 WHERE gate_id = <f>", {"gate_depth"}),
    ("DELETE FROM waiting WHERE line_id = <r>", {"gate_depth", "queue_held", "queued_entry"}),
    ("UPDATE waiting SET passed_ats = NULL WHERE line_id = <r>", {"waiting_gate"}),
    ("UPDATE gate_flow SET flow_id = flow_id + 999 WHERE gate_id = <f>", {"waiting_gate"}),
    ("UPDATE action SET route = ARRAY[<f>, <r>, route[3]] WHERE ref = 'gated'", {"waiting_gate"}),
    ("UPDATE gate_state SET head_id = 1000 WHERE gate_id = <r>", {"gate_head"}),
    ("UPDATE gate_state SET heads = '{1,NULL,NULL,NULL,NULL}', head_id = 0 WHERE gate_id = <r>;"
     "UPDATE waiting SET place = turnstile.place_of(2, turnstile.id_of_place(place)) WHERE line_id = <r>",
     {"gate_head", "waiting_entry", "queued_entry"}),
    ("UPDATE flow_turn SET place = NULL WHERE gate_id = <f>", {"flow_turn"}),
    ("UPDATE flow_turn SET place = place + 1 WHERE gate_id = <f> AND place IS NOT NULL", {"flow_turn"}),
    ("UPDATE gate_state SET virtual_times = '{0,0,99999999,0,0}' WHERE gate_id = <f>", {"flow_turn"}),
    ("INSERT INTO rate_start SELECT gate_id, number + 1, granted_at FROM rate_start", {"rate_window"}),
    ("UPDATE gate SET capacity = 9, updated_at = <late>; UPDATE gate_state SET updated_at = <late>"
     " WHERE gate_id = <r>", {"idle_gate"}),
    ("UPDATE gate SET capacity = 9, updated_at = <late>; UPDATE gate_state SET updated_at = <late>"
     " WHERE gate_id = <f>", {"idle_gate"}),
]  # fmt: skip


def statement_of(corruption: str) -> str:
    """Return the statement with its placeholders replaced."""
    first = "(SELECT min(id) FROM turnstile.current_execution WHERE status = '{}')"
    for _ in range(2):
        corruption = re.sub(r"<(\w+)>", lambda name: _VALUES.get(name[1], first.format(name[1])), corruption)
    return corruption


@asynccontextmanager
async def auditing(database_url: str) -> AsyncIterator[Auditor]:
    database = Database(database_url, application_name="test audit", connections_max=1)
    await database.open()
    try:
        yield Auditor(database, PATIENT)
    finally:
        await database.close()


class InsideTransaction(OneConnection):
    """Reads what an open transaction did, and leaves the transaction open."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.connection.transaction():
            yield self.connection


def wrong(found: AuditReport) -> dict[str, int]:
    return {check.name: check.faults for check in found.checks if check.faults}


async def _set_up(database_url: str) -> None:
    async with connected(database_url) as protocol:
        await protocol.register(lease_seconds=86_400)
        await protocol.put("a", max_concurrent=4)
        await protocol.put("b")
        ids = await protocol.submit("a", count=8, ttl=86_400)
        done, failed, retried, runs = ids[:4]
        await protocol.connection.execute(
            "UPDATE execution SET callback_url = 'https://example.org/' WHERE id = $1", done
        )
        await protocol.claim(done, failed, retried, runs)
        await protocol.finish(done)
        await protocol.settle((done, 1))
        await protocol.finish(failed, status=Status.FAILED)
        await protocol.finish(retried, status=Status.FAILED, retry_delay_seconds=86_000)
        ahead = datetime.now(UTC) + timedelta(days=1)
        await protocol.submit("b", count=2, run_at=ahead, ttl=172_800)
        await protocol.submit("b")
        await protocol.cancel(ids[-1])
        await protocol.put("keyed", concurrency_key="/key")
        pruned, gone, left = [
            (await protocol.submit(ref, parameters={"key": "idle"}))[0] for ref in ("b", "keyed", "keyed")
        ]
        for one in (pruned, gone, left):
            await protocol.run(one)
            await protocol.settle((one, 1))
        for ref, kept in (("b", 0), ("keyed", 1)):
            await protocol.connection.execute(
                "SELECT turnstile.prune_action(id, 0, NULL, $2, 0, 100) FROM action WHERE ref = $1", ref, kept
            )
        assert await protocol.delete_idle_queues() == 1
        await _set_up_gates(protocol)
        await protocol.connection.execute("SELECT turnstile.submit('b') FROM generate_series(1, 2)")


async def _set_up_gates(protocol: Protocol) -> None:
    """One execution holds a resource by arrival and a fair one; others wait at both, and for a rate."""
    await put_resource(protocol.database, "r", 3, rank=1)
    await put_resource(protocol.database, "f", 1, order="fair")
    await put_resource(protocol.database, "p", 9, rate={"starts": 1, "per": 86_400})
    for ref, uses in (("gated", [("r", 2), "f"]), ("fair", ["f"]), ("rated", ["p"])):
        await protocol.put(ref)
        await use(protocol.database, ref, *uses)
        await protocol.submit(ref, count=2)
        await grant_all(protocol.database)


@pytest.fixture(scope="module")
def scene(postgresql: DatabaseServer, template_database: str) -> Iterator[str]:
    """The name of a database in which everything is correct."""
    name = f"{template_database}_scene"
    asyncio.run(_set_up(postgresql.create_database(name, template_database)))
    yield name
    postgresql.drop_database(name)


@pytest.fixture
def scene_url(postgresql: DatabaseServer, scene: str) -> Iterator[str]:
    name = f"{scene}_copy"
    yield postgresql.create_database(name, scene)
    postgresql.drop_database(name)


async def test_in_a_correct_database_every_check_reads_rows_and_finds_nothing(scene_url: str) -> None:
    async with auditing(scene_url) as auditor:
        found = await auditor.audit()
    assert (found.clean, wrong(found)) == (True, {})
    idle = {check.name for check in found.checks if not check.rows}
    assert idle <= {"overdue", "stop", "waking", "expiry"}, "the scene has no rows for these checks"


async def test_each_corrupted_row_is_found_by_name(postgresql: DatabaseServer, scene: str) -> None:
    async with connected(postgresql.url(scene)) as protocol:
        for corruption, names in CORRUPTIONS:
            undone = protocol.connection.transaction(isolation="repeatable_read")
            await undone.start()
            await protocol.connection.execute(statement_of(corruption))
            found = await Auditor(InsideTransaction(protocol.connection), PATIENT).audit()
            await undone.rollback()
            assert not found.clean, corruption
            assert set(wrong(found)) == names, corruption
            assert all(check.examples for check in found.checks if check.faults), corruption


def test_every_check_is_covered() -> None:
    known = {check.name for checks in check_groups(record=True) for check in checks}
    assert known == {name for _, names in CORRUPTIONS for name in names}


async def test_slots_granted_before_a_limit_was_lowered_are_no_fault(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a", max_concurrent=5)
    ids = await protocol.submit(count=7)
    async with auditing(database_url) as auditor:
        await protocol.put("a", max_concurrent=2)
        assert wrong(await auditor.audit()) == {}
        await protocol.run(ids[0])
        await protocol.settle((ids[0], 1))
        assert wrong(await auditor.audit()) == {}
        await protocol.put("a", max_concurrent=None)
        assert wrong(await auditor.audit()) == {}
        # A grant above the limit is found at once.
        await protocol.put("a", max_concurrent=2)
        await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 9")
        await protocol.submit(count=1)
        await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 2")
        assert "queue_limit" in wrong(await auditor.audit())


async def test_an_audit_under_load_raises_no_false_alarm(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put("a", max_concurrent=20)
    stop = asyncio.Event()
    submitted: list[int] = []

    async def submit() -> None:
        while not stop.is_set():
            submitted.extend(await other.submit(count=20, ttl=3600))
            await other.cancel(submitted[-1])

    async def work() -> None:
        while not stop.is_set():
            held = await protocol.column("SELECT execution_id FROM slot WHERE claimed_at IS NULL LIMIT 10")
            claimed = [c.execution_id for c in await protocol.claim(*held) if isinstance(c, Claim)]
            await protocol.finish(*claimed)
            await protocol.settle(*((i, 1) for i in claimed))

    async with auditing(database_url) as auditor, asyncio.TaskGroup() as tasks:
        tasks.create_task(submit(), name="submit")
        tasks.create_task(work(), name="work")
        found = [wrong(await auditor.audit()) for _ in range(20)]
        stop.set()
    assert found == [{}] * 20
    assert len(submitted) > 100


async def test_an_audit_ends_at_its_timeout(
    protocol: Protocol, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.queries.audit._TIMEOUT_SECONDS", 0.3)
    async with serve(database_url) as api, protocol.transaction():
        await protocol.connection.execute("LOCK TABLE slot IN ACCESS EXCLUSIVE MODE")
        answer = await api.http.get("/api/v1/audit")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "record=false" in answer.json()["detail"]


async def test_the_route_shows_faults_with_a_bounded_number_of_examples(scene_url: str) -> None:
    connection = await asyncpg.connect(scene_url)
    await connection.execute("UPDATE queue_state SET depth = depth + 5, updated_at = now()")
    await connection.close()
    async with serve(scene_url, PATIENT) as api:
        found = await api.get("/audit", examples=1)
        (depth,) = [check for check in found["checks"] if check["faults"]]
        assert (found["clean"], depth["name"], depth["rows"], depth["faults"]) == (False, "queue_depth", 5, 5)
        assert [example["found"] for example in depth["examples"]] == ["depth 7"]
        assert depth["examples"][0]["expected"] == "depth 2"
        live = await api.get("/audit", record="false")
        assert "queue_totals" not in {check["name"] for check in live["checks"]}
        unknown = await api.http.get("/api/v1/audit", params={"deep": "yes"})
        assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_field")
