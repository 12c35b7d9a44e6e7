"""Trials in which the database server is killed, with all of its processes and what they had not written.

In: an environment whose PostgreSQL server may be killed. Out: what is wrong with the whole history
afterwards. The leader does not know what became of the turn whose answer it waits for: that turn is lost, or
committed. The leader settles it by the turn's row; another one, where the executor dies too, by its load.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Literal, TypeAlias

import asyncpg

from tests.proof.crash.environment import Environment, submit_everything
from turnstile.localservers import PostgresServer

Trial: TypeAlias = Callable[[Environment, PostgresServer], Awaitable[None]]

_WAITS: Final = """
SELECT EXISTS (
    SELECT FROM pg_stat_activity
    WHERE application_name LIKE $1 AND $2 IN (wait_event, wait_event_type) AND state = 'active'
)
"""
_LEADER: Final = "turnstile leader"
_LOCK: Final = "LOCK TABLE ledger.execution IN SHARE MODE"
_PROBE: Final = "SELECT pg_logical_emit_message(true, 'probe', '')"
"""A commit of its own, without a row."""
_STORED: Final = "SELECT count(*) FROM ledger.execution WHERE metadata ->> 'tag' = $1"
_LOAD_TIMES: Final = 3


async def tried_crash(env: Environment, server: PostgresServer, name: str, times: int) -> list[str]:
    """Carry out a trial so many times, and return what is wrong afterwards."""
    for _ in range(times):
        if env.executor is None:
            await env.replace_executor()
        await TRIALS[name](env, server)
    if env.executor is None:
        await env.replace_executor()
    return [*await env.drain(), *await env.faults()]


async def _kill_under_load(env: Environment, server: PostgresServer) -> None:
    """Everything is in progress: requests, commands, ends, a retry, a cancel."""
    assert env.executor is not None
    for _ in range(_LOAD_TIMES):
        await submit_everything(env.client, env.executor.http_url)
        await asyncio.to_thread(_crash, server)
        await env.executor.ready()
        await env.client.post_again(env.executor.http_url)


async def _kill_in_turn(
    env: Environment, server: PostgresServer, *, fate: Literal["lost", "committed"], with_executor: bool
) -> None:
    """Kill the server while the leader waits for the answer to a turn that admits a request."""
    executor = env.executor
    assert executor is not None
    holder = await asyncpg.connect(env.system.database_url)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(_LOCK)
        await env.client.publish({"action_ref": "crash.one"}, {"action_ref": "crash.two"})
        await env.history.until(_WAITS, _LEADER, "Lock")
        if fate == "committed":
            async with _commits_without_answer(env, server):
                await transaction.rollback()
                await env.history.until(_WAITS, _LEADER, "SyncRep")
        if with_executor:
            await env.kill_executor()
        await asyncio.to_thread(_crash, server)
    finally:
        holder.terminate()
    if with_executor:
        # The second request may have come too late for the turn.
        stored = await env.history.value(_STORED, str(len(env.client.log.sent) - 2))
        assert stored == (fate == "committed"), "the server was not killed at this moment"
    else:
        await executor.ready()


@asynccontextmanager
async def _commits_without_answer(env: Environment, server: PostgresServer) -> AsyncIterator[None]:
    """Let the server write commits to the disk and not answer: it waits for a standby that does not exist."""
    await asyncio.to_thread(server.execute, "ALTER SYSTEM SET synchronous_standby_names = 'none'")
    await asyncio.to_thread(server.execute, "SELECT pg_reload_conf()")
    session = await asyncpg.connect(env.system.database_url)
    probe = asyncio.create_task(session.execute(_PROBE), name="probe")
    try:
        await env.history.until(_WAITS, "%", "SyncRep")
        yield
    finally:
        # Without a reload it counts from the next start.
        await asyncio.to_thread(server.execute, "ALTER SYSTEM RESET synchronous_standby_names")
        session.terminate()
        await asyncio.gather(probe, return_exceptions=True)


TRIALS: Final[Mapping[str, Trial]] = {
    "database.turn_committed": partial(_kill_in_turn, fate="committed", with_executor=False),
    "database.turn_committed.with_executor": partial(_kill_in_turn, fate="committed", with_executor=True),
    "database.turn_lost": partial(_kill_in_turn, fate="lost", with_executor=False),
    "database.turn_lost.with_executor": partial(_kill_in_turn, fate="lost", with_executor=True),
    "database.killed_under_load": _kill_under_load,
}


def _crash(server: PostgresServer) -> None:
    server.kill()
    server.restart()
