"""Trials in which the database server is killed, with all of its processes and what they had not written.

In: an environment whose PostgreSQL server may be killed. Out: what is wrong with the whole history
afterwards. A settle without a webhook does not wait for the disk, so a crash can undo it after the broker
has forgotten the completion and has got the offer of the next execution.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, TypeAlias

from tests.proof.crash.actions import UNSERVED
from tests.proof.crash.environment import ACTIONS, Environment, purge, submit_everything
from tests.proof.crash.triggers import FakeWorker
from tests.support.brokers import ready_messages, until_ready
from tests.support.processes import Service
from tests.support.traffic import until
from turnstile.common.broker.message import Publication
from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, WORKER_RETRY, pool_queue
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import completed_message
from turnstile.localservers import PostgresServer

Trial: TypeAlias = Callable[[Environment, PostgresServer, int], Awaitable[None]]
"""Crashes the server as often as the number says."""

_REF: Final = "crash.handed-over"
_TRIES: Final = 40
"""On a busy machine other commits write a settle to the disk soon after it."""
_LEASE_SECONDS: Final = 600.0
_SETTLE_TIMEOUT: Final = "8s"
_WATCHDOG_INTERVAL: Final = "4s"
"""Long enough for a worker to start and to ask for what is lost, before the watchdog repairs it.

The commits of a watchdog write a settle to the disk too: on a busy machine every second is too often.
"""
_HAS_SLOT: Final = """
SELECT EXISTS (SELECT FROM slot s JOIN execution e ON e.id = s.execution_id WHERE e.metadata ->> 'tag' = $1)
"""


async def tried_crash(env: Environment, server: PostgresServer, name: str, times: int) -> list[str]:
    """Carry out a trial, and return what is wrong afterwards."""
    server.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    server.execute("SELECT pg_reload_conf()")
    async with env.window(name):
        await TRIALS[name](env, server, times)
        await env.kill_executor()
        await env.replace_executor()
        faults = await env.drain()
    return [*faults, *await env.faults()]


async def _lose_settle(env: Environment, server: PostgresServer, times: int) -> None:
    """The executor lives on."""
    await env.kill_executor()
    env.executor = await _start_executor(env)
    for _ in range(times):
        await _lost_settle(env, server)
        await env.executor.ready()
        await _worker_asks_for_what_is_lost(env)


async def _lose_settle_and_executor(env: Environment, server: PostgresServer, times: int) -> None:
    """No executor knows any more what it had granted."""
    for _ in range(times):
        await env.kill_executor()
        env.executor = await _start_executor(env)
        await _lost_settle(env, server)
        await env.kill_executor()
        await _worker_asks_for_what_is_lost(env)


async def _crash_under_load(env: Environment, server: PostgresServer, times: int) -> None:
    """Everything is in progress: requests, claims, settles, a retry, a cancel."""
    executor = env.executor or await env.replace_executor()
    for _ in range(3 * times):
        await submit_everything(env.client, executor.http_url)
        await asyncio.to_thread(_crash, server)
        await executor.ready()
        await env.client.post_again(executor.http_url)


TRIALS: Final[Mapping[str, Trial]] = {
    "database.settle_lost": _lose_settle,
    "database.settle_lost.with_executor": _lose_settle_and_executor,
    "database.killed_under_load": _crash_under_load,
}


async def _start_executor(env: Environment) -> Service:
    return await env.system.start_executor(
        TURNSTILE_SETTLE_TIMEOUT=_SETTLE_TIMEOUT, TURNSTILE_WATCHDOG_INTERVAL=_WATCHDOG_INTERVAL
    )


async def _lost_settle(env: Environment, server: PostgresServer) -> None:
    """Crash the server between a settle's answer and its disk; try again if another commit came between."""
    assert env.executor is not None
    env.armed = [env.executor]
    worker = FakeWorker(env=env)
    await worker.register(lease_seconds=_LEASE_SECONDS)
    tags = [await env.client.publish({"action_ref": _REF}) for _ in range(_TRIES + 1)]
    for ended, next_tag in pairwise(tags):
        await _hand_over(env, worker, ended, next_tag)
        await asyncio.to_thread(_crash, server)
        if await env.history.value(_HAS_SLOT, ended):
            assert not await env.history.value(_HAS_SLOT, next_tag), "the limit is exceeded"
            return
        await env.executor.ready()
    raise AssertionError(f"{_TRIES} settles were on disk before the server was killed")


async def _hand_over(env: Environment, worker: FakeWorker, ended: str, next_tag: str) -> None:
    """End an attempt; return when the next execution is offered and the completion is forgotten."""
    queue = pool_queue(UNSERVED)
    claimed = await worker.claim(ended)
    assert claimed is not None
    await until(lambda: purge(env.system.amqp_url, queue), f"the offer of {ended}")
    execution_id, attempt = claimed
    completion = completed_message(
        execution_id=execution_id,
        action_id=await env.history.value("SELECT action_id FROM execution WHERE id = $1", execution_id),
        action_ref=_REF,
        status=Status.COMPLETED,
        attempt=attempt,
        completed_at=datetime.now(UTC),
        app_id="worker",
    )
    await worker.finish(execution_id, attempt)
    assert await env.client.publisher.publish([completion]) == [Publication.CONFIRMED]
    await env.history.until(_HAS_SLOT, next_tag)
    await until_ready(env.system.amqp_url, queue, 1)
    assert await ready_messages(env.system.amqp_url, EXECUTOR_COMPLETIONS) == 0


async def _worker_asks_for_what_is_lost(env: Environment) -> None:
    """Start a worker that gets the offer of the lost grant; its claim is answered `unknown`."""
    worker = await env.system.start_worker(ACTIONS, TURNSTILE_WORKER_POOLS=UNSERVED)

    async def is_postponed() -> bool:
        return await ready_messages(env.system.amqp_url, WORKER_RETRY) > 0

    await until(is_postponed, "the offer is in the delay queue")
    if env.executor is None:
        await env.replace_executor()
    await env.history.until(
        f"SELECT NOT EXISTS (SELECT FROM execution e JOIN action a ON a.id = e.action_id"
        f" WHERE a.ref = '{_REF}' AND e.completed_at IS NULL)"
    )
    # A copy of the offer may still be in the delay queue, and the next trial counts offers.
    for queue in (WORKER_RETRY, pool_queue(UNSERVED)):
        await until_ready(env.system.amqp_url, queue, 0)
    await worker.stop()


def _crash(server: PostgresServer) -> None:
    server.kill()
    server.restart()
