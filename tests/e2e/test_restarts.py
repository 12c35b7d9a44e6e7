"""P1, P2 and P5 over restarts, drains and replicas: nothing is lost or doubled, and one executor admits."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.environment import Environment, StartEnvironment, running_environment
from tests.support.history import session_of, started_in
from tests.support.pooler import pgbouncer
from tests.support.processes import Service
from tests.support.steady import steady
from tests.support.traffic import submit, until

TAKEOVER_SECONDS = 10.0
"""Twice the promise: a hanging executor is replaced after two or three heartbeats of two seconds."""


@pytest.mark.whole
@pytest.mark.timeout(240)
async def test_of_four_executors_each_leader_killed_or_paused_is_replaced_within_seconds_down_to_the_last(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    async with start_env(executors=4, workers=2) as env:
        async with steady(env.amqp_url, tmp_path) as client:
            await client.continues("the start")
            first = await _leading(env)
            await first.kill()
            second = await _leading(env, other_than=first)
            second.signal(signal.SIGSTOP)
            third = await _leading(env, other_than=second)
            second.signal(signal.SIGCONT)
            await client.continues("the return of one that hung")
            await third.kill()
            fourth = await _leading(env, other_than=third)
            await fourth.kill()
            await _leading(env, other_than=fourth)
            await client.continues("the loss of all but one")
        await client.all_ran_once_in_order(env.history)


@pytest.mark.timeout(240)
async def test_behind_a_pooler_in_session_mode_a_killed_and_a_paused_leader_are_replaced_too(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    with pgbouncer(database_url, "session") as url:
        async with running_environment(url, amqp_url, executors=3) as env:
            async with steady(amqp_url, tmp_path) as client:
                await client.continues("the start")
                first = await _leading(env)
                await first.kill()
                second = await _leading(env, other_than=first)
                second.signal(signal.SIGSTOP)
                os.kill(_leader_pid(second), signal.SIGSTOP)
                await _leading(env, other_than=second)
                os.kill(_leader_pid(second), signal.SIGCONT)
                second.signal(signal.SIGCONT)
                await client.continues("the return of one that hung")
            await client.all_ran_once_in_order(env.history)


async def test_what_a_paused_leader_had_taken_is_admitted_once_by_its_successor(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    bodies = [{"action_ref": "record", "parameters": {"file": str(file), "number": n}} for n in range(101)]
    async with start_env(executors=2) as env:
        await submit(env.amqp_url, bodies[:1])
        await env.history.ended(1)
        first = await _leading(env)
        async with session_of(env.system.database_url) as connection, connection.transaction():
            # No turn commits while the fence is locked.
            await connection.execute("SELECT FROM ledger.leadership FOR UPDATE")
            await submit(env.amqp_url, bodies[1:51])
            first.signal(signal.SIGSTOP)
            os.kill(_leader_pid(first), signal.SIGSTOP)
        await env.history.ended(51)
        os.kill(_leader_pid(first), signal.SIGCONT)
        first.signal(signal.SIGCONT)
        await first.ready()
        (second,) = (each for each in env.system.executors if each is not first)
        await second.kill()
        await submit(env.amqp_url, bodies[51:])
        await env.history.ended(101)
        assert await env.history.value("SELECT count(*) FROM ledger.execution") == 101
        granted = await env.history.grant_order("record")
    assert granted == sorted(granted)
    assert started_in(file) == list(range(101))


def _leader_pid(executor: Service) -> int:
    """Return the process of this executor that leads or waits until it can."""
    (child,) = Path(f"/proc/{executor.pid}/task/{executor.pid}/children").read_text().split()
    return int(child)


async def _leading(env: Environment, *, other_than: Service | None = None) -> Service:
    """Return the executor whose process leads."""
    candidates = [each for each in env.system.executors if each is not other_than]
    found: list[Service] = []

    async def one_leads() -> bool:
        for each in candidates:
            async with httpx.AsyncClient(timeout=1) as http:
                with suppress(httpx.HTTPError):
                    text = (await http.get(f"{each.http_url}/metrics")).text
                    if "turnstile_leading 1" in text:
                        found[:] = [each]
        return bool(found)

    await until(one_leads, "an executor leads", deadline_seconds=TAKEOVER_SECONDS)
    return found[0]
