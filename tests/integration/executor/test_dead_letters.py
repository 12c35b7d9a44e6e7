"""Dead letters: rows that are listed, replayed as they came, and deleted only when somebody says so."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from tests.integration.executor.desk import Desk, asked, dead_letter_under, desk_at, draining, names
from tests.support.brokers import bodies, message, take
from tests.support.served import serve
from turnstile.common.broker.delivery import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    EXECUTIONS,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_REQUESTS,
    EXECUTOR_RETRY,
)
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import slot_message
from turnstile.executor.dead_letters import DeadLetters, Place, Selection

ALL = Selection(all=True)


@pytest.fixture
async def desk(database_url: str, amqp_url: str) -> AsyncIterator[Desk]:
    async with desk_at(database_url, amqp_url) as desk, draining(desk.database, amqp_url):
        yield desk


async def test_a_letter_says_what_it_was_why_it_died_and_when(desk: Desk) -> None:
    await desk.bury(
        asked(b'{"a": 1}', message_id="order-7", correlation_id="c", reply_to="r", headers={"team": "green"})
    )
    (letter,) = await desk.all()
    assert (letter.code, letter.error) == ("unknown_action", "it died of unknown_action")
    assert (letter.type, letter.original_routing_key) == ("execution.requested", "execution.requested")
    assert (letter.message_id, letter.correlation_id, letter.reply_to) == ("order-7", "c", "r")
    assert letter.exchange == DEAD_LETTER_EXCHANGE
    assert (letter.headers["team"], letter.body, letter.body_bytes) == ("green", b'{"a": 1}', 8)
    assert letter.died_at <= letter.stored_at
    assert not letter.body_truncated
    for name in (str(letter.id), letter.fingerprint, "order-7"):
        assert await desk.letters.read(name) == letter
    for name in ("order-8", str(letter.id + 1), "9" * 30, "a\0b"):
        assert await desk.letters.read(name) is None


async def test_what_the_broker_itself_put_here_says_why(desk: Desk) -> None:
    requests = desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10)
    await desk.publisher.publish([replace(asked(b"refused"), exchange=EXECUTIONS)])
    requests.reject(await take(requests, 1), requeue=False)
    await desk.publisher.publish([message("anything", b"by hand", exchange=DEAD_LETTER_EXCHANGE)])
    refused, by_hand = sorted(await desk.stored(2), key=lambda letter: letter.code)
    assert (refused.code, refused.original_routing_key) == ("rejected", "execution.requested")
    assert EXECUTOR_REQUESTS in refused.error
    assert (by_hand.code, by_hand.died_at <= by_hand.stored_at) == ("unexplained", True)


async def test_a_message_id_means_the_oldest_letter_that_has_it(desk: Desk) -> None:
    await desk.bury(*(asked(body, message_id="same") for body in (b"first", b"second")))
    await desk.bury(asked(b"a number", message_id="1"))
    first, second, number = await desk.all()
    dealt = await desk.letters.purge(Selection(names=("same", "same")), limit=10)
    assert (dealt.done, dealt.missing) == (1, [])
    assert names(await desk.all()) == [b"second", b"a number"]
    # Digits alone are an id, whatever a message id is.
    gone = str(first.id)
    dealt = await desk.letters.purge(Selection(names=(gone, "gone", second.fingerprint)), limit=10)
    assert (dealt.done, dealt.missing) == (1, [gone, "gone"])
    assert (await desk.letters.purge(Selection(names=(str(number.id),)), limit=10)).done == 1
    assert await desk.all() == []


async def test_a_replayed_letter_is_the_message_that_first_came(desk: Desk) -> None:
    whole = asked(
        b"\x00\xff", message_id="m", correlation_id="c", reply_to="r", headers={"team": "green", "n": 1}
    )
    await desk.bury(replace(whole, timestamp=1_700_000_000))
    dealt = await desk.letters.replay(ALL, limit=10)
    assert (dealt.done, dealt.refused, dealt.left, await desk.all()) == (1, [], 0, [])
    (again,) = await take(desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10), 1)
    assert (again.body, again.routing_key, again.exchange) == (b"\x00\xff", "execution.requested", EXECUTIONS)
    assert (again.message_id, again.correlation_id, again.reply_to) == ("m", "c", "r")
    assert again.timestamp is not None
    assert {name: value for name, value in again.headers.items() if name != "x-delivery-count"} == {
        "team": "green",
        "n": 1,
    }


async def test_a_letter_is_replayed_with_another_body_under_its_own_message_id(desk: Desk) -> None:
    await desk.bury(asked(b"{ broken", message_id="m", headers={"team": "green"}))
    dealt = await desk.letters.replay(Selection(names=("m",)), limit=1, body=b"{}")
    assert (dealt.done, await desk.all()) == (1, [])
    (again,) = await take(desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10), 1)
    assert (again.body, again.message_id, again.headers["team"]) == (b"{}", "m", "green")


async def test_only_the_letters_that_are_meant_are_replayed_and_in_order(desk: Desk) -> None:
    await desk.bury(*(asked(f"a{n}".encode()) for n in range(5)))
    await desk.bury(*(asked(f"b{n}".encode()) for n in range(5)), code=Code.TOO_LARGE)
    dealt = await desk.letters.replay(Selection(code="too_large"), limit=3)
    assert (dealt.done, dealt.left) == (3, 2)
    requests = desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10)
    assert bodies(await take(requests, 3)) == [b"b0", b"b1", b"b2"]
    assert names(await desk.all()) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"b3", b"b4"]
    page = await desk.letters.page(code="too_large", after=None, limit=1)
    assert (names(page.letters), page.rest, page.total) == ([b"b3"], True, 7)
    last = page.letters[-1]
    # The place in the list stays when its letter is gone.
    await desk.letters.purge(Selection(names=(str(last.id),)), limit=1)
    page = await desk.letters.page(code="too_large", after=Place(died_at=last.died_at, id=last.id), limit=1)
    assert (names(page.letters), page.rest, page.total) == ([b"b4"], False, 6)


async def test_what_no_queue_takes_stays_and_says_so(desk: Desk) -> None:
    lost = dead_letter_under("execution.scheduled.nobody", b"lost")
    await desk.publisher.publish([lost])
    await desk.stored(1)
    await desk.bury(asked(b"good"))
    dealt = await desk.letters.replay(ALL, limit=10)
    assert dealt.done == 1
    ((letter, reason),) = dealt.refused
    assert letter.body == b"lost"
    assert "no queue takes 'execution.scheduled.nobody'" in reason
    assert names(await desk.all()) == [b"lost"]


async def test_a_replay_that_is_cut_off_before_its_letters_are_deleted_loses_nothing(desk: Desk) -> None:
    await desk.bury(asked(b"once", message_id="m"))

    class Cut(Publisher):
        async def publish(self, messages: Sequence[Outgoing]) -> list[Publication]:
            await desk.publisher.publish(messages)
            raise asyncio.CancelledError

    cut = DeadLetters(desk.database, Cut(desk.amqp_url, name="cut"))
    with pytest.raises(asyncio.CancelledError):
        await cut.replay(ALL, limit=10)
    assert (await desk.letters.replay(ALL, limit=10)).done == 1
    copies = await take(desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10), 2)
    assert {copy.message_id for copy in copies} == {"m"}


async def test_a_message_without_an_id_is_given_the_same_one_each_time(desk: Desk) -> None:
    await desk.publisher.publish([dead_letter_under("execution.requested", b"nameless", message_id="")])
    (letter,) = await desk.stored(1)
    assert letter.message_id is None
    await desk.letters.replay(ALL, limit=10)
    (again,) = await take(desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10), 1)
    assert again.message_id
    assert again.message_id.replace("-", "") == letter.fingerprint


async def test_what_was_addressed_to_a_queue_itself_finds_its_way_back(desk: Desk) -> None:
    told = slot_message(1, 1, "a", Status.QUEUED)
    await desk.publisher.publish(
        [
            replace(told, exchange=EXECUTOR_RETRY, expiration_ms=1),
            dead_letter_under(told.routing_key, told.body),
        ]
    )
    await desk.stored(1)
    assert (await desk.letters.replay(ALL, limit=10)).done == 1
    back = await take(desk.consumer.subscribe(EXECUTOR_COMPLETIONS, prefetch=10), 2)
    assert bodies(back) == [told.body] * 2


async def test_thousands_of_letters_are_stored_in_order_and_replayed_in_pieces(desk: Desk) -> None:
    dead = [dead_letter_under("execution.requested", str(n).encode()) for n in range(1500)]
    await desk.publisher.publish(dead)

    async def total() -> int:
        return (await desk.letters.page(code=None, after=None, limit=1)).total

    async with asyncio.timeout(30):
        while await total() < 1500:
            await asyncio.sleep(0.05)
    assert names(await desk.all())[:3] == [b"0", b"1", b"2"]
    dealt = await desk.letters.replay(ALL, limit=1499)
    assert (dealt.done, dealt.left) == (1499, 1)
    assert names(await desk.all()) == [b"1499"]
    taken = await take(desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=2000), 1499)
    assert bodies(taken) == [str(n).encode() for n in range(1499)]


async def test_without_a_broker_a_replay_says_so_and_everything_else_works(
    desk: Desk, database_url: str
) -> None:
    await desk.bury(asked(b"{", message_id="m"))
    async with serve(database_url) as api:
        answer = await api.http.post("/api/v1/dead-letters/replay", json={"all": True})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.json()["detail"].startswith("broker: ")
        (letter,) = (await api.get("/dead-letters"))["items"]
        assert (await api.get("/dead-letters/m")) == letter
        answer = await api.http.post("/api/v1/dead-letters/purge", json={"ids": [letter["id"]]})
        assert answer.json() == {"done": 1, "refused": [], "missing": [], "left": 0}


@pytest.mark.parametrize(
    "body", [{}, {"ids": []}, {"ids": ["a"], "all": True}, {"all": False}, {"code": "a", "limit": 0}, []]
)
async def test_a_selection_that_is_none_or_two_is_refused(database_url: str, body: object) -> None:
    async with serve(database_url) as api:
        for verb in ("replay", "purge"):
            answer = await api.http.post(f"/api/v1/dead-letters/{verb}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")


@pytest.mark.parametrize(
    ("verb", "body", "code"),
    [
        ("replay", {"all": True, "body": "{}"}, "invalid_message"),
        ("replay", {"ids": ["1", "2"], "body": "{}"}, "invalid_message"),
        ("replay", {"ids": ["1"], "body": "no base64", "body_encoding": "base64"}, "invalid_message"),
        ("purge", {"ids": ["1"], "body": "{}"}, "unknown_field"),
    ],
)
async def test_another_body_is_for_the_replay_of_one_letter(
    database_url: str, verb: str, body: object, code: str
) -> None:
    async with serve(database_url) as api:
        answer = await api.http.post(f"/api/v1/dead-letters/{verb}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


@pytest.mark.parametrize("cursor", ["x", "ZGVhZC1sZXR0ZXJzCngKMQ", "ZGVhZC1sZXR0ZXJzCjIwMjYtMDEtMDEKMQ"])
async def test_a_cursor_of_another_list_is_refused(database_url: str, cursor: str) -> None:
    async with serve(database_url) as api:
        answer = await api.http.get("/api/v1/dead-letters", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
