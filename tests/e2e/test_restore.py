"""A backup under load is restored on a new server: nothing of it is lost, and no id is assigned again.

`docs/backup.md` says what may happen: what ended before the backup never runs again, what ended after it
runs once more, and requests that were taken after it are lost unless they are sent again.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path

import pytest

from tests.e2e.commands import printed
from tests.support.environment import Environment, StartEnvironment, running_environment
from tests.support.history import runs_in, session_of
from tests.support.processes import System
from tests.support.traffic import submit, until
from turnstile.localservers import PostgresServer
from turnstile.localservers.servers import ScratchFolder

_ENDED = """
SELECT array_agg((parameters ->> 'number')::int) FROM ledger.execution
WHERE completed_at IS NOT NULL AND parameters ? 'number'
"""
_UNDER_WAY = "SELECT id FROM ledger.execution WHERE metadata ? 'kind' ORDER BY id"
_BETWEEN = "SELECT count(*) FROM ledger.execution WHERE id > $1 AND id < $2"
_RUNNING = """
SELECT count(*) = 1 FROM ledger.current_execution WHERE metadata ? 'kind' AND status = 'running'
"""
_ADVANCE = resources.files("turnstile.testing").joinpath("advance.sql").read_text()
_COUNT = 40
_LATE = range(3 * _COUNT, 3 * _COUNT + 5)
_QUICK = {
    "TURNSTILE_WATCHDOG_INTERVAL": "500ms",
    "TURNSTILE_LEASE_DURATION": "3s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "1s",
}


@pytest.fixture
def new_server(local_binaries: None) -> Iterator[PostgresServer]:
    """Another PostgreSQL server, with an identity and transaction ids of its own."""
    scratch = ScratchFolder.create(in_memory=True)
    server = PostgresServer.start(scratch.path / "new", durable=False)
    try:
        yield server
    finally:
        server.stop("immediate")
        scratch.delete()


class Load:
    """Numbered requests for `record` (one at a time) and `record.seven`, each with a key of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def bodies(self, numbers: range) -> list[dict[str, object]]:
        """Return the requests of these numbers."""
        return [
            {
                "action_ref": "record" if number % 2 else "record.seven",
                "parameters": {"file": str(self.file), "number": number}
                | ({"seconds": 0.05} if number % 2 else {}),
                "idempotency_key": f"number-{number}",
            }
            for number in numbers
        ]

    @property
    def file(self) -> Path:
        """Where the actions write their runs."""
        return self._folder / "runs.jsonl"

    def starts(self) -> Counter[int]:
        """Return how often each number was started."""
        return Counter(line.number for line in runs_in(self.file) if line.event == "start")

    def numbers_by_id(self) -> dict[int, set[int]]:
        """Return the numbers that were run under each id."""
        found: dict[int, set[int]] = {}
        for line in runs_in(self.file):
            found.setdefault(line.execution_id, set()).add(line.number)
        return found


def _in_progress(folder: Path) -> list[dict[str, object]]:
    """Return an execution that runs during the backup, and one that is not due then."""
    due_at = datetime.now(UTC) + timedelta(days=1)
    return [
        {"action_ref": "gate", "parameters": {"file": str(folder / "open")}, "metadata": {"kind": "running"}},
        {"action_ref": "noop", "run_at": due_at.isoformat(), "metadata": {"kind": "delayed"}},
    ]


async def _stop(system: System) -> None:
    await asyncio.gather(*(service.stop() for service in (*system.workers, *system.executors)))


@pytest.mark.timeout(120)
async def test_a_backup_under_load_is_restored_on_a_new_server_without_loss_or_reuse_of_ids(
    start_env: StartEnvironment, new_server: PostgresServer, tmp_path: Path
) -> None:
    load, dump = Load(tmp_path), tmp_path / "turnstile.dump"
    async with start_env(settings=_QUICK) as env:
        urls = {"TURNSTILE_DATABASE_URL": env.system.database_url, "TURNSTILE_AMQP_URL": env.amqp_url}
        await submit(env.amqp_url, [*load.bodies(range(_COUNT)), *_in_progress(tmp_path)])
        await until(lambda: load.starts().total() >= 12, "executions run")
        await env.history.until(_RUNNING)
        exported, _ = await asyncio.gather(
            printed("export", str(dump), **urls),
            submit(env.amqp_url, load.bodies(range(_COUNT, 2 * _COUNT))),
        )
        assert str(dump) in exported
        # The system lives on: later executions end, and their ids and messages are known outside.
        later = await env.submit_many(load.bodies(range(2 * _COUNT, 3 * _COUNT)))
        (tmp_path / "open").touch()
        await env.ended(later[0], deadline_seconds=40)
        await _stop(env.system)
        await submit(env.amqp_url, load.bodies(_LATE))
        before, last_seen = load.starts(), max(later)

    urls["TURNSTILE_DATABASE_URL"] = restored_url = new_server.create_database("restored")
    planned = await printed("restore-check", "--from", str(dump), "--dry-run", **urls)
    assert "would    restore" in planned
    said = await printed("restore-check", "--from", str(dump), "--yes", **urls)
    assert f"executor.requests: {len(_LATE)} messages, which executors will admit" in said
    assert "audit    no violations" in said
    assert "healthy" in await printed("restore-check", **urls)
    last_id = int(re.findall(r"newest execution, #(\d+),", said)[0])
    first_id = int(re.findall(r"ids continue with ([\d,]+)", said)[0].replace(",", ""))
    assert last_id < last_seen < first_id

    async with session_of(restored_url) as session:
        # No executor leads yet, which would remember when it is due.
        await session.execute(_ADVANCE, 86_400)
    async with running_environment(restored_url, env.amqp_url, settings=_QUICK, workers=0) as restored:
        await _ends_as_documented(restored, load, before)
        assert await restored.history.value(_BETWEEN, last_id, first_id) == 0


async def _ends_as_documented(env: Environment, load: Load, before: Counter[int]) -> None:
    ended = set(await env.history.value(_ENDED))
    await env.start_worker()
    # Executors take the requests in the broker. The submitter sends all others again: some were lost.
    await submit(env.amqp_url, load.bodies(range(3 * _COUNT)))
    await env.history.ended(3 * _COUNT + len(_LATE) + 2, deadline_seconds=60)

    runs = load.starts() - before
    assert ended
    assert not ended & runs.keys(), "ended before the backup, and ran again"
    assert set(range(_LATE.stop)) - ended == set(runs), "lost"
    assert set(runs.values()) == {1}
    assert all(len(numbers) == 1 for numbers in load.numbers_by_id().values()), "an id was assigned twice"
    assert await env.history.value("SELECT count(*) FROM ledger.execution WHERE completed_at IS NULL") == 0
    assert await env.history.value("SELECT count(*) FROM ledger.dead_letter") == 0
    running, delayed = await env.history.rows(_UNDER_WAY)
    assert await env.attempts(running["id"]) == [(1, "reclaimed"), (2, "completed")]
    assert await env.attempts(delayed["id"]) == [(1, "completed")]
