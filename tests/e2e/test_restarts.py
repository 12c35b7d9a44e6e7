"""What a paused leader had taken is admitted once, by its successor (P1, P2, P5).

Whole services: the leader is a process that is stopped between a message and its commit.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

import httpx

from tests.support.environment import Environment, StartEnvironment
from tests.support.history import session_of, started_in
from tests.support.processes import Service
from tests.support.traffic import submit, until


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


async def _leading(env: Environment) -> Service:
    """Return the executor whose process leads."""
    found: list[Service] = []

    async def one_leads() -> bool:
        for each in env.system.executors:
            async with httpx.AsyncClient(timeout=1) as http:
                with suppress(httpx.HTTPError):
                    text = (await http.get(f"{each.http_url}/metrics")).text
                    if "turnstile_leading 1" in text:
                        found[:] = [each]
        return bool(found)

    await until(one_leads, "an executor leads")
    return found[0]
