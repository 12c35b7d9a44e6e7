"""A database that answers, and refuses: the executor says why, goes on, and heals when it is mended.

Whole services: none of their processes may end meanwhile.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
import pytest_asyncio

from tests.support.processes import Service, System, running
from tests.support.sources import LentUrls
from tests.support.traffic import until

_SCHEMAS = ("ledger", "turnstile", "public")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A running system whose role has rights that a test can take away."""

    system: System
    owner: "asyncpg.Connection[asyncpg.Record]"
    role: str

    @property
    def executor(self) -> Service:
        return self.system.executors[0]

    @asynccontextmanager
    async def without(self, right: str, table: str) -> AsyncIterator[None]:
        await self.owner.execute(f"REVOKE {right} ON {table} FROM {self.role}")
        try:
            yield
        finally:
            await self.owner.execute(f"GRANT {right} ON {table} TO {self.role}")

    async def submit(self, http: httpx.AsyncClient, ref: str) -> int:
        answer = await http.post("/executions", json={"action_ref": ref}, headers={"Idempotency-Key": ref})
        assert answer.status_code in (200, 202), answer.text
        return int(answer.json()["id"])

    async def until_ended(self, http: httpx.AsyncClient, execution_id: int) -> None:
        async def has_ended() -> bool:
            answer = await http.get(f"/executions/{execution_id}")
            return answer.is_success and answer.json()["completed_at"] is not None

        await until(has_ended, "the execution has ended", deadline_seconds=30)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(lent_urls: LentUrls) -> AsyncIterator[Guarded]:
    role = f"guarded_{secrets.token_hex(4)}"
    with lent_urls() as (url, amqp_url):
        owner = await asyncpg.connect(url)
        await owner.execute(f"CREATE ROLE {role} LOGIN")
        for schema in _SCHEMAS:
            for kind in (
                "SCHEMA",
                "ALL TABLES IN SCHEMA",
                "ALL SEQUENCES IN SCHEMA",
                "ALL FUNCTIONS IN SCHEMA",
            ):
                await owner.execute(f"GRANT ALL ON {kind} {schema} TO {role}")
        parts = urlsplit(url)
        of_role = parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}").geturl()
        settings = {"TURNSTILE_LOG_FLUSH_INTERVAL": "100ms"}
        try:
            async with running(
                of_role, amqp_url, actions="tests.integration.cli.served_actions", settings=settings
            ) as system:
                yield Guarded(system=system, owner=owner, role=role)
        finally:
            await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
            await owner.close()


@pytest_asyncio.fixture(loop_scope="module")
async def http(guarded: Guarded) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"{guarded.executor.http_url}/api/v1", timeout=35) as client:
        yield client


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("right", "table"),
    [
        # A turn cannot be written, commands cannot be read, and nothing can be loaded.
        ("INSERT", "ledger.action_id"),
        ("SELECT", "ledger.answer"),
        ("SELECT", "ledger.execution"),
    ],
)
async def test_a_leader_that_is_refused_says_why_and_goes_on_when_it_is_mended(
    guarded: Guarded, http: httpx.AsyncClient, right: str, table: str
) -> None:
    pids = guarded.executor.pids
    name = table.partition(".")[2]
    async with guarded.without(right, table):
        # No leader answers: 503, or the client gives up; the command is kept.
        ref = f"cli.add.{secrets.token_hex(4)}"
        with pytest.raises(httpx.ReadTimeout):
            await http.put(f"/actions/{ref}", json={}, timeout=1)
        await guarded.executor.until_unready(leader=("permission denied", name))
        assert "ledger_refused" in guarded.executor.log.read_text()
    await guarded.executor.ready()
    assert guarded.executor.pids == pids

    async def is_defined() -> bool:
        return (await http.get(f"/actions/{ref}")).is_success

    await until(is_defined, "the command is decided", deadline_seconds=30)
    await guarded.until_ended(http, await guarded.submit(http, "cli.fail"))


@pytest.mark.asyncio(loop_scope="module")
async def test_logs_that_the_database_refuses_are_shown_as_degraded_and_written_later(
    guarded: Guarded, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    pids, end = guarded.executor.pids, tmp_path / "end"
    async with guarded.without("SELECT", "ledger.log"):
        parameters = {"until": str(end)}
        answer = await http.post("/executions", json={"action_ref": "cli.talk", "parameters": parameters})
        execution_id = answer.json()["id"]

        async def is_degraded() -> bool:
            degraded = (await guarded.executor.readiness()).get("degraded") or {}
            return (
                "permission denied for table log" in degraded.get("database", "")
                and "reports_postponed" in guarded.executor.log.read_text()
            )

        await until(is_degraded, "/readyz names what is refused", deadline_seconds=30)
    end.touch()
    await guarded.until_ended(http, execution_id)

    async def is_logged() -> bool:
        logs = (await http.get(f"/executions/{execution_id}/logs")).json()["items"]
        text = "".join(piece["text"] for piece in logs)
        return "first word" in text and "last word" in text

    await until(is_logged, "the log is written", deadline_seconds=30)
    assert guarded.executor.pids == pids

    async def is_whole() -> bool:
        return not (await guarded.executor.readiness()).get("degraded")

    await until(is_whole, "/readyz shows nothing more", deadline_seconds=30)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_executor_that_may_not_read_the_version_of_the_schema_waits(
    guarded: Guarded, http: httpx.AsyncClient
) -> None:
    async with guarded.without("SELECT", "public.alembic_version"):
        waiting = await guarded.system.start_executor(wait=False)
        await waiting.until_unready(database=("permission denied", "alembic_version"))
    await waiting.ready()
    await waiting.stop()
    guarded.system.executors.remove(waiting)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("missing", "method", "path"),
    [
        (("INSERT", "ledger.inbox"), "POST", "/executions"),
        (("SELECT", "ledger.audit_log"), "GET", "/audit-log"),
    ],
)
async def test_a_request_that_needs_a_missing_right_answers_503_with_the_command_that_names_it(
    guarded: Guarded, http: httpx.AsyncClient, missing: tuple[str, str], method: str, path: str
) -> None:
    body = {"action_ref": "cli.fail"} if method == "POST" else None
    async with guarded.without(*missing):
        answer = await http.request(method, path, json=body)
    name = missing[1].partition(".")[2]
    assert answer.status_code == 503, answer.text
    said = f"database: permission denied for table {name}; 'executor doctor' names what is missing"
    assert answer.json()["detail"].startswith(said)
