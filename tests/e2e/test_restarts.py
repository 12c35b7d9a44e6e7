"""P1, P2 and P5 over restarts, drains and replicas: nothing is lost or doubled, and one executor admits."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.support.environment import Environment, StartEnvironment, until_logged
from tests.support.history import session_of, started_in
from tests.support.partition import partitionable
from tests.support.processes import Service
from tests.support.steady import steady
from tests.support.traffic import publishing, request, submit, until
from turnstile.common.lifecycle import EXIT_NOT_STOPPED

FAST_STOP = {"TURNSTILE_DRAIN_TIMEOUT": "0s", "TURNSTILE_STOP_GRACE": "250ms"}
TAKEOVER_SECONDS = 10.0
"""Twice the promise: a hanging executor is replaced after two or three heartbeats of two seconds."""
_ADMITTING = """
SELECT count(*) = $1 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%turnstile.admit(%'
"""


@asynccontextmanager
async def admission_blocked(database_url: str) -> AsyncIterator[Callable[[int], Awaitable[bool]]]:
    """Lock the rows of all queues; lends a check of the number of sessions that wait in order to admit."""
    async with session_of(database_url) as connection:

        async def admitting(count: int) -> bool:
            # A transaction reads one snapshot of the activity until it clears it.
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            return bool(await connection.fetchval(_ADMITTING, count))

        async with connection.transaction():
            await connection.execute("SELECT FROM action_queue FOR UPDATE")
            yield admitting


async def test_a_restarted_executor_loses_and_doubles_nothing(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    bodies = [{"action_ref": "record", "parameters": {"file": str(file), "number": n}} for n in range(300)]
    async with start_env() as env:
        await submit(env.amqp_url, bodies)
        for _ in range(3):
            await asyncio.sleep(0.2)
            assert await env.system.executors[-1].stop() == 0
            await env.system.start_executor()
        await env.history.ended(300)
    assert started_in(file) == list(range(300))


async def test_a_drained_worker_finishes_what_runs_and_gives_back_what_does_not_end(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    parameters = {"file": str(tmp_path / "record.jsonl"), "seconds": 1.0}
    settings = {"TURNSTILE_DRAIN_TIMEOUT": "3s", "TURNSTILE_STOP_GRACE": "500ms"}
    async with start_env(settings=settings) as env:
        short = await env.submit("record", parameters=parameters)
        hanging = await env.submit("scripted", parameters={"steps": ["HANG", "OK"]})
        await env.until_running([short, hanging])
        env.worker.signal(signal.SIGTERM)
        # Its capacity counts no longer, and the last ones that it runs are shown.
        await env.history.until("SELECT draining_at IS NOT NULL AND draining_count = 2 FROM worker")
        assert await asyncio.wait_for(env.worker.process.wait(), 20) == 0
        assert await env.status(short) == "completed"
        await env.start_worker()
        await env.ended(hanging)
        assert await env.attempts(hanging) == [(1, "handed_back"), (2, "completed")]


async def test_a_worker_that_is_drained_or_told_twice_ends_with_what_it_cannot_stop_and_that_runs_again(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with partitionable(database_url, amqp_url, tmp_path, worker_settings=FAST_STOP) as it:
        ids = await it.start(["stubborn", "thread", "command"], seconds=[60.0, 0.1])
        second = await it.start_worker()
        it.worker.signal(signal.SIGTERM)
        assert await asyncio.wait_for(it.worker.process.wait(), 20) == EXIT_NOT_STOPPED
        await it.history.ended(len(ids))
        for execution_id in ids:
            last = max(tick.at for tick in it.ticks([execution_id], attempt=1))
            assert last < min(tick.at for tick in it.ticks([execution_id], attempt=2))
        # A drain, not a loss: it does not count as a reclaim.
        assert await it.attempts(ids) == [(1, "handed_back"), (2, "completed")] * 3
        assert await it.history.value("SELECT count(*) FROM worker WHERE stopped_at IS NOT NULL") == 1
        log = it.worker.log.read_text()
        assert "not_stopped_in_time" in log
        assert f"executions={ids[0]},{ids[1]}" in log

        await it.start(["stubborn", "thread"], seconds=[60.0])
        second.signal(signal.SIGTERM)
        await until_logged(second, "draining")
        second.signal(signal.SIGTERM)
        # Otherwise it would wait for 30 s, and then for ever.
        assert await asyncio.wait_for(second.process.wait(), 10) == EXIT_NOT_STOPPED
        await it.env.stop_running()

        third = await it.start_worker(**FAST_STOP)
        ids = await it.start(["stubborn"], seconds=[60.0, 0.1])
        worker_id = await it.history.value("SELECT id FROM worker WHERE name = $1", third.name)
        assert (await it.env.http.post(f"/workers/{worker_id}/drain")).is_success
        assert await asyncio.wait_for(third.process.wait(), 20) == EXIT_NOT_STOPPED
        assert await it.attempts(ids) == [(1, "handed_back")]


@pytest.mark.whole
@pytest.mark.timeout(240)
async def test_of_four_executors_each_admitter_killed_or_paused_is_replaced_within_seconds_down_to_the_last(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    # At this level every refusal is logged: a probe that a killed executor had not acknowledged comes twice.
    each_refusal = {"TURNSTILE_LOG_LEVEL": "DEBUG"}
    async with start_env(executors=4, workers=2, executor_settings=each_refusal) as env:
        async with steady(env.amqp_url, tmp_path) as client:
            await client.continues("the start")
            first = await _admitting(env)
            await first.kill()
            second = await _admitting(env, other_than=first)
            second.signal(signal.SIGSTOP)
            third = await _admitting(env, other_than=second)
            second.signal(signal.SIGCONT)
            await client.continues("the return of one that hung")
            await third.kill()
            fourth = await _admitting(env, other_than=third)
            await fourth.kill()
            await _admitting(env, other_than=fourth)
            await client.continues("the loss of all but one")
        await client.all_ran_once_in_order(env.history)


@pytest.mark.timeout(120)
async def test_one_executor_settles_and_when_it_is_paused_or_killed_another_takes_over_within_seconds(
    start_env: StartEnvironment,
) -> None:
    async with start_env(executors=2, workers=1) as env:
        first, second = env.system.executors
        await _end_twenty(env, second)
        if await _settled(first) < await _settled(second):
            first, second = second, first
        await _end_twenty(env, second)
        assert [await _settled(first), await _settled(second)] == [40, 0]
        first.signal(signal.SIGSTOP)
        await _end_twenty(env, second)
        taken_over = await _settled(second)
        # A completion that the watchdog published meanwhile too counts twice if both copies are in one batch.
        assert taken_over >= 20
        first.signal(signal.SIGCONT)
        await first.ready()
        before = await _settled(first)
        await _end_twenty(env, first)
        assert [await _settled(first), await _settled(second)] == [before, taken_over + 20]
        await second.kill()
        await _end_twenty(env, first)
        assert await _settled(first) >= before + 20


async def _end_twenty(env: Environment, executor: Service) -> None:
    """Submit executions to this executor, and wait until they are settled."""
    async with httpx.AsyncClient(base_url=f"{executor.http_url}/api/v1", timeout=30) as http:
        ids = await replace(env, http=http).submit_many([{"action_ref": "one"}] * 20)
    await env.ended(*ids, deadline_seconds=TAKEOVER_SECONDS)


async def _settled(executor: Service) -> int:
    """Return how many executions this executor has settled."""
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"{executor.http_url}/metrics")).text.splitlines()
    name = 'turnstile_settled_total{status="completed"}'
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))


async def test_what_a_paused_executor_and_its_successor_both_admit_is_admitted_once(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    bodies = [{"action_ref": "record", "parameters": {"file": str(file), "number": n}} for n in range(101)]
    settings = {"TURNSTILE_DISPATCH_TIMEOUT": "1s", "TURNSTILE_LOCK_TIMEOUT": "1m"}
    async with start_env(executors=2, settings=settings) as env:
        await submit(env.amqp_url, bodies[:1])
        await env.history.ended(1)
        first = await _admitting(env)
        async with admission_blocked(env.system.database_url) as admitting:
            await submit(env.amqp_url, bodies[1:51])
            await until(lambda: admitting(1), "it admits, and waits for the queue")
            first.signal(signal.SIGSTOP)
            await until(
                lambda: admitting(2), "its successor admits the same", deadline_seconds=TAKEOVER_SECONDS
            )
        await env.history.ended(51)
        first.signal(signal.SIGCONT)
        (second,) = (each for each in env.system.executors if each is not first)
        await first.ready()
        await second.kill()
        await submit(env.amqp_url, bodies[51:])
        await env.history.ended(101)
        assert await env.history.value("SELECT count(*) FROM execution") == 101
        granted = await env.history.grant_order("record")
    assert granted == sorted(granted)
    assert started_in(file) == list(range(101))


async def _admitting(env: Environment, *, other_than: Service | None = None) -> Service:
    """Return the executor that consumes the requests: the one that logs the refusal of a bad one."""
    probe = request({"action_ref": "unknown.action"})
    candidates = [each for each in env.system.executors if each is not other_than]
    found: list[Service] = []

    async def one_logs_it() -> bool:
        found[:] = [each for each in candidates if probe.message_id in each.log.read_text()]
        return bool(found)

    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([probe])
    await until(one_logs_it, "an executor admits", deadline_seconds=TAKEOVER_SECONDS)
    return found[0]
