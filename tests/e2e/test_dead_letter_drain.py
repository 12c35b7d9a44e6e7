"""Dead letters on their way from the broker to their rows: executors that die, and several at once."""

from typing import Any

import httpx

from tests.support.brokers import until_ready
from tests.support.history import History, history_of
from tests.support.processes import running
from tests.support.traffic import publishing, request, until
from turnstile.common.broker.topology import DEAD_LETTERS
from turnstile.common.crash_points import VARIABLE, CrashPoint


async def publish_bad(amqp_url: str, count: int) -> list[str]:
    bad = [request(b"{ broken", message_id=f"bad-{n:04}") for n in range(count)]
    async with publishing(amqp_url) as publisher:
        await publisher.publish(bad)
    return [message.message_id for message in bad]


async def stored(history: History) -> list[str]:
    rows = await history.rows("SELECT message_id FROM dead_letter ORDER BY died_at, id")
    return [row["message_id"] for row in rows]


async def test_an_executor_killed_between_commit_and_acknowledgement_leaves_one_row_for_each_letter(
    database_url: str, amqp_url: str
) -> None:
    armed: Any = {VARIABLE: f"{CrashPoint.DEAD_LETTERS_STORED}:1"}
    async with (
        running(database_url, amqp_url, executors=0, workers=0) as system,
        history_of(database_url) as history,
    ):
        dies = await system.start_executor(**armed)
        sent = await publish_bad(amqp_url, 50)
        await dies.process.wait()
        before = await stored(history)
        assert before, "it died before it had committed"
        await system.start_executor()

        async def are_stored() -> bool:
            return len(await stored(history)) >= len(sent)

        await until(are_stored, "all letters are rows")
        await until_ready(amqp_url, DEAD_LETTERS, 0)
        assert await stored(history) == sent
        assert set(before) < set(sent), "some were stored before the kill, some after"


async def test_two_executors_store_each_letter_once_and_their_gauges_count_the_rows(
    database_url: str, amqp_url: str
) -> None:
    async with (
        running(database_url, amqp_url, executors=2, workers=0) as system,
        history_of(database_url) as history,
        httpx.AsyncClient() as http,
    ):
        sent = await publish_bad(amqp_url, 600)

        async def are_stored() -> bool:
            return len(await stored(history)) >= len(sent)

        await until(are_stored, "all letters are rows")
        await until_ready(amqp_url, DEAD_LETTERS, 0)
        assert await stored(history) == sent

        async def figure(url: str, name: str) -> float:
            lines: list[Any] = (await http.get(f"{url}/metrics")).text.splitlines()
            (line,) = (each for each in lines if each.startswith(f'{name}{{code="invalid_message"}}'))
            return float(line.split()[-1])

        for executor in system.executors:
            assert await figure(executor.http_url, "turnstile_dead_letters") == 600
        counted = [
            await figure(executor.http_url, "turnstile_dead_letters_stored_total")
            for executor in system.executors
        ]
        assert sum(counted) == 600
