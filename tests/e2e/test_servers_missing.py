"""Servers that are not there when a service starts: it waits, says which, and can be stopped meanwhile."""

import asyncio

import httpx

from tests.support.history import history_of
from tests.support.processes import System, running
from tests.support.traffic import until

NOWHERE = "127.0.0.1:1"


async def _says(system: System, database: str | None, broker: str | None) -> None:
    async def parts_are() -> bool:
        try:
            async with httpx.AsyncClient() as http:
                parts = (await http.get(f"{system.http_url}/readyz")).json()["parts"]
        except httpx.HTTPError:
            return False
        wanted = {"database": database, "broker": broker}
        return all((parts[name] or "").find(word or "") >= 0 for name, word in wanted.items()) and {
            name for name in parts if parts[name] is None
        } == {name for name in wanted if wanted[name] is None}

    await until(parts_are, "what /readyz says", deadline_seconds=20)


async def test_without_a_database_readyz_names_it_and_a_stop_is_obeyed(amqp_url: str) -> None:
    async with running(f"postgresql://nobody@{NOWHERE}/none", amqp_url, executors=0, workers=0) as system:
        executor = await system.start_executor(wait=False)
        await _says(system, "refused", None)
        started = asyncio.get_running_loop().time()
        assert await executor.stop() == 0
        assert asyncio.get_running_loop().time() - started < 10
        assert executor.log.read_text().count("database_unreachable") == 1


async def test_without_a_broker_readyz_names_it_and_requests_are_still_taken(database_url: str) -> None:
    async with (
        running(database_url, f"amqp://guest:guest@{NOWHERE}/", executors=0, workers=0) as system,
        history_of(database_url) as history,
    ):
        await system.start_executor(wait=False)
        await _says(system, None, "refused")
        async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http:
            assert (await http.put("/actions/noop", json={})).status_code in (200, 201)
            assert (await http.post("/executions", json={"action_ref": "noop"})).status_code == 202
        assert await history.value("SELECT count(*) FROM execution") == 1
