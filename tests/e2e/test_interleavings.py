"""P1 and P7 in random orders: no slot stands idle beside a waiting execution, none is given twice."""

import asyncio
import random
from typing import Any

import httpx

from tests.support.history import History, history_of
from tests.support.ledger import Ledger, ledger_kept, read_ledger
from tests.support.processes import System, running
from tests.support.sizes import sizes
from tests.support.traffic import publishing, request, until

SEED = 20
LIMITS = {"tiny.1": 1, "tiny.2": 2, "tiny.3": 3, "tiny.5": 5}
KEYS = ("a", "b", "c")
IDLE_SECONDS_MAX = 1.0


def some_tiny(chance: random.Random) -> dict[str, Any]:
    # As many as can run side by side, so that all lines are done together.
    (ref,), key = chance.choices(list(LIMITS), weights=list(LIMITS.values())), chance.choice(KEYS)
    seconds = chance.choice([0, 0, 0, chance.random() / 100])
    return {"action_ref": ref, "concurrency_key": key, "parameters": {"seconds": seconds}}


async def submit_at_random(system: System, chance: random.Random, count: int, *, over_http: bool) -> None:
    """Submit in bursts of any size with gaps between, so that lines are now empty and now full."""
    async with publishing(system.amqp_url) as publisher, httpx.AsyncClient() as http:
        while count > 0:
            bodies = [some_tiny(chance) for _ in range(min(count, chance.choice([1, 1, 2, 5, 20, 100])))]
            if over_http:
                await http.post(f"{system.http_url}/api/v1/executions", json=bodies, timeout=30)
            else:
                await publisher.publish([request(body) for body in bodies])
            count -= len(bodies)
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.05]))


async def limits_by_queue(history: History) -> dict[int, int]:
    rows = await history.rows("SELECT id, max_concurrent FROM action_queue")
    return {row["id"]: row["max_concurrent"] for row in rows}


@sizes("count", short=2_000, whole=10_000)
async def test_in_thousands_of_interleavings_no_free_slot_stands_beside_a_waiting_execution(
    database_url: str, amqp_url: str, count: int
) -> None:
    practically_off = {"TURNSTILE_WATCHDOG_INTERVAL": "1h", "TURNSTILE_WORKER_CONCURRENCY": "40"}
    async with (
        running(database_url, amqp_url, executors=2, workers=2, settings=practically_off) as system,
        history_of(database_url) as history,
        ledger_kept(database_url),
    ):
        chances = [random.Random(SEED + n) for n in range(4)]
        await asyncio.gather(
            *(
                submit_at_random(system, chance, count // 4, over_http=n == 0)
                for n, chance in enumerate(chances)
            )
        )
        await _while_there_is_progress(history, count)
        ledger, limits = await read_ledger(history), await limits_by_queue(history)
        assert await history.value("SELECT count(*) FROM execution WHERE status = 'completed'") == count
    assert len(limits) == len(LIMITS) * len(KEYS)
    for queue_id, limit in limits.items():
        assert ledger.most_held(queue_id) == limit
        assert ledger.longest_idle(queue_id, limit).total_seconds() < IDLE_SECONDS_MAX
    assert waited(ledger) > count / 2, "hardly anything had to wait: nothing was interleaved"


async def _while_there_is_progress(history: History, count: int) -> None:
    """Wait for that many ends, however slow the machine is; nothing heals here, so what is stuck stays so."""
    ended = -1
    while ended < count:
        before = ended

        async def goes_on(before: int = before) -> bool:
            return bool(await history.value("SELECT sum(total_completed) > $1 FROM action_queue", before))

        await until(goes_on, f"more than {before} ends", deadline_seconds=15)
        ended = await history.value("SELECT sum(total_completed) FROM action_queue")


def waited(ledger: Ledger) -> int:
    return sum(entry.place == "waiting" and entry.step == 1 for entry in ledger.entries)


@sizes("turns", short=1, whole=4)
async def test_a_thousand_kills_cancels_and_retries_never_start_more_than_the_limit(
    database_url: str, amqp_url: str, turns: int
) -> None:
    settings = {
        "TURNSTILE_WATCHDOG_INTERVAL": "200ms",
        "TURNSTILE_LEASE_DURATION": "1500ms",
        "TURNSTILE_HEARTBEAT_INTERVAL": "400ms",
        "TURNSTILE_DISPATCH_TIMEOUT": "2s",
    }
    limit = 3
    changed = {
        "max_concurrent": limit,
        "max_reclaims": 3,
        "retry": {"max_attempts": 3, "delay": "50ms", "factor": 1},
    }
    async with (
        running(database_url, amqp_url, workers=2, settings=settings) as system,
        history_of(database_url) as history,
        ledger_kept(database_url),
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=30) as http,
    ):
        assert (await http.patch("/actions/scripted", json=changed)).status_code == 200
        for turn in range(turns):
            unrest = [_unrest(http, history, random.Random(SEED + 4 * turn + n), 62) for n in range(4)]
            await asyncio.gather(_kill_one_that_runs_something(system, history, http), *unrest)
        count = await history.value("SELECT count(*) FROM execution")
        await _let_end(http, history, count)
        ledger = await read_ledger(history)
        (queue_id,) = await limits_by_queue(history)
        outcomes = {row["outcome"] for row in await history.rows("SELECT DISTINCT outcome FROM attempt")}
        assert await history.most_at_once("scripted") <= limit
    assert count >= 248 * turns
    assert ledger.most_held(queue_id) == limit
    assert outcomes >= {"completed", "failed", "retried", "cancelled", "reclaimed"}


async def _unrest(http: httpx.AsyncClient, history: History, chance: random.Random, turns: int) -> None:
    """Start what ends, fails, is tried again or hangs, and cancel something, again and again."""
    for _ in range(turns):
        steps = chance.choice([["OK"], ["HANG"], ["FAIL"], ["LATER", "OK"], ["PERMANENT"], ["FAIL", "HANG"]])
        await http.post("/executions", json={"action_ref": "scripted", "parameters": {"steps": steps}})
        living = await history.rows(
            "SELECT id FROM execution WHERE completed_at IS NULL AND metadata = '{}' ORDER BY id LIMIT 6"
        )
        if living:
            await http.post(f"/executions/{chance.choice(living)['id']}/cancel")


async def _kill_one_that_runs_something(system: System, history: History, http: httpx.AsyncClient) -> None:
    """Kill a worker in the middle of an execution that nobody cancels, and start another one."""
    body = {"action_ref": "scripted", "parameters": {"steps": ["HANG", "OK"]}, "metadata": {"spared": True}}
    execution_id = (await http.post("/executions", json=body)).json()["id"]
    query = """
        SELECT w.name FROM execution e JOIN worker w ON w.id = e.worker_id
        WHERE e.id = $1 AND e.status = 'running' AND e.attempt = 1
    """

    async def is_running() -> bool:
        return await history.value(query, execution_id) is not None

    await until(is_running, "the execution that loses its worker")
    name = await history.value(query, execution_id)
    victim = next(worker for worker in system.workers if worker.name == name)
    await asyncio.gather(victim.kill(), system.start_worker("tests.e2e.actions"))


async def _let_end(http: httpx.AsyncClient, history: History, count: int) -> None:
    async def all_ended() -> bool:
        hanging = await history.rows("SELECT id FROM execution WHERE status = 'running' AND metadata = '{}'")
        await asyncio.gather(*(http.post(f"/executions/{row['id']}/cancel") for row in hanging))
        return bool(await history.value("SELECT sum(total_completed) = $1 FROM action_queue", count))

    await until(all_ended, "every end", deadline_seconds=60)
