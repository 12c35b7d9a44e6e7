"""The previous release under load is replaced by this one, in the steps of docs/operations.md.

All executors stop before the migration, as this release asks for; workers run on and are then replaced one at
a time. Submitters publish all the time, and executions of every kind are under way.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.environment import ACTIONS, repaired_counters
from tests.support.history import History, history_of, value_in
from tests.support.previous_release import ACTIONS as PREVIOUS_ACTIONS
from tests.support.previous_release import MissingHistory, PreviousSystem, unpack
from tests.support.processes import FAST, System
from tests.support.sources import skip
from tests.support.steady import steady
from tests.support.traffic import submit, until
from turnstile.migrations.run import migrate

_ATTEMPTS = """
SELECT e.metadata ->> 'kind' AS kind, e.status::text AS status,
       array_agg(t.outcome::text ORDER BY t.attempt) AS outcomes
FROM execution e JOIN turnstile.ended_attempt t ON t.execution_id = e.id
WHERE e.metadata ? 'kind' GROUP BY e.id ORDER BY e.id
"""
_OLD_LOST = "SELECT count(*) FROM worker WHERE lost_at IS NOT NULL"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the previous release."""
    folder = tmp_path_factory.mktemp("release")
    try:
        unpack(folder)
    except MissingHistory as missing:
        skip(missing)
    return folder


@asynccontextmanager
async def _systems(
    database_url: str, amqp_url: str, release: Path
) -> AsyncIterator[tuple[PreviousSystem, System]]:
    """Yield both releases over the same servers, without services; the logs of a failed test stay."""
    folder = Path(tempfile.mkdtemp(prefix="turnstile-e2e-"))
    for name in ("old", "new"):
        (folder / name).mkdir()
    urls: dict[str, Any] = {"database_url": database_url, "amqp_url": amqp_url, "settings": FAST}
    old = PreviousSystem(folder=folder / "old", release=release, **urls)
    new = System(folder=folder / "new", **urls)
    has_failed = True
    try:
        yield old, new
        has_failed = False
    except BaseException as failure:
        failure.add_note(f"The logs of the services: {folder}")
        raise
    finally:
        services = [*old.workers, *old.executors, *new.workers, *new.executors]
        await asyncio.gather(*(service.stop() for service in services))
        if not has_failed:
            shutil.rmtree(folder)


def _in_progress(folder: Path) -> list[dict[str, object]]:
    """Return requests that begin under the previous release and end under this one."""
    due_at = datetime.now(UTC) + timedelta(seconds=12)
    return [
        {"action_ref": "gate", "parameters": {"file": str(folder / "open")}, "metadata": {"kind": "running"}},
        {"action_ref": "gate", "parameters": {"file": str(folder / "open")}, "metadata": {"kind": "waiting"}},
        {"action_ref": "noop", "run_at": due_at.isoformat(), "metadata": {"kind": "delayed"}},
        {"action_ref": "retried", "parameters": {"steps": ["FAIL", "OK"]}, "metadata": {"kind": "retried"}},
    ]


async def _use_what_is_new(system: System) -> None:
    """Give an action a gate, and requests a priority, while all workers are of the previous release."""
    async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=30) as http:
        changed = await http.patch("/actions/tiny.5", json={"max_concurrent_total": 1})
        assert changed.status_code == 200, changed.text
        body = {"action_ref": "tiny.5", "priority": 2, "metadata": {"kind": "gated"}}
        submitted = await http.post("/executions", json=[body] * 3)
        assert submitted.status_code == 202, submitted.text


@pytest.mark.timeout(180)
async def test_the_previous_release_is_replaced_under_load_and_nothing_is_lost_or_run_twice(
    empty_database_url: str, amqp_url: str, release: Path, tmp_path: Path
) -> None:
    async with _systems(empty_database_url, amqp_url, release) as (old, new):
        await old.migrate()
        await asyncio.gather(old.start_executor(), old.start_executor())
        await asyncio.gather(old.start_worker(PREVIOUS_ACTIONS), old.start_worker(PREVIOUS_ACTIONS))
        async with steady(amqp_url, tmp_path, waiting_max=100) as client:
            await client.continues("the start of the previous release")
            await submit(amqp_url, _in_progress(tmp_path))
            await client.submit_fast(40)
            running = "SELECT count(*) = 1 FROM execution e JOIN action a ON a.id = e.action_id"
            running += " WHERE a.ref = 'gate' AND e.status = 'running'"
            await until(lambda: value_in(empty_database_url, running), "an execution runs")

            # Step 1: no executor reads the tables that the migration changes. Requests wait in the broker.
            for executor in old.executors:
                assert await executor.stop() == 0
            await client.submit_fast(20)
            assert await value_in(empty_database_url, "SELECT version_num FROM alembic_version") == "0011"
            await migrate(empty_database_url)

            # Step 2: executors of this release, with workers of the previous one.
            await new.start_executor()
            await client.continues("the first executor of this release")
            await _use_what_is_new(new)
            await new.start_executor()
            (tmp_path / "open").touch()
            await client.continues("the second one")

            # Step 3: worker by worker; SIGTERM drains.
            for worker in old.workers:
                await new.start_worker(ACTIONS)
                assert await worker.stop() == 0
                await client.continues(f"{worker.name} of the previous release")
            await client.submit_fast(40)
        async with history_of(empty_database_url) as history:
            await _all_ended_as_requested(history)
            await client.all_ran_once_in_order(history)
            assert await history.faults() == []
            assert repaired_counters(new) == []


async def _all_ended_as_requested(history: History) -> None:
    await history.until("SELECT count(*) = 0 FROM execution WHERE completed_at IS NULL", deadline_seconds=60)
    found = {row["kind"]: (row["status"], row["outcomes"]) for row in await history.rows(_ATTEMPTS)}
    assert found == {
        "running": ("completed", ["completed"]),
        "waiting": ("completed", ["completed"]),
        "delayed": ("completed", ["completed"]),
        "retried": ("completed", ["retried", "completed"]),
        "gated": ("completed", ["completed"]),
    }
    assert await history.value(_OLD_LOST) == 0
    assert await history.value("SELECT count(*) FROM dead_letter") == 0
