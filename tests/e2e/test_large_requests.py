"""Large requests: the executor holds a bounded number of bytes, goes on answering, and takes all in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.history import history_of
from tests.support.processes import Service, running
from tests.support.sizes import sizes
from tests.support.traffic import ask, publishing, request, until
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.database import Database
from turnstile.common.messages import ACCEPTED, REJECTED
from turnstile.executor.queue_manager import QueueManager

_MEMORY_MB_MAX = 384
"""What the deployment files allow an executor."""
_LIVE_SECONDS_MAX = 4.0
"""Under 1 s where processors are free; where the event loop is held it is tens of seconds."""
_BODY_BYTES = 250_000


def peak_mb(service: Service) -> float:
    status = Path(f"/proc/{service.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@asynccontextmanager
async def _kept_alive(service: Service) -> AsyncIterator[list[float]]:
    """Ask /livez all the time; the list gets how long each answer took."""
    answers: list[float] = []

    async def poll() -> None:
        async with httpx.AsyncClient(timeout=20) as http:
            while True:
                asked_at = time.monotonic()
                assert (await http.get(f"{service.http_url}/livez")).status_code == 200
                answers.append(time.monotonic() - asked_at)
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as tasks:
        polling = tasks.create_task(poll(), name="livez")
        yield answers
        polling.cancel()


def _dense(number: int) -> bytes:
    """Return a request that is a hundred thousand values, each a few bytes long."""
    values = b"[]," * (_BODY_BYTES // 3)
    return b'{"action_ref":"noop","parameters":{"number":%d,"v":[%s[]]}}' % (number, values)


def _plain(number: int) -> bytes:
    return b'{"action_ref":"noop","parameters":{"number":%d,"v":"%s"}}' % (number, b"x" * _BODY_BYTES)


@pytest.mark.timeout(600)
@sizes("count", short=120, whole=2000)
@pytest.mark.parametrize("body", [_plain, _dense], ids=["plain", "dense"])
async def test_many_large_requests_fill_neither_the_memory_nor_the_time_of_the_executor(
    database_url: str, amqp_url: str, count: int, body: Callable[[int], bytes]
) -> None:
    await _define_noop(database_url)
    async with publishing(amqp_url) as publisher:
        for start in range(0, count, 40):
            await publisher.publish([request(body(start + n)) for n in range(min(40, count - start))])
    async with (
        running(database_url, amqp_url, workers=0) as system,
        history_of(database_url) as history,
        _kept_alive(system.executors[0]) as answers,
    ):

        async def admitted() -> bool:
            return bool(await history.value("SELECT count(*) = $1 FROM execution", count))

        await until(admitted, f"{count} large requests are admitted", deadline_seconds=60 + count / 5)
        rows = await history.rows("SELECT parameters->>'number' AS number FROM execution ORDER BY id")
        assert [int(row["number"]) for row in rows] == [*range(count)]
        assert peak_mb(system.executors[0]) < _MEMORY_MB_MAX
        assert max(answers) < _LIVE_SECONDS_MAX
        assert await history.faults() == []


async def test_a_huge_message_is_refused_by_its_size_answered_and_kept_and_the_others_run(
    database_url: str, amqp_url: str
) -> None:
    await _define_noop(database_url)
    huge = b" " * (40 * 1024 * 1024)

    def messages(reply_to: str) -> list[Outgoing]:
        small = [request({"action_ref": "noop"}, reply_to=reply_to) for _ in range(20)]
        return [*small[:10], request(huge, reply_to=reply_to), *small[10:]]

    async with running(database_url, amqp_url, workers=0) as system:
        idle_mb = peak_mb(system.executors[0])
        replies = await ask(amqp_url, messages)
        assert [kind for kind, _ in replies] == [ACCEPTED] * 10 + [REJECTED] + [ACCEPTED] * 10
        refused = replies[10][1]
        assert refused["code"] == "too_large"
        assert "bytes; send a reference" in refused["message"]
        assert peak_mb(system.executors[0]) < idle_mb + 20
        async with history_of(database_url) as history:
            (letter,) = await history.dead_letters(1)
        assert (letter["code"], letter["body_bytes"], letter["body"]) == ("rejected", len(huge), b"")
        assert peak_mb(system.executors[0]) < idle_mb + 30


async def _define_noop(database_url: str) -> None:
    """Define an action that starts nothing."""
    database = Database(database_url, application_name="test")
    await database.open()
    await QueueManager(database).put_actions([ActionDefinition(ref="noop", max_concurrent=0)])
    await database.close()
