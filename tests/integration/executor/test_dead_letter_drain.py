"""Draining dead letters: every message becomes one row, whatever it holds, and only so many are kept."""

import asyncio
import math
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aio_pika
import pytest
from pydantic import SecretStr

from tests.integration.executor.desk import Desk, dead_letter_under, desk_at, draining, names
from tests.support.brokers import message, take
from tests.support.traffic import until
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EXECUTOR_REQUESTS,
    declare_executor,
)
from turnstile.common.database import Database
from turnstile.executor.dead_letters import Drain, Selection, StoredLetter
from turnstile.executor.dead_letters.letter import HEADERS_BYTES_MAX, storable_headers
from turnstile.executor.retention.pruner import Pruner
from turnstile.executor.settings import ExecutorSettings

ALL = Selection(all=True)
KEY = "execution.requested"


@pytest.fixture
async def desk(database_url: str, amqp_url: str) -> AsyncIterator[Desk]:
    """Nobody drains until a test does."""
    async with desk_at(database_url, amqp_url) as desk:
        yield desk


async def publish_raw(desk: Desk, body: bytes, headers: Mapping[str, Any], **properties: Any) -> None:
    """Publish to the dead letters what our own publisher would not."""
    async with await aio_pika.connect(desk.amqp_url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(DEAD_LETTER_EXCHANGE)
        raw = aio_pika.Message(body, headers=dict(headers), **properties)
        await exchange.publish(raw, routing_key="any")


async def drained(desk: Desk, count: int, **settings: object) -> list[StoredLetter]:
    async with draining(desk.database, desk.amqp_url, **settings):
        return await desk.stored(count)


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


async def test_every_letter_is_stored_whatever_its_headers_and_its_body_hold(desk: Desk) -> None:
    for name, headers in HOSTILE.items():
        await publish_raw(desk, name.encode(), headers, message_id=name)
    await publish_raw(desk, b"\0\xff" * 100, {}, message_id="n\0ul", app_id="\0", type="\0")
    await desk.publisher.publish([dead_letter_under(KEY, b"behind them")])
    found = {letter.body: letter for letter in await drained(desk, len(HOSTILE) + 2)}
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
    # A replay publishes what it can, and ends nobody's connection.
    dealt = await desk.letters.replay(ALL, limit=100)
    assert dealt.done + len(dealt.refused) == len(HOSTILE) + 2
    assert b"behind them" in [each.body for each in await take_ready(desk)]


def test_what_json_cannot_hold_is_shown_as_text() -> None:
    # RabbitMQ takes no such number, another broker may.
    assert storable_headers({"a": math.nan, "b": [-math.inf]}) == {"a": "nan", "b": ["-inf"]}


async def take_ready(desk: Desk) -> list[Any]:
    count = await desk.ready(EXECUTOR_REQUESTS)
    return await take(desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=100), count)


async def test_a_letter_that_the_database_refuses_is_stored_by_its_body_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.dead_letters.letter._text", lambda value: value)
    await publish_raw(desk, b"spoilt", {}, message_id="a\0b")
    await desk.publisher.publish([dead_letter_under(KEY, b"good")])
    spoilt, good = await drained(desk, 2)
    assert (spoilt.body, spoilt.code, spoilt.message_id) == (b"spoilt", "unexplained", None)
    assert "cannot be stored" in spoilt.error
    assert (good.body, good.code) == (b"good", "unknown_action")


async def test_a_letter_that_cannot_be_read_is_stored_by_its_body_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object, **__: object) -> None:
        raise KeyError("nothing foresaw this")

    monkeypatch.setattr("turnstile.executor.dead_letters.drain.read_letter", broken)
    await publish_raw(desk, b"odd", {})
    (letter,) = await drained(desk, 1)
    assert (letter.body, letter.code) == (b"odd", "unexplained")
    assert "nothing foresaw this" in letter.error


async def test_a_body_larger_than_any_that_is_taken_is_cut_and_replayed_only_with_another(
    desk: Desk,
) -> None:
    large = b"x" * 200_000
    await desk.publisher.publish([replace(dead_letter_under(KEY, large), message_id="m")])
    (letter,) = await drained(desk, 1, parameters_bytes_max=1024, event_result_max_bytes=0)
    assert (letter.body_truncated, letter.body_bytes) == (True, 200_000)
    row = await desk.database.fetchrow("SELECT octet_length(body) AS n, stored_bytes FROM dead_letter")
    assert row is not None
    assert row["n"] == 64 * 1024 < row["stored_bytes"] < 70_000
    dealt = await desk.letters.replay(ALL, limit=1)
    assert dealt.done == 0
    assert "body of 200000 bytes" in dealt.refused[0][1]
    assert (await desk.letters.replay(Selection(names=("m",)), limit=1, body=b"{}")).done == 1


async def test_copies_of_a_letter_are_one_row_and_several_drains_make_no_more(desk: Desk) -> None:
    dead = [dead_letter_under(KEY, str(n).encode()) for n in range(300)]
    async with (
        draining(desk.database, desk.amqp_url),
        draining(desk.database, desk.amqp_url),
        draining(desk.database, desk.amqp_url),
    ):
        await asyncio.gather(*(desk.publisher.publish(dead) for _ in range(3)))
        found = await desk.stored(300)
    assert sorted(names(found)) == sorted(letter.body for letter in dead)


