"""Long runs: acknowledged early, run once, and they occupy exactly the capacity of their worker (P5, P8)."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.environment import StartEnvironment, running_environment, until_logged
from tests.support.history import peak_runs, runs_in, started_in
from tests.support.processes import Service
from tests.support.proxy import Proxy, proxy_to
from tests.support.traffic import until
from turnstile.localservers import LocalServers
from turnstile.migrations.run import migrate

EARLY = "acknowledged_early"
LATE = "given_back_late"
ONE_AT_A_TIME = {
    "TURNSTILE_WORKER_CONCURRENCY": "1",
    "TURNSTILE_ACKNOWLEDGE_AFTER": "500ms",
    # A second offer must not hide the first one, which a worker keeps.
    "TURNSTILE_DISPATCH_TIMEOUT": "1h",
}


@pytest.mark.whole
async def test_a_run_of_several_acknowledgement_timeouts_runs_once_and_so_do_its_neighbours(
    own_servers: Callable[..., LocalServers], tmp_path: Path
) -> None:
    servers = await asyncio.to_thread(own_servers, consumer_timeout_seconds=3)
    database_url = servers.postgresql.create_database("turnstile")
    amqp_url = servers.rabbitmq.create_vhost("turnstile")
    await migrate(database_url)
    file = tmp_path / "record.jsonl"
    settings = {"TURNSTILE_WORKER_CONCURRENCY": "3", "TURNSTILE_ACKNOWLEDGE_AFTER": "800ms"}
    async with running_environment(database_url, amqp_url, settings=settings) as env:

        async def record(number: int, seconds: float = 0.0) -> int:
            parameters = {"file": str(file), "number": number, "seconds": seconds}
            return await env.submit("record", parameters=parameters)

        await env.patch("record", max_concurrent=None)
        await record(0)
        long_run = await record(1, seconds=10)
        number = 1
        while await env.status(long_run) != "completed":
            number += 1
            await env.until_status(await record(number, seconds=0.3), "completed")
        await record(number + 1)
        await env.history.ended(number + 2)
        log = env.worker.log.read_text()
    assert sorted(started_in(file)) == list(range(number + 2))
    assert number > 10
    assert "subscription_lost" not in log
    assert "Timeout value used" not in (servers.rabbitmq.folder / "rabbitmq-node.log").read_text()


async def test_a_drain_hands_back_a_run_that_was_acknowledged_early(start_env: StartEnvironment) -> None:
    settings = ONE_AT_A_TIME | {"TURNSTILE_DRAIN_TIMEOUT": "500ms", "TURNSTILE_STOP_GRACE": "500ms"}
    async with start_env(settings=settings) as env:
        long_run = await env.submit("hold")
        await until_logged(env.worker, EARLY)
        env.worker.signal(signal.SIGTERM)
        assert await asyncio.wait_for(env.worker.process.wait(), 20) == 0
        second = await env.start_worker()
        await env.until_status(long_run, "running")
        assert await env.worker_of(long_run) == second.name
        await env.cancel(long_run)
        assert await env.ended(long_run) == ["cancelled"]
        assert len(await env.attempts(long_run)) == 2


async def test_a_run_that_lost_its_channel_is_not_started_again_and_keeps_its_capacity(
    start_env: StartEnvironment, amqp_url: str
) -> None:
    settings = ONE_AT_A_TIME | {"TURNSTILE_ACKNOWLEDGE_AFTER": "1h"}
    async with proxy_to(amqp_url) as proxy, start_env(workers=0, settings=settings) as env:
        first = await env.start_worker(TURNSTILE_AMQP_URL=proxy.url)
        long_run = await env.submit("hold")
        await env.until_status(long_run, "running")
        waiting = await env.submit("noop")
        await env.until_offers(1)
        await cut_off(proxy, first)
        # The copy of the long run and the waiting one: the worker is full, so it takes neither.
        await env.until_offers(2)
        second = await env.start_worker()
        await env.until_status(waiting, "completed")
        assert await env.worker_of(waiting) == second.name
        assert await env.worker_of(long_run) == first.name
        await env.cancel(long_run)
        await env.ended(long_run)
        assert await env.attempts(long_run) == [(1, "cancelled")]
        assert LATE not in first.log.read_text()


async def test_a_copy_that_comes_back_to_its_worker_is_held_until_the_run_ends(
    start_env: StartEnvironment, amqp_url: str
) -> None:
    settings = ONE_AT_A_TIME | {"TURNSTILE_ACKNOWLEDGE_AFTER": "1h", "TURNSTILE_WORKER_CONCURRENCY": "2"}
    async with proxy_to(amqp_url) as proxy, start_env(workers=0, settings=settings) as env:
        worker = await env.start_worker(TURNSTILE_AMQP_URL=proxy.url)
        await env.patch("hold", max_concurrent=None)
        long_run = await env.submit("hold")
        await env.until_status(long_run, "running")
        for _ in range(3):
            await cut_off(proxy, worker)
            await env.until_offers(0)
        other = await env.submit("hold")
        await env.until_status(other, "running")
        waiting = await env.submit("noop")
        await env.until_offers(1)
        await env.cancel(long_run)
        await env.until_status(waiting, "completed")
        await env.cancel(other)
        await env.ended(other)
        await worker.stop()
        await env.until_offers(0)
        assert [len(await env.attempts(each)) for each in (long_run, other, waiting)] == [1, 1, 1]


async def cut_off(proxy: Proxy, worker: Service) -> None:
    """Break the worker's connections to the broker, and wait until it has as many new ones."""
    expected = proxy.accepted + proxy.connections
    proxy.cut()
    await until(lambda: proxy.accepted >= expected, f"{worker.name} has connected again", deadline_seconds=20)
    await worker.ready()


