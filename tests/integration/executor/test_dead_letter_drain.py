"""The drain stores every dead letter as one row, and retention keeps their number bounded."""

import asyncio
import math
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import aio_pika
import pytest
from pydantic import SecretStr

from tests.integration.executor.dead_letter_queue import (
    OPERATOR,
    DeadLetterQueue,
    dead_letter_queue,
    dead_letter_under,
    draining,
    letter_bodies,
)
from tests.support.brokers import message, take
from tests.support.traffic import until
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EXECUTOR_REQUESTS,
    declare_executor,
)
from turnstile.common.database import Database
from turnstile.common.domain.errors import StatementTimeout
from turnstile.executor.dead_letters.drain import Drain
from turnstile.executor.dead_letters.message import HEADERS_BYTES_MAX, StoredDeadLetter, storable_headers
from turnstile.executor.dead_letters.store import Selection
from turnstile.executor.retention import Pruner
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.sql import statements

ALL = Selection(all=True)
KEY = "execution.requested"


@pytest.fixture
async def dlq(database_url: str, amqp_url: str) -> AsyncIterator[DeadLetterQueue]:
    """A queue that only the test drains."""
    async with dead_letter_queue(database_url, amqp_url) as dlq:
        yield dlq


async def publish_raw(
    dlq: DeadLetterQueue, body: bytes, headers: Mapping[str, Any], **properties: Any
) -> None:
    """Publish to the dead letters what our own publisher would not."""
    async with await aio_pika.connect(dlq.amqp_url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(DEAD_LETTER_EXCHANGE)
        raw = aio_pika.Message(body, headers=dict(headers), **properties)
        await exchange.publish(raw, routing_key="any")


async def drained(dlq: DeadLetterQueue, count: int, **settings: object) -> list[StoredDeadLetter]:
    async with draining(dlq.database, dlq.amqp_url, **settings):
        return await dlq.stored(count)


DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"deeper": DEEP}
HOSTILE: dict[str, dict[str, Any]] = {
    "NUL in text": {"x-error-code": "a\0b", "x-error": "\0" * 5000, "mine": "a\0b", "na\0me": 1},
    "a code that is a table": {"x-error-code": {"a": [1]}, "x-original-routing-key": 7, "x-tries": "many"},
    "one header of 100 KB": {"large": "x" * 100_000},
    "thousands of headers": {f"header-{n}": "y" * 20 for n in range(3000)},
    "nested tables": {"deep": DEEP, "list": [[[[[[[[[[1]]]]]]]]]]},
    "large numbers": {"large": 2**63 - 1, "double": 1.5, "x-tries": 2**62},
    "instants of other times": {"x-error-code": "c", "x-died-at": "0001-01-01T00:00:00+14:00"},
    "an instant in words": {"x-error-code": "c", "x-died-at": "yesterday"},
    "a death that is none": {"x-death": [{"reason": None, "routing-keys": [5], "time": "now"}]},
    "a death of another kind": {"x-death": "dead"},
    "bytes": {"raw": bytearray(b"\xff\xfe")},
    "a long routing key": {"x-original-routing-key": "k" * 3000},
}


async def test_a_dead_letter_with_any_headers_and_body_is_stored(dlq: DeadLetterQueue) -> None:
    for name, headers in HOSTILE.items():
        await publish_raw(dlq, name.encode(), headers, message_id=name)
    await publish_raw(dlq, b"\0\xff" * 100, {}, message_id="n\0ul", app_id="\0", type="\0")
    await dlq.publisher.publish([dead_letter_under(KEY, b"behind them")])
    found = {letter.body: letter for letter in await drained(dlq, len(HOSTILE) + 2)}
    nul = found[b"NUL in text"]
    assert (nul.code, nul.error, nul.headers["na?me"]) == ("a?b", "?" * 1000, 1)
    assert nul.headers["mine"] == {"cut": "a?b", "bytes": 3}
    assert found[b"one header of 100 KB"].headers["large"] == {"cut": "x" * 1000, "bytes": 100_000}
    many = found[b"thousands of headers"].headers
    assert many["..."] == {"omitted": 3000 - (len(many) - 1)}
    assert sum(len(name) + len(str(value)) for name, value in many.items()) <= HEADERS_BYTES_MAX
    assert "..." in str(found[b"nested tables"].headers["deep"])
    assert found[b"large numbers"].tries == 2**31 - 1
    assert found[b"bytes"].headers["raw"] == b64encode(b"\xff\xfe").decode()
    assert (found[b"\0\xff" * 100].message_id, found[b"\0\xff" * 100].type) == ("n?ul", "?")
    # A replay publishes what it can, and breaks no connection.
    dealt = await dlq.store.replay(ALL, limit=100, changed_by=OPERATOR)
    assert dealt.done + len(dealt.refused) == len(HOSTILE) + 2
    assert b"behind them" in [each.body for each in await take_ready(dlq)]


