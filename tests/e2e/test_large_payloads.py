"""Large requests and results: bounded memory in executor and worker, /livez answered, all stored in order.

Whole services: what is measured is the memory of their processes.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.environment import StartEnvironment
from tests.support.processes import Service
from tests.support.sizes import sizes
from tests.support.traffic import ask, publishing, request, submit
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTION_ACCEPTED, EXECUTION_REJECTED

_MEMORY_MB_MAX = 384
"""The limit of an executor in the deployment files."""
_LIVE_SECONDS_MAX = 4.0
"""Under 1 s with free processors; where the event loop is blocked it is tens of seconds."""
_BODY_BYTES = 250_000
_RESULT_BYTES = 1024 * 1024


def peak_mb(service: Service) -> float:
    """Return what its processes have occupied at most, each at its own worst moment."""
    states = [Path(f"/proc/{pid}/status").read_text(encoding="ascii") for pid in service.pids]
    return sum(int(state.partition("VmHWM:")[2].split()[0]) for state in states) / 1024


@asynccontextmanager
async def _probed(service: Service) -> AsyncIterator[list[float]]:
    """Request /livez all the time; lends the duration of each answer."""
    answers: list[float] = []

    async def poll() -> None:
        async with httpx.AsyncClient(timeout=20) as http:
            while True:
                began = time.monotonic()
                assert (await http.get(f"{service.http_url}/livez")).status_code == 200
                answers.append(time.monotonic() - began)
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as tasks:
        polling = tasks.create_task(poll(), name="livez")
        yield answers
        polling.cancel()


def _dense(number: int) -> bytes:
    """Return a request of a hundred thousand values: decoded, it takes twenty times its bytes."""
    values = b"[]," * (_BODY_BYTES // 3)
    return b'{"action_ref":"noop","parameters":{"number":%d,"v":[%s[]]}}' % (number, values)


@pytest.mark.timeout(600)
@sizes("count", short=80, whole=2000)
async def test_many_large_requests_fill_neither_the_memory_nor_the_time_of_the_executor(
    start_env: StartEnvironment, amqp_url: str, count: int
) -> None:
    async with start_env(workers=0) as env:
        await env.put("noop", max_concurrent=0)
    async with publishing(amqp_url) as publisher:
        for start in range(0, count, 40):
            await publisher.publish([request(_dense(start + n)) for n in range(min(40, count - start))])
    async with start_env(workers=0) as env, _probed(env.executor) as answers:
        admitted = "SELECT count(*) = $1 FROM ledger.execution"
        await env.history.until(admitted, count, deadline_seconds=60 + count / 5)
        rows = await env.history.rows(
            "SELECT parameters->>'number' AS number FROM ledger.execution ORDER BY id"
        )
        assert [int(row["number"]) for row in rows] == [*range(count)]
        assert peak_mb(env.executor) < _MEMORY_MB_MAX
        assert max(answers) < _LIVE_SECONDS_MAX


async def test_a_huge_message_is_rejected_by_its_size_and_stored_and_the_others_run(
    start_env: StartEnvironment,
) -> None:
    huge = b" " * (40 * 1024 * 1024)

    def messages(reply_to: str) -> list[Outgoing]:
        small = [request({"action_ref": "noop"}, reply_to=reply_to) for _ in range(20)]
        return [*small[:10], request(huge, reply_to=reply_to), *small[10:]]

    async with start_env(workers=0) as env:
        await env.put("noop", max_concurrent=0)
        idle_mb = peak_mb(env.executor)
        replies = await ask(env.amqp_url, messages)
        assert [kind for kind, _ in replies] == [EXECUTION_ACCEPTED] * 10 + [EXECUTION_REJECTED] + [
            EXECUTION_ACCEPTED
        ] * 10
        refused = replies[10][1]
        assert refused["code"] == "too_large"
        assert "bytes; send a reference" in refused["message"]
        assert peak_mb(env.executor) < idle_mb + 20
        async with publishing(env.amqp_url) as publisher:
            await publisher.publish([request(huge)])
        (letter,) = await env.history.dead_letters(1)
        assert (letter["code"], letter["body_bytes"], letter["body"]) == ("rejected", len(huge), b"")
        assert peak_mb(env.executor) < idle_mb + 30


@pytest.mark.whole
@pytest.mark.timeout(300)
async def test_large_results_that_end_together_are_in_memory_once_each_and_all_are_stored(
    start_env: StartEnvironment,
) -> None:
    count = 500
    async with start_env(settings={"TURNSTILE_WORKER_CONCURRENCY": str(count)}) as env:
        idle_mb = peak_mb(env.worker)
        parameters = {"size_bytes": _RESULT_BYTES, "ends_at": time.time() + 4}
        await submit(env.amqp_url, [{"action_ref": "large", "parameters": parameters}] * count)
        # It takes 46 s on an idle machine of two cores, and `make whole` runs other tests beside it.
        await env.history.ended(count, deadline_seconds=200)
        stored = (
            "SELECT count(*) FROM ledger.execution WHERE status = 'completed' AND length(result::text) = $1"
        )
        assert await env.history.value(stored, _RESULT_BYTES) == count
        # Each once, one statement's worth being encoded and sent, and what the allocator cannot reuse.
        assert peak_mb(env.worker) < idle_mb + 1.25 * count + 100