async def test_capacity_freed_by_long_runs_is_all_used_again(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    async with start_env(settings=ONE_AT_A_TIME | {"TURNSTILE_WORKER_CONCURRENCY": "3"}) as env:
        await env.patch("hold", max_concurrent=None)
        await env.patch("record", max_concurrent=None)
        # Without its capacity the pool would grant no more than one offer beyond the worker's own.
        await env.register_silent_worker("default")
        for number in range(2):
            long_runs = await env.submit_many([{"action_ref": "hold"}] * 3)
            await env.until_running(long_runs)
            body = {"action_ref": "record", "parameters": {"file": str(file), "seconds": 1.5}}
            waiting = await env.submit_many([body] * 4)
            # When all three are acknowledged the prefetch is 0, and no offer is delivered.
            await env.until_offers(4)
            await env.cancel(*long_runs)
            assert set(await env.ended(*waiting)) == {"completed"}
            lines = runs_in(file)[number * 8 :]
            assert len(lines) == 8
            assert peak_runs(lines) == 3


async def test_an_offer_beyond_the_capacity_of_a_second_pool_is_given_back_once_and_taken_later(
    start_env: StartEnvironment,
) -> None:
    settings = ONE_AT_A_TIME | {"TURNSTILE_ACKNOWLEDGE_AFTER": "1h", "TURNSTILE_WORKER_POOLS": "default,side"}
    async with start_env(settings=settings) as env:
        first = env.worker
        await env.patch("noop", pool="side")
        long_run = await env.submit("hold")
        await env.until_status(long_run, "running")
        waiting = await env.submit("noop")
        await until_logged(first, LATE)
        await env.until_offers(1, "worker.side")
        second = await env.start_worker(TURNSTILE_WORKER_POOLS="side")
        await env.until_status(waiting, "completed")
        assert await env.worker_of(waiting) == second.name
        assert first.log.read_text().count(LATE) == 1
        await second.stop()
        waiting = await env.submit("noop")
        await env.until_offers(1, "worker.side")
        await env.cancel(long_run)
        await env.until_status(waiting, "completed")
        assert await env.worker_of(waiting) == first.name