def test_a_header_that_json_cannot_represent_is_stored_as_text() -> None:
    # RabbitMQ takes no such number, another broker may.
    assert storable_headers({"a": math.nan, "b": [-math.inf]}) == {"a": "nan", "b": ["-inf"]}


async def take_ready(dlq: DeadLetterQueue) -> list[Any]:
    count = await dlq.ready(EXECUTOR_REQUESTS)
    return await take(dlq.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=100), count)


async def test_a_dead_letter_that_the_database_refuses_is_stored_by_its_body_alone(
    dlq: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.dead_letters.message._text", lambda value: value)
    await publish_raw(dlq, b"spoilt", {}, message_id="a\0b")
    await dlq.publisher.publish([dead_letter_under(KEY, b"good")])
    spoilt, good = await drained(dlq, 2)
    assert (spoilt.body, spoilt.code, spoilt.message_id) == (b"spoilt", "unexplained", None)
    assert "cannot be stored" in spoilt.error
    assert (good.body, good.code) == (b"good", "unknown_action")


async def test_an_oversized_body_is_truncated_and_replayed_only_with_another_body(
    dlq: DeadLetterQueue,
) -> None:
    large = b"x" * 200_000
    await dlq.publisher.publish([replace(dead_letter_under(KEY, large), message_id="m")])
    (letter,) = await drained(dlq, 1, parameters_bytes_max=1024, event_result_max_bytes=0)
    assert (letter.body_truncated, letter.body_bytes) == (True, 200_000)
    row = await dlq.database.fetchrow("SELECT octet_length(body) AS n, stored_bytes FROM ledger.dead_letter")
    assert row is not None
    assert row["n"] == 64 * 1024 < row["stored_bytes"] < 70_000
    dealt = await dlq.store.replay(ALL, limit=1, changed_by=OPERATOR)
    assert dealt.done == 0
    assert "body of 200000 bytes" in dealt.refused[0][1]
    assert (
        await dlq.store.replay(Selection(names=("m",)), limit=1, changed_by=OPERATOR, body=b"{}")
    ).done == 1


async def test_a_dead_letter_delivered_again_after_it_was_stored_is_one_row(dlq: DeadLetterQueue) -> None:
    dead = [dead_letter_under(KEY, str(n).encode()) for n in range(30)]
    settings = ExecutorSettings(amqp_url=SecretStr(dlq.amqp_url))
    # One dead letter of the broker itself: its header changes with each delivery.
    requests = dlq.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10)
    await dlq.publisher.publish([*dead, message(KEY, b"rejected", exchange="executions")])
    requests.reject(await take(requests, 1), requeue=False)

    class Cut(Database):
        """Stores, and never answers: the drain cannot acknowledge."""

        async def fetch(self, query: str, *arguments: object) -> Any:
            await dlq.database.fetch(query, *arguments)
            stored.set()
            await asyncio.Event().wait()

    for _ in range(3):
        stored = asyncio.Event()
        cut = Drain(settings, Cut("", application_name="test"), make_room=pruner(dlq).prune_dead_letters)
        running = asyncio.create_task(cut.run(asyncio.Event(), declare=declare_executor))
        await asyncio.wait_for(stored.wait(), 20)
        running.cancel()
        await asyncio.wait({running})
    assert await dlq.all() != []
    found = await drained(dlq, 31)
    assert len({letter.fingerprint for letter in found}) == 31


