"""Workers with different code: each runs what it has, and passes on the rest."""

import httpx

from tests.support.history import history_of
from tests.support.processes import running
from tests.support.traffic import until


async def test_a_worker_passes_on_what_it_has_no_code_for(database_url: str, amqp_url: str) -> None:
    async with (
        running(database_url, amqp_url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        await system.start_worker("tests.e2e.other_actions")
        body = [{"action_ref": ref} for ref in ("noop", "other") for _ in range(10)]
        assert (await http.post("/executions", json=body)).status_code == 202
        await history.ended(20)
        assert await history.value("SELECT count(*) FROM execution WHERE status = 'completed'") == 20


async def test_what_nobody_has_code_for_waits_for_a_worker_that_has(database_url: str, amqp_url: str) -> None:
    async with (
        running(database_url, amqp_url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        assert (await http.put("/actions/other", json={})).status_code in (200, 201)
        execution_id = (await http.post("/executions", json={"action_ref": "other"})).json()["id"]

        async def is_withheld() -> bool:
            return bool(await history.value("SELECT offered_at IS NULL FROM slot"))

        await until(is_withheld, "the offer is withheld")
        assert (await http.get(f"/executions/{execution_id}")).json()["status"] == "scheduled"
        await system.start_worker("tests.e2e.other_actions")
        await history.ended(1)
        assert (await http.get(f"/executions/{execution_id}")).json()["result"] == "other"
