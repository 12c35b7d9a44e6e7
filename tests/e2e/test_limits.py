"""P1, P7 and P8: the limit holds, and free slots are granted at once, by messages alone.

Whole services: executors are killed, and slots are counted by the lines that actions write.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.environment import Environment, StartEnvironment
from tests.support.history import peak_runs, runs_in
from tests.support.sizes import sizes
from tests.support.traffic import publishing, request, submit, until
from turnstile.stress.check.counts import peak_concurrency

OPTIONS = {"settings": {"TURNSTILE_WORKER_CONCURRENCY": "50"}}
SEED = 20
LIMITS = {"tiny.1": 1, "tiny.2": 2, "tiny.3": 3, "tiny.5": 5}
KEYS = ("a", "b", "c")
IDLE_SECONDS_MAX = 1.0
NO_WATCHDOG = {"TURNSTILE_WATCHDOG_INTERVAL": "1h"}


@pytest.mark.whole
async def test_four_replicas_that_start_cold_into_a_full_queue_never_overshoot(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    count, one, seven = 5_000, tmp_path / "one.jsonl", tmp_path / "seven.jsonl"
    bodies = [
        {"action_ref": "record", "parameters": {"file": str(one)}}
        if n % 10 == 0
        else {"action_ref": "record.seven", "parameters": {"file": str(seven)}}
        for n in range(count)
    ]
    async with start_env(workers=2) as env:
        await env.executor.stop()
        # Everything waits in the broker when the four start at once.
        await submit(env.amqp_url, bodies)
        await asyncio.gather(*(env.system.start_executor() for _ in range(4)))
        await env.history.ended(count, deadline_seconds=110)
        assert await env.history.peak_attempts("record") == 1
        assert await env.history.peak_attempts("record.seven") <= 7
        for ref in ("record", "record.seven"):
            granted = await env.history.grant_order(ref)
            assert granted == sorted(granted)
    assert peak_runs(runs_in(one)) == 1
    assert peak_runs(runs_in(seven)) <= 7


@pytest.mark.asyncio(loop_scope="module")
async def test_a_changed_limit_acts_at_once_and_kills_nothing(env: Environment) -> None:
    await env.patch("hold", max_concurrent=10)
    ids = await env.submit_many([{"action_ref": "hold"}] * 40)
    await env.until_running(ids[:10])
    await env.patch("hold", max_concurrent=2)
    await env.until_running(ids[:10])
    # Eight end: two run on, and nothing is granted before fewer than two run.
    await env.cancel(*ids[:8])
    await env.until_running(ids[8:10])
    await env.cancel(ids[8])
    await env.until_running(ids[9:11])
    await env.patch("hold", max_concurrent=10)
    await env.until_running(ids[9:19])
    await env.patch("hold", max_concurrent=0)
    await env.cancel(*ids[9:19])
    await env.until_running([])
    assert (await env.stats("hold"))["queue_length"] == 21
    await env.patch("hold", max_concurrent=None)
    await env.until_running(ids[19:])
    await env.stop_running()


@pytest.mark.asyncio(loop_scope="module")
@sizes("depth", short=1_000, whole=100_000)
async def test_a_full_and_very_deep_queue_delays_no_other(env: Environment, depth: int) -> None:
    ref = f"hold.{depth}"
    await env.put(ref, max_concurrent=1, entrypoint="tests.e2e.actions:hold")
    await submit(env.amqp_url, [{"action_ref": ref}] * depth)

    async def all_wait() -> bool:
        return bool((await env.stats(ref))["queue_length"] == depth - 1)

    await until(all_wait, f"{depth - 1} waiting", deadline_seconds=100)
    for number in range(10):
        other = await env.submit("noop", parameters={"number": number})
        assert await env.ended(other, deadline_seconds=2) == ["completed"]
    (ids,) = await env.history.rows(
        "SELECT min(id), max(id) FROM ledger.execution WHERE action_ref = $1", ref
    )
    assert (await env.get(ids["max"]))["position"] == depth - 1
    await env.patch(ref, max_concurrent=0)
    await env.cancel(ids["min"])
    await env.until_running([])


async def test_executors_that_start_beside_a_full_queue_grant_nothing_before_a_real_end(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    gates = [tmp_path / f"gate-{n}" for n in range(8)]
    async with start_env() as env:
        await env.patch("gate", max_concurrent=3)
        ids = await env.submit_many(
            [{"action_ref": "gate", "parameters": {"file": str(gate)}} for gate in gates]
        )
        await env.until_running(ids[:3])
        await env.executor.kill()
        await asyncio.gather(*(env.system.start_executor() for _ in range(2)))
        # They have swept several times, and a request shows that they take new work.
        async with httpx.AsyncClient(base_url=f"{env.system.executors[-1].http_url}/api/v1") as http:
            await http.post("/executions", json={"action_ref": "noop"})
            await env.history.ended(1)
            assert (await http.get("/actions/gate/queue-stats")).json()["queue_length"] == 5
        await env.until_running(ids[:3])
        for number, gate in enumerate(gates):
            gate.touch()
            await env.history.ended(number + 2)
        rows = await env.history.rows(
            "SELECT scheduled_at, completed_at FROM ledger.execution WHERE id = ANY ($1) ORDER BY id",
            ids,
        )
        assert await env.history.peak_attempts("gate") == 3
    # The n-th is granted with the end that made room for it, or later: the gates open one by one.
    assert all(
        row["scheduled_at"] >= earlier["completed_at"] for earlier, row in zip(rows, rows[3:], strict=False)
    )


def some_tiny(chance: random.Random) -> dict[str, Any]:
    # As many as can run side by side, so that all queues end together.
    (ref,), key = chance.choices(list(LIMITS), weights=list(LIMITS.values())), chance.choice(KEYS)
    seconds = chance.choice([0, 0, 0, chance.random() / 100])
    return {"action_ref": ref, "concurrency_key": key, "parameters": {"seconds": seconds}}


async def submit_at_random(env: Environment, chance: random.Random, count: int, *, over_http: bool) -> None:
    """Submit in bursts of any size with pauses, so that queues are sometimes empty, sometimes full."""
    async with publishing(env.amqp_url) as publisher:
        while count > 0:
            bodies = [some_tiny(chance) for _ in range(min(count, chance.choice([1, 1, 2, 5, 20, 100])))]
            if over_http:
                await env.submit_many(bodies)
            else:
                await publisher.publish([request(body) for body in bodies])
            count -= len(bodies)
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.05]))


@pytest.mark.alone
@sizes("count", short=500, whole=10_000)
async def test_in_thousands_of_interleavings_no_slot_stays_free_beside_a_waiting_execution(
    start_env: StartEnvironment, count: int
) -> None:
    settings = {**NO_WATCHDOG, "TURNSTILE_WORKER_CONCURRENCY": "40"}
    async with start_env(executors=2, workers=2, settings=settings) as env:
        chances = [random.Random(SEED + n) for n in range(4)]
        await asyncio.gather(
            *(submit_at_random(env, each, count // 4, over_http=n == 0) for n, each in enumerate(chances))
        )
        ended = -1
        # As slow as the machine is: nothing heals here, so what is stuck remains so.
        while ended < count:
            more = "SELECT count(*) > $1 FROM ledger.execution WHERE completed_at IS NOT NULL"
            await env.history.until(more, ended, deadline_seconds=15)
            ended = await env.history.value(
                "SELECT count(*) FROM ledger.execution WHERE completed_at IS NOT NULL"
            )
        assert (
            await env.history.value(
                "SELECT count(*) FROM ledger.current_execution WHERE status = 'completed'"
            )
            == count
        )
        rows = await env.history.rows(
            "SELECT action_ref, key, queued_at, started_at, completed_at FROM ledger.execution"
        )
    queues: dict[tuple[str, str], list[tuple[datetime, datetime, datetime]]] = {}
    for row in rows:
        instants = (row["queued_at"], row["started_at"], row["completed_at"])
        queues.setdefault((row["action_ref"], row["key"]), []).append(instants)
    assert len(queues) == len(LIMITS) * len(KEYS)
    for (ref, _), times in queues.items():
        assert peak_concurrency((started, ended) for _, started, ended in times) == LIMITS[ref]
        assert longest_idle_seconds(times, LIMITS[ref]) < IDLE_SECONDS_MAX
    waited = sum(
        (granted - queued).total_seconds() > 0.001 for each in queues.values() for queued, granted, _ in each
    )
    assert waited > count / 2, "hardly any execution waited: nothing was interleaved"


def longest_idle_seconds(times: Sequence[tuple[datetime, datetime, datetime]], limit: int) -> float:
    """Return for how long a slot was free beside a waiting execution at most: queued, granted, ended."""
    changes = [(queued, 1, 0) for queued, _, _ in times]
    changes += [(granted, -1, 1) for _, granted, _ in times] + [(ended, 0, -1) for _, _, ended in times]
    waiting = held = 0
    idle_since: datetime | None = None
    longest = 0.0
    for at, together in groupby(sorted(changes), key=lambda change: change[0]):
        for _, more_waiting, more_held in together:
            waiting, held = waiting + more_waiting, held + more_held
        if idle_since is not None:
            longest = max(longest, (at - idle_since).total_seconds())
        idle_since = (idle_since or at) if waiting and held < limit else None
    return longest
