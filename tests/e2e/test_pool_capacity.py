"""P9: actions take turns at the capacity of their pool, while workers and executors come, leave and die."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.environment import Environment, StartEnvironment
from tests.support.processes import Service
from tests.support.traffic import until

CAPACITY: Final = 10
RUNS: Final = 60
RUN_SECONDS: Final = 0.4
"""Shorter than in the incident that this gate is for: sixty runs of 5 s on ten worker slots."""
STARTS: Final = 25
PAUSE_SECONDS: Final = 0.03
STARTED_SECONDS_MAX: Final = 1.0
"""The rest of one run, and one that its worker has been offered already."""
SETTINGS: Final = {"TURNSTILE_WATCHDOG_INTERVAL": "500ms"}
LEASE: Final = {"TURNSTILE_LEASE_DURATION": "2s", "TURNSTILE_HEARTBEAT_INTERVAL": "300ms"}
_WAITS: Final = """
SELECT array_agg(extract(epoch FROM started_at - queued_at)::float8 ORDER BY started_at - queued_at)
FROM execution WHERE id = ANY ($1)
"""
_FITS: Final = """
SELECT bool_and(held <= capacity) FROM turnstile.current_pool WHERE name = 'default' AND capacity IS NOT NULL
"""


def runs(file: Path, count: int, seconds: float = RUN_SECONDS) -> list[dict[str, Any]]:
    body = {"action_ref": "record", "parameters": {"file": str(file), "seconds": seconds}}
    return [body] * count


def with_capacity(capacity: int) -> dict[str, str]:
    return {"TURNSTILE_WORKER_CONCURRENCY": str(capacity)}


@pytest.mark.parametrize("workers", [1, pytest.param(5, marks=pytest.mark.whole)])
async def test_sixty_runs_of_one_action_on_ten_worker_slots_delay_another_action_by_one_run(
    start_env: StartEnvironment, tmp_path: Path, workers: int
) -> None:
    settings = SETTINGS | with_capacity(CAPACITY // workers)
    async with start_env(workers=workers, settings=settings) as env:
        await env.put("record", max_concurrent=None)
        await env.put("noop", max_concurrent=None)
        await until_counted(env)
        ids = await env.submit_many(runs(tmp_path / "runs", RUNS))
        await env.until_status(ids[CAPACITY - 1], "running")
        others = []
        for number in range(STARTS):
            others.append(await env.submit("noop"))
            await asyncio.sleep(PAUSE_SECONDS)
            if number == STARTS // 2:
                assert (await env.stats("record"))["waiting"]["pool"] > 0, "the runs ended too early"
        assert set(await env.ended(*others)) == {"completed"}
        waits = await env.history.value(_WAITS, others)
        print(f"waits of the other action: median {waits[STARTS // 2]:.2f} s, longest {waits[-1]:.2f} s")
        # Of 25, the longest is the 99th percentile.
        assert waits[-1] < STARTED_SECONDS_MAX, waits
        assert set(await env.ended(*ids)) == {"completed"}
        await no_miscount(env)


@pytest.mark.whole
async def test_the_work_goes_on_while_workers_and_executors_join_drain_and_die(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    async with start_env(executors=2, workers=0, settings=SETTINGS | LEASE | with_capacity(2)) as env:
        await env.put("record", max_concurrent=None, max_reclaims=9)
        await env.put("noop")
        await until_counted(env)
        ids = await env.submit_many(runs(tmp_path / "runs", 300, 0.1))
        other = await env.submit("noop")
        assert (await env.stats("record"))["waiting"]["no_worker"] == 300
        assert (await capacity(env)) == 0

        first = await env.start_worker()
        await until_capacity(env, 2)
        await env.ended(other)
        second, third = await env.start_worker(), await env.start_worker()
        await until_capacity(env, 6)

        await drain(env, second)
        await until_capacity(env, 4)
        await until_some_run(env, ids)
        # One executor decides for the other.
        await env.executor.kill()
        await until_some_run(env, ids)
        await third.kill()
        # Its lease counts until it ends.
        await until_capacity(env, 2)
        await until_some_run(env, ids)
        another = await env.system.start_executor()
        env.http.base_url = f"{another.http_url}/api/v1"
        fourth = await env.start_worker(**with_capacity(6))
        await until_capacity(env, 8)
        # SIGTERM: what it runs ends, or goes back.
        await first.stop()
        await until_capacity(env, 6)
        assert set(await env.ended(*ids)) == {"completed"}
        await fourth.stop()
        await until_capacity(env, 0)
        waiting = await env.submit("noop")
        assert (await env.get(waiting))["waiting_on"]["reason"] == "no_worker"
        await env.start_worker()
        assert await env.ended(waiting) == ["completed"]
        await no_miscount(env)


async def until_counted(env: Environment) -> None:
    """Wait until an executor has looked: until then, nothing limits the first pool of an installation."""
    await env.history.until("SELECT count(*) = 1 FROM turnstile.current_pool WHERE capacity IS NOT NULL")


async def capacity(env: Environment) -> int:
    """Return what the executors have counted."""
    query = "SELECT places FROM turnstile.current_pool WHERE name = 'default'"
    return int(await env.history.value(query))


async def until_capacity(env: Environment, count: int) -> None:
    """Wait until the executors have counted this capacity; a quarter of a second and a lease are enough."""

    async def are_counted() -> bool:
        return await capacity(env) == count

    await until(are_counted, f"a capacity of {count}", deadline_seconds=10)


async def until_some_run(env: Environment, ids: list[int]) -> None:
    """Wait until ten more of these have ended."""
    ended = "SELECT count(*) FROM execution WHERE id = ANY ($1) AND completed_at IS NOT NULL"
    before = await env.history.value(ended, ids)
    assert before + 10 < len(ids), "too few are left for this test"
    await env.history.until(f"SELECT ({ended}) >= $2", ids, before + 10)


async def drain(env: Environment, worker: Service) -> None:
    (worker_id,) = await env.history.rows("SELECT id FROM worker WHERE name = $1", worker.name)
    answer = await env.http.post(f"/workers/{worker_id['id']}/drain")
    assert answer.status_code in (200, 202), answer.text


async def no_miscount(env: Environment) -> None:
    """The counts of the pools are those of the slots, and no recount had to correct one."""
    assert await env.history.faults() == []
    assert await env.history.value(_FITS)
    for executor in env.system.executors:
        assert "pools_recounted" not in executor.log.read_text()
