"""An execution that runs over all that a test does to the system, until it is asked to stop."""

import httpx

from tests.support.history import History
from tests.support.processes import System
from tests.support.traffic import until

_QUEUE_IS_DONE = """
SELECT q.total_completed = q.total_enqueued FROM action_queue q JOIN execution e ON e.queue_id = q.id
WHERE e.id = $1
"""


async def hold(system: System) -> int:
    """Start it, and wait until it runs; returns its id."""
    async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http:
        held: int = (await http.post("/executions", json={"action_ref": "hold"})).json()["id"]

        async def runs() -> bool:
            return bool((await http.get(f"/executions/{held}")).json()["status"] == "running")

        await until(runs, "it runs")
    return held


async def held_all_the_time(system: System, history: History, held: int) -> None:
    """Ask it to stop: it must do so as its first and only attempt, run without a break."""
    async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http:
        assert (await http.post(f"/executions/{held}/cancel")).status_code == 202

        async def ended() -> bool:
            return bool(await history.value(_QUEUE_IS_DONE, held))

        await until(ended, "it stops")
    rows = await history.rows("SELECT attempt, outcome FROM attempt WHERE execution_id = $1", held)
    assert [(row["attempt"], row["outcome"]) for row in rows] == [(1, "cancelled")]