async def test_a_dead_letter_that_the_database_never_finishes_to_store_delays_no_other(
    dlq: DeadLetterQueue, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Database):
        async def fetch(self, query: str, *arguments: object) -> Any:
            if query == statements("dead_letters/dead_letters.sql")["store"] and b"endless" in cast(
                "list[bytes]", arguments[1]
            ):
                raise StatementTimeout("database: the statement was not finished")
            return await dlq.database.fetch(query, *arguments)

        async def fetchrow(self, query: str, *arguments: object) -> Any:
            return await dlq.database.fetchrow(query, *arguments)

    dead = [dead_letter_under(KEY, body) for body in (b"before", b"endless", b"behind")]
    await dlq.publisher.publish(dead)
    async with draining(Slow("", application_name="test"), dlq.amqp_url):
        stored = await dlq.stored(2)
    assert sorted(letter_bodies(stored)) == [b"before", b"behind"]
    (dropped,) = [each for each in caplog.records if each.getMessage() == "dead_letter_dropped"]
    assert dropped.__dict__["body"] == "endless"


def numbered_letters(count: int, body_bytes: int = 10) -> list[Outgoing]:
    return [dead_letter_under(KEY, str(n).encode().ljust(body_bytes)) for n in range(count)]


def pruner(dlq: DeadLetterQueue, **settings: Any) -> Pruner:
    return Pruner(dlq.database, ExecutorSettings(**settings))


async def test_dead_letters_are_pruned_by_age_by_number_and_by_size_the_oldest_first(
    dlq: DeadLetterQueue,
) -> None:
    await dlq.publisher.publish(numbered_letters(40, 1000))
    await drained(dlq, 40)
    assert await pruner(dlq).prune_dead_letters() == 0
    await dlq.database.fetch(
        "UPDATE ledger.dead_letter SET stored_at = stored_at - interval '31 d'"
        " WHERE id IN (SELECT id FROM ledger.dead_letter ORDER BY id LIMIT 5)"
    )
    assert await pruner(dlq, retention_dead_letters="forever").prune_dead_letters() == 0
    assert await pruner(dlq).prune_dead_letters() == 5
    assert await pruner(dlq, retention_dead_letters_count=30).prune_dead_letters() == 5
    assert [int(each) for each in letter_bodies(await dlq.all())] == list(range(10, 40))
    size = (await dlq.all())[0].stored_bytes
    assert await pruner(dlq, retention_dead_letters_bytes=20 * size).prune_dead_letters() == 10
    assert [int(each) for each in letter_bodies(await dlq.all())] == list(range(20, 40))
    # The time of death in a header has no effect.
    await dlq.publisher.publish(
        [
            replace(
                dead_letter_under(KEY, b"999"),
                headers={"x-error-code": "c", "x-died-at": datetime(1999, 1, 1, tzinfo=UTC).isoformat()},
            )
        ]
    )
    assert letter_bodies(await drained(dlq, 21))[0] == b"999"
    assert await pruner(dlq).prune_dead_letters() == 0


async def test_a_flood_of_dead_letters_is_pruned_while_it_is_drained(dlq: DeadLetterQueue) -> None:
    await dlq.publisher.publish(numbered_letters(1000, 5000))
    most = 0

    async def is_over() -> bool:
        nonlocal most
        most = max(most, await dlq.database.fetchval("SELECT sum(stored_bytes) FROM ledger.dead_letter") or 0)
        bodies = letter_bodies(await dlq.all())
        return bool(bodies) and int(bodies[-1]) == 999

    bound = 500_000
    async with draining(dlq.database, dlq.amqp_url, retention_dead_letters_bytes=bound):
        await until(is_over, "the last letter is stored", deadline_seconds=30)
    assert most <= 1.5 * bound


async def test_without_a_database_the_letters_stay_in_the_broker(
    dlq: DeadLetterQueue, database_url: str
) -> None:
    await dlq.publisher.publish(numbered_letters(3))
    nowhere = Database(database_url, application_name="test")
    async with draining(nowhere, dlq.amqp_url):
        await asyncio.sleep(0.5)
        await nowhere.open()
        assert len(await dlq.stored(3)) == 3
    await nowhere.close()
    assert await dlq.ready(DEAD_LETTERS) == 0
    assert timedelta(0) <= datetime.now(UTC) - (await dlq.all())[0].stored_at
