"""A cancel while nobody reaches the broker; its word to the worker dies with the executor (P7)."""

import httpx

from tests.proof.chaos.proxy import CLEAR, Proxy, Weather
from tests.support.history import history_of
from tests.support.processes import running
from tests.support.traffic import until

SETTINGS = {
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    "TURNSTILE_STOP_TIMEOUT": "1s",
    "TURNSTILE_LEASE_DURATION": "30s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "1s",
}


async def test_a_cancel_is_taken_without_a_broker_and_reaches_the_worker_though_its_message_was_lost(
    database_url: str, amqp_url: str
) -> None:
    async with (
        Proxy(amqp_url).standing() as broker,
        running(database_url, broker.url, settings=SETTINGS) as system,
        history_of(database_url) as history,
    ):
        async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=5) as http:
            ids = [(await http.post("/executions", json={"action_ref": "hold"})).json()["id"] for _ in "ab"]

            async def runs() -> bool:
                query = "SELECT status = 'running' FROM execution WHERE id = $1"
                return bool(await history.value(query, ids[0]))

            await until(runs, "the first runs")
            broker.weather = Weather(refuses=True)
            answers = [(await http.post(f"/executions/{i}/cancel")).json() for i in ids]
        assert [answer["status"] for answer in answers] == ["running", "cancelled"]
        # With it dies the word to the worker; only the record knows.
        await system.executors[0].kill()
        broker.weather = CLEAR
        await system.start_executor()
        await history.ended(2, deadline_seconds=30)
        ends = await history.rows("SELECT status::text, attempt FROM execution ORDER BY id")
        attempts = await history.rows("SELECT worker_id, outcome FROM attempt")
        living = await history.value("SELECT id FROM worker WHERE lost_at IS NULL AND stopped_at IS NULL")
    assert [tuple(end) for end in ends] == [("cancelled", 1), ("cancelled", 0)]
    # By the worker itself, which lives: it was not given up.
    assert [tuple(attempt) for attempt in attempts] == [(living, "cancelled")]
