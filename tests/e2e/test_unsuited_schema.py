"""A database without the schema of this version: the executor says so once, and waits for the migration.

Whole services: the schema appears and disappears while they run.
"""

import asyncio

import httpx

from tests.support.environment import ACTIONS
from tests.support.history import session_of
from tests.support.processes import Service, running
from tests.support.traffic import until
from turnstile.migrations.run import migrate

MISSING = "the database has no schema of Turnstile: run 'executor migrate'"
LINES_MAX = 30
"""Of a log, whatever repeats in the meantime."""
_RENAMED = (("TABLE", "alembic_version", "gone"), ("SCHEMA", "ledger", "gone"))


async def _until_ready(service: Service, *, schema: str | None = None) -> None:
    """Wait until it is ready, and reports this of the schema; None: it reports nothing of it."""

    async def ready() -> bool:
        answer = await service.readiness()
        reported = answer.get("degraded", {}).get("schema")
        return answer.get("status") == "ready" and (
            reported is None if schema is None else schema in (reported or "")
        )

    await until(ready, f"readiness, with schema {schema}", deadline_seconds=30)


def _lines(service: Service, text: str) -> int:
    return sum(text in line for line in service.log.read_text().splitlines())


async def _execute(url: str, statement: str) -> None:
    async with session_of(url) as connection:
        await connection.execute(statement)


async def test_without_a_schema_the_executor_names_the_command_and_continues_after_it(
    empty_database_url: str, amqp_url: str
) -> None:
    async with running(empty_database_url, amqp_url, executors=0, workers=0) as system:
        executor = await system.start_executor(wait=False)
        # It needs the broker alone.
        worker = await system.launch_worker(ACTIONS)
        await executor.until_unready(database=MISSING)
        async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http:
            for path in ("/actions", "/executions", "/workers"):
                answer = await http.get(path)
                assert answer.status_code == 503
                assert MISSING in answer.json()["detail"]

        assert _lines(executor, "schema_unsuited") == 1
        assert _lines(executor, "serving") == 0
        await migrate(empty_database_url)
        await _until_ready(executor)
        async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http:
            assert (await http.get("/actions")).status_code == 200
        assert _lines(executor, "schema_unsuited_over") == 1
        # It disappears while they run.
        await worker.ready()
        for what, name, new_name in _RENAMED:
            await _execute(empty_database_url, f"ALTER {what} {name} RENAME TO {new_name}")
        await executor.until_unready(database=MISSING)
        await asyncio.sleep(1)
        for what, name, new_name in reversed(_RENAMED):
            await _execute(empty_database_url, f"ALTER {what} {new_name} RENAME TO {name}")
        await _until_ready(executor)
        assert _lines(executor, "Traceback") == 0
        assert all(_lines(service, "") < LINES_MAX for service in (executor, worker))