async def test_a_letter_that_is_delivered_again_after_it_was_stored_is_one_row(desk: Desk) -> None:
    dead = [dead_letter_under(KEY, str(n).encode()) for n in range(30)]
    settings = ExecutorSettings(amqp_url=SecretStr(desk.amqp_url))
    # One of the broker's own: it says more about each further delivery.
    requests = desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10)
    await desk.publisher.publish([*dead, message(KEY, b"rejected", exchange="executions")])
    requests.reject(await take(requests, 1), requeue=False)

    class Cut(Database):
        """Stores, and never answers: the drain cannot acknowledge."""

        async def fetch(self, query: str, *arguments: object) -> Any:
            await desk.database.fetch(query, *arguments)
            stored.set()
            await asyncio.Event().wait()

    for _ in range(3):
        stored = asyncio.Event()
        cut = Drain(settings, Cut("", application_name="test"), make_room=pruner(desk).prune_dead_letters)
        running = asyncio.create_task(cut.run(asyncio.Event(), declare=declare_executor))
        await asyncio.wait_for(stored.wait(), 20)
        running.cancel()
        await asyncio.wait({running})
    assert await desk.all() != []
    found = await drained(desk, 31)
    assert len({letter.fingerprint for letter in found}) == 31


def numbered_letters(count: int, body_bytes: int = 10) -> list[Outgoing]:
    return [dead_letter_under(KEY, str(n).encode().ljust(body_bytes)) for n in range(count)]


def pruner(desk: Desk, **settings: Any) -> Pruner:
    return Pruner(desk.database, ExecutorSettings(**settings))


async def test_letters_are_pruned_by_age_by_number_and_by_size_the_oldest_first(desk: Desk) -> None:
    await desk.publisher.publish(numbered_letters(40, 1000))
    await drained(desk, 40)
    assert await pruner(desk).prune_dead_letters() == 0
    await desk.database.fetch(
        "UPDATE dead_letter SET stored_at = stored_at - interval '31 d'"
        " WHERE id IN (SELECT id FROM dead_letter ORDER BY id LIMIT 5)"
    )
    assert await pruner(desk, retention_dead_letters="forever").prune_dead_letters() == 0
    assert await pruner(desk).prune_dead_letters() == 5
    assert await pruner(desk, retention_dead_letters_count=30).prune_dead_letters() == 5
    assert [int(each) for each in names(await desk.all())] == list(range(10, 40))
    size = (await desk.all())[0].stored_bytes
    assert await pruner(desk, retention_dead_letters_bytes=20 * size).prune_dead_letters() == 10
    assert [int(each) for each in names(await desk.all())] == list(range(20, 40))
    # What a sender says of the death counts for nothing.
    await desk.publisher.publish(
        [
            replace(
                dead_letter_under(KEY, b"999"),
                headers={"x-error-code": "c", "x-died-at": datetime(1999, 1, 1, tzinfo=UTC).isoformat()},
            )
        ]
    )
    assert names(await drained(desk, 21))[0] == b"999"
    assert await pruner(desk).prune_dead_letters() == 0


async def test_pruning_goes_on_until_nothing_is_too_much_and_counts_what_it_drops(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.retention.pruner._ROWS_MAX", 7)
    await desk.publisher.publish(numbered_letters(50))
    await drained(desk, 50)
    many = pruner(desk, retention_dead_letters_count=5)
    # Two at once count the same excess: one of them does it, once.
    done = await asyncio.gather(many.prune_dead_letters(), many.prune_dead_letters())
    assert sum(done) == 45
    assert [int(each) for each in names(await desk.all())] == list(range(45, 50))


async def test_a_flood_of_letters_is_pruned_while_it_is_drained(desk: Desk) -> None:
    await desk.publisher.publish(numbered_letters(1000, 5000))
    most = 0

    async def is_over() -> bool:
        nonlocal most
        row = await desk.database.fetchrow(
            "SELECT count(*) AS rows, sum(stored_bytes) AS bytes FROM dead_letter"
        )
        assert row is not None
        most = max(most, row["bytes"] or 0)
        return await desk.ready() == 0 and row["rows"] > 0

    bound = 500_000
    async with draining(desk.database, desk.amqp_url, retention_dead_letters_bytes=bound):
        await until(is_over, "the queue is empty", deadline_seconds=30)
    assert most <= 1.5 * bound
    assert int(names(await desk.all())[-1]) == 999


async def test_a_database_that_is_out_keeps_the_letters_on_the_broker(desk: Desk, database_url: str) -> None:
    await desk.publisher.publish(numbered_letters(3))
    nowhere = Database(database_url, application_name="test")
    async with draining(nowhere, desk.amqp_url):
        await asyncio.sleep(0.5)
        await nowhere.open()
        assert len(await desk.stored(3)) == 3
    await nowhere.close()
    assert await desk.ready(DEAD_LETTERS) == 0
    assert timedelta(0) <= datetime.now(UTC) - (await desk.all())[0].stored_at
