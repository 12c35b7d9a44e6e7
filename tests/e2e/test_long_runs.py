"""Long runs outlive the connection of their worker, run once, and occupy exactly its capacity (P5, P8)."""

from tests.support.environment import StartEnvironment
from tests.support.processes import Service
from tests.support.proxy import Proxy, proxy_to
from tests.support.traffic import until


async def cut_off(proxy: Proxy, worker: Service) -> None:
    """Break the worker's connections to the broker, and wait until it has as many new ones."""
    expected = proxy.accepted + proxy.connections
    proxy.cut()
    await until(lambda: proxy.accepted >= expected, f"{worker.name} has connected again", deadline_seconds=20)
    await worker.ready()


async def test_a_run_whose_worker_lost_its_connections_is_not_started_again_and_keeps_its_capacity(
    start_env: StartEnvironment, amqp_url: str
) -> None:
    settings = {"TURNSTILE_WORKER_CONCURRENCY": "1"}
    async with proxy_to(amqp_url) as proxy, start_env(workers=0, settings=settings) as env:
        first = await env.start_worker(TURNSTILE_AMQP_URL=proxy.url)
        long_run = await env.submit("hold")
        await env.until_status(long_run, "running")
        waiting = await env.submit("noop")
        for _ in range(3):
            await cut_off(proxy, first)
        assert await env.status(waiting) == "queued"
        second = await env.start_worker()
        await env.until_status(waiting, "completed")
        assert await env.worker_of(waiting) == second.name
        assert await env.worker_of(long_run) == first.name
        await env.cancel(long_run)
        await env.ended(long_run)
        assert await env.attempts(long_run) == [(1, "cancelled")]


async def test_capacity_freed_by_long_runs_is_all_used_again(start_env: StartEnvironment) -> None:
    async with start_env(settings={"TURNSTILE_WORKER_CONCURRENCY": "3"}) as env:
        await env.patch("hold", max_concurrent=None)
        for _ in range(2):
            long_runs = await env.submit_many([{"action_ref": "hold"}] * 3)
            await env.until_running(long_runs)
            waiting = await env.submit_many([{"action_ref": "hold"}] * 3)
            await env.cancel(*long_runs)
            await env.until_running(waiting)
            await env.cancel(*waiting)
            await env.ended(*long_runs, *waiting)
