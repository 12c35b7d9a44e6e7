"""The audit finds each thing that can be wrong, by its name, and nothing where nothing is.

A scene holds executions of every kind. Each test spoils one thing in a copy of it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.integration.executor.spoilt import SPOILT, spelled_out
from tests.support.protocol import OneConnection, Protocol, connected
from tests.support.served import serve
from turnstile.common.database import Database
from turnstile.common.domain.states import Status
from turnstile.executor.reading.audit import AuditBounds, Auditor, AuditShape
from turnstile.executor.reading.audit_checks import check_groups
from turnstile.executor.settings import ExecutorSettings
from turnstile.localservers import DatabaseServer
from turnstile.worker.record import Claim

# However long the tests take: the scene grows older from the first to the last.
PATIENT = ExecutorSettings(dispatch_timeout=3600, settle_timeout=3600, stop_timeout=3600)
BOUNDS = AuditBounds.of(PATIENT)


@asynccontextmanager
async def auditing(database_url: str) -> AsyncIterator[Auditor]:
    database = Database(database_url, application_name="test audit", connections_max=1)
    await database.open()
    try:
        yield Auditor(database, BOUNDS)
    finally:
        await database.close()


class InsideTransaction(OneConnection):
    """A link that reads what an open transaction did, and leaves the transaction open."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.connection.transaction():
            yield self.connection


def wrong(found: AuditShape) -> dict[str, int]:
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


@pytest.fixture(scope="module")
def scene(postgresql: DatabaseServer, template_database: str) -> Iterator[str]:
    """The name of a database in which everything is as it should be."""
    name = f"{template_database}_scene"
    asyncio.run(_set_up(postgresql.create_database(name, template_database)))
    yield name
    postgresql.drop_database(name)


@pytest.fixture
def scene_url(postgresql: DatabaseServer, scene: str) -> Iterator[str]:
    name = f"{scene}_copy"
    yield postgresql.create_database(name, scene)
    postgresql.drop_database(name)


async def test_where_nothing_is_wrong_every_check_looks_at_rows_and_finds_nothing(scene_url: str) -> None:
    async with auditing(scene_url) as auditor:
        found = await auditor.audit()
    assert (found.clean, wrong(found)) == (True, {})
    idle = {check.name for check in found.checks if not check.rows}
    assert idle <= {"overdue", "stop", "waking", "expiry"}, (
        "the scene has nothing for these checks to look at"
    )


@pytest.mark.parametrize(("spoil", "names"), SPOILT)
async def test_each_thing_that_is_wrong_is_named(
    postgresql: DatabaseServer, scene: str, spoil: str, names: set[str]
) -> None:
    async with connected(postgresql.url(scene)) as protocol:
        undone = protocol.connection.transaction(isolation="repeatable_read")
        await undone.start()
        await protocol.connection.execute(spelled_out(spoil))
        found = await Auditor(InsideTransaction(protocol.connection), BOUNDS).audit()
        await undone.rollback()
    assert not found.clean
    assert set(wrong(found)) == names
    assert all(check.examples for check in found.checks if check.faults)


def test_every_check_is_spoilt_once() -> None:
    known = {check.name for group in check_groups(record=True) for check in group.checks}
    assert known == {name for _, names in SPOILT for name in names}


async def test_slots_from_before_a_lowered_limit_are_no_fault(protocol: Protocol, database_url: str) -> None:
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
        # Whoever grants above it now is found out at once.
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
            taken = [c.execution_id for c in await protocol.claim(*held) if isinstance(c, Claim)]
            await protocol.finish(*taken)
            await protocol.settle(*((i, 1) for i in taken))

    async with auditing(database_url) as auditor, asyncio.TaskGroup() as tasks:
        tasks.create_task(submit(), name="submit")
        tasks.create_task(work(), name="work")
        found = [wrong(await auditor.audit()) for _ in range(20)]
        stop.set()
    assert found == [{}] * 20
    assert len(submitted) > 100


async def test_an_audit_waits_for_nobody_longer_than_its_time(
    protocol: Protocol, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.reading.audit._TIMEOUT_SECONDS", 0.3)
    async with serve(database_url) as api, protocol.transaction():
        await protocol.connection.execute("LOCK TABLE slot IN ACCESS EXCLUSIVE MODE")
        answer = await api.http.get("/api/v1/audit")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "record=false" in answer.json()["detail"]


async def test_the_route_says_what_was_found_and_bounds_its_examples(scene_url: str) -> None:
    connection = await asyncpg.connect(scene_url)
    await connection.execute("UPDATE action_queue SET depth = depth + 5, updated_at = now()")
    await connection.close()
    async with serve(scene_url, PATIENT) as api:
        found = await api.get("/audit", examples=1)
        (depth,) = [check for check in found["checks"] if check["faults"]]
        assert (found["clean"], depth["name"], depth["rows"], depth["faults"]) == (False, "queue_depth", 2, 2)
        assert [example["found"] for example in depth["examples"]] == ["depth 7"]
        assert depth["examples"][0]["expected"] == "depth 2"
        live = await api.get("/audit", record="false")
        assert "queue_totals" not in {check["name"] for check in live["checks"]}
        unknown = await api.http.get("/api/v1/audit", params={"deep": "yes"})
        assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_field")
