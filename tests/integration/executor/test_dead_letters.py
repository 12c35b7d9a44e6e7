"""Dead letters are listed, replayed unchanged or edited, and deleted only after a confirm or by a purge."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from tests.integration.executor.dead_letter_queue import (
    OPERATOR,
    DeadLetterQueue,
    dead_letter_queue,
    dead_letter_under,
    draining,
    letter_bodies,
    request,
)
from tests.support.brokers import bodies, message, take
from tests.support.served import serve
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    EXECUTIONS,
    EXECUTOR,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_REQUESTS,
)
from turnstile.common.domain.errors import Code
from turnstile.executor.dead_letters.store import DeadLetters, Position, Selection

ALL = Selection(all=True)


@pytest.fixture
async def dlq(database_url: str, amqp_url: str) -> AsyncIterator[DeadLetterQueue]:
    async with dead_letter_queue(database_url, amqp_url) as dlq, draining(dlq.database, amqp_url):
        yield dlq


async def test_a_dead_letter_has_its_properties_reason_and_time(dlq: DeadLetterQueue) -> None:
    await dlq.dead_letter(
        request(
            b'{"a": 1}', message_id="order-7", correlation_id="c", reply_to="r", headers={"team": "green"}
        )
    )
    (letter,) = await dlq.all()
    assert (letter.code, letter.error) == ("unknown_action", "it died of unknown_action")
    assert (letter.type, letter.original_routing_key) == ("execution.requested", "execution.requested")
    assert (letter.message_id, letter.correlation_id, letter.reply_to) == ("order-7", "c", "r")
    assert letter.exchange == DEAD_LETTER_EXCHANGE
    assert (letter.headers["team"], letter.body, letter.body_bytes) == ("green", b'{"a": 1}', 8)
    assert letter.died_at <= letter.stored_at
    assert not letter.body_truncated
    for name in (str(letter.id), letter.fingerprint, "order-7"):
        assert await dlq.store.read(name) == letter
    for name in ("order-8", str(letter.id + 1), "9" * 30, "a\0b"):
        assert await dlq.store.read(name) is None


async def test_a_message_that_the_broker_dead_lettered_has_its_reason(dlq: DeadLetterQueue) -> None:
    requests = dlq.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10)
    await dlq.publisher.publish([replace(request(b"refused"), exchange=EXECUTIONS)])
    requests.reject(await take(requests, 1), requeue=False)
    await dlq.publisher.publish([message("anything", b"by hand", exchange=DEAD_LETTER_EXCHANGE)])
    refused, by_hand = sorted(await dlq.stored(2), key=lambda letter: letter.code)
    assert (refused.code, refused.original_routing_key) == ("rejected", "execution.requested")
    assert EXECUTOR_REQUESTS in refused.error
    assert (by_hand.code, by_hand.died_at <= by_hand.stored_at) == ("unexplained", True)


async def test_a_message_id_means_the_oldest_dead_letter_that_has_it(dlq: DeadLetterQueue) -> None:
    await dlq.dead_letter(*(request(body, message_id="same") for body in (b"first", b"second")))
    await dlq.dead_letter(request(b"a number", message_id="1"))
    first, second, number = await dlq.all()
    dealt = await dlq.store.purge(Selection(names=("same", "same")), limit=10, changed_by=OPERATOR)
    assert (dealt.done, dealt.missing) == (1, [])
    assert letter_bodies(await dlq.all()) == [b"second", b"a number"]
    # Digits alone are an id, also where they are a message id.
    gone = str(first.id)
    dealt = await dlq.store.purge(
        Selection(names=(gone, "gone", second.fingerprint)), limit=10, changed_by=OPERATOR
    )
    assert (dealt.done, dealt.missing) == (1, [gone, "gone"])
    assert (
        await dlq.store.purge(Selection(names=(str(number.id),)), limit=10, changed_by=OPERATOR)
    ).done == 1
    assert await dlq.all() == []


async def test_a_replayed_dead_letter_equals_the_original_message(dlq: DeadLetterQueue) -> None:
    whole = request(
        b"\x00\xff", message_id="m", correlation_id="c", reply_to="r", headers={"team": "green", "n": 1}
    )
    await dlq.dead_letter(replace(whole, timestamp=1_700_000_000))
    dealt = await dlq.store.replay(ALL, limit=10, changed_by=OPERATOR)
    assert (dealt.done, dealt.refused, dealt.left, await dlq.all()) == (1, [], 0, [])
    (again,) = await take(dlq.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10), 1)
    assert (again.body, again.routing_key, again.exchange) == (b"\x00\xff", "execution.requested", EXECUTIONS)
    assert (again.message_id, again.correlation_id, again.reply_to) == ("m", "c", "r")
    assert again.timestamp is not None
    assert {name: value for name, value in again.headers.items() if name != "x-delivery-count"} == {
        "team": "green",
        "n": 1,
    }


async def test_only_selected_dead_letters_are_replayed_in_order(dlq: DeadLetterQueue) -> None:
    await dlq.dead_letter(*(request(f"a{n}".encode()) for n in range(5)))
    await dlq.dead_letter(*(request(f"b{n}".encode()) for n in range(5)), code=Code.TOO_LARGE)
    dealt = await dlq.store.replay(Selection(code="too_large"), limit=3, changed_by=OPERATOR)
    assert (dealt.done, dealt.left) == (3, 2)
    requests = dlq.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10)
    assert bodies(await take(requests, 3)) == [b"b0", b"b1", b"b2"]
    assert letter_bodies(await dlq.all()) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"b3", b"b4"]
    page = await dlq.store.page(code="too_large", after=None, limit=1)
    assert (letter_bodies(page.letters), page.rest, page.total) == ([b"b3"], True, 7)
    last = page.letters[-1]
    # The position in the list is valid after its letter was deleted.
    await dlq.store.purge(Selection(names=(str(last.id),)), limit=1, changed_by=OPERATOR)
    page = await dlq.store.page(code="too_large", after=Position(died_at=last.died_at, id=last.id), limit=1)
    assert (letter_bodies(page.letters), page.rest, page.total) == ([b"b4"], False, 6)
    page = await dlq.store.page(code=None, after=None, limit=2, newest_first=True)
    assert (letter_bodies(page.letters), page.rest) == ([b"b4", b"a4"], True)


async def test_an_unroutable_replay_keeps_the_dead_letter_with_the_reason(dlq: DeadLetterQueue) -> None:
    lost = dead_letter_under("execution.scheduled.unknown", b"lost")
    await dlq.publisher.publish([lost])
    await dlq.stored(1)
    await dlq.dead_letter(request(b"good"))
    dealt = await dlq.store.replay(ALL, limit=10, changed_by=OPERATOR)
    assert dealt.done == 1
    ((letter, reason),) = dealt.refused
    assert letter.body == b"lost"
    assert "no queue takes 'execution.scheduled.unknown'" in reason
    assert letter_bodies(await dlq.all()) == [b"lost"]


async def test_a_replay_that_is_cut_off_before_its_dead_letters_are_deleted_loses_nothing(
    dlq: DeadLetterQueue,
) -> None:
    await dlq.dead_letter(request(b"once", message_id="m"))

    class Cut(Publisher):
        async def publish(self, messages: Sequence[Outgoing]) -> list[Publication]:
            await dlq.publisher.publish(messages)
            raise asyncio.CancelledError

    cut = DeadLetters(dlq.database, Cut(dlq.amqp_url, name="cut"))
    with pytest.raises(asyncio.CancelledError):
        await cut.replay(ALL, limit=10, changed_by=OPERATOR)
    assert (await dlq.store.replay(ALL, limit=10, changed_by=OPERATOR)).done == 1
    copies = await take(dlq.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10), 2)
    assert {copy.message_id for copy in copies} == {"m"}


async def test_a_message_of_a_worker_is_replayed_to_the_queue_that_it_came_from(dlq: DeadLetterQueue) -> None:
    await dlq.publisher.publish([dead_letter_under(EXECUTOR_COMPLETIONS, b"report")])
    await dlq.stored(1)
    assert (await dlq.store.replay(ALL, limit=10, changed_by=OPERATOR)).done == 1
    (back,) = await take(dlq.consumer.subscribe(EXECUTOR_COMPLETIONS, prefetch=10), 1)
    assert (back.body, back.exchange) == (b"report", EXECUTOR)


async def test_without_a_broker_only_the_replay_is_unavailable(
    dlq: DeadLetterQueue, database_url: str
) -> None:
    await dlq.dead_letter(request(b"{", message_id="m"))
    async with serve(database_url) as api:
        answer = await api.http.post("/api/v1/dead-letters/replay", json={"all": True})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.json()["detail"].startswith("broker: ")
        (letter,) = (await api.get("/dead-letters"))["items"]
        assert (await api.get("/dead-letters/m")) == letter
        ids = {"ids": [letter["id"], "absent"]}
        # A dry run neither deletes nor publishes.
        for verb in ("replay", "purge"):
            path = f"/api/v1/dead-letters/{verb}"
            answer = await api.http.post(path, json={**ids, "dry_run": True})
            assert answer.json() == {"done": 0, "refused": [], "missing": ["absent"], "left": 1}
            answer = await api.http.post(path, json={"all": True, "dry_run": True})
            assert (answer.json()["done"], answer.json()["left"]) == (0, 1)
        answer = await api.http.post("/api/v1/dead-letters/purge", json={"ids": [letter["id"]]})
        assert answer.json() == {"done": 1, "refused": [], "missing": [], "left": 0}


async def test_an_unclear_selection_body_or_cursor_is_refused(database_url: str) -> None:
    unclear: tuple[object, ...] = ({}, {"ids": ["a"], "all": True}, {"all": False}, [])
    # An edited body requires a replay of one dead letter.
    edited: tuple[tuple[str, object, str], ...] = (
        ("replay", {"all": True, "body": "{}"}, "invalid_message"),
        ("replay", {"ids": ["1", "2"], "body": "{}"}, "invalid_message"),
        ("replay", {"ids": ["1"], "body": "no base64", "body_encoding": "base64"}, "invalid_message"),
        ("purge", {"ids": ["1"], "body": "{}"}, "unknown_field"),
        ("replay", {"ids": ["1"], "dry_run": "perhaps"}, "invalid_message"),
    )
    every = [(verb, body, "invalid_message") for verb in ("replay", "purge") for body in unclear]
    async with serve(database_url) as api:
        for verb, body, code in [*every, *edited]:
            answer = await api.http.post(f"/api/v1/dead-letters/{verb}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, code), (verb, body)
        for cursor in ("x", "ZGVhZC1sZXR0ZXJzCngKMQ", "ZGVhZC1sZXR0ZXJzCjIwMjYtMDEtMDEKMQ"):
            answer = await api.http.get("/api/v1/dead-letters", params={"cursor": cursor})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
