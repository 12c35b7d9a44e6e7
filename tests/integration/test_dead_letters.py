"""Dead letters: seen without loss, sent again as they came, thrown away only when somebody says so."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from pamqp.commands import Basic

from common.broker.delivery import Outgoing, Publication
from common.broker.publisher import Publisher
from common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EXECUTIONS,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_REQUESTS,
    EXECUTOR_RETRY,
)
from common.domain.errors import Code
from common.domain.states import Status
from common.envelopes import slot_message
from executor.dead_letters import DeadLetters, Selection
from tests.contract.brokers import bare_channel, bodies, message, take, until_ready
from tests.integration.desk import Desk, asked, dead_letter_under, desk_at, names
from tests.integration.served import serve

ALL = Selection(all=True)


@pytest.fixture
async def desk(amqp_url: str) -> AsyncIterator[Desk]:
    async with desk_at(amqp_url) as desk:
        yield desk


async def test_however_often_letters_are_looked_at_they_stay_in_order(desk: Desk) -> None:
    await desk.bury(*(asked(str(n).encode()) for n in range(30)))
    expected = [str(n).encode() for n in range(30)]
    for _ in range(15):
        assert names(await desk.all()) == expected
    many = await asyncio.gather(*(desk.all() for _ in range(4)))
    assert [names(each) for each in many] == [expected] * 4
    await desk.bury(asked(b"30"))
    assert names(await desk.all()) == [*expected, b"30"]


async def test_no_number_of_looks_makes_the_broker_drop_a_letter(desk: Desk) -> None:
    await desk.bury(asked(b"often"))
    async with bare_channel(desk.amqp_url) as channel:
        for _ in range(1100):
            got = (await channel.basic_get(DEAD_LETTERS)).delivery
            assert isinstance(got, Basic.GetOk), "the broker dropped it"
            await channel.basic_nack(got.delivery_tag or 0, requeue=True)
    assert names(await desk.all()) == [b"often"]


async def test_a_letter_says_what_it_was_why_it_died_and_when(desk: Desk) -> None:
    await desk.bury(asked(b'{"a": 1}', message_id="order-7", correlation_id="c", headers={"team": "green"}))
    (letter,) = await desk.all()
    assert (letter.id, letter.code, letter.error) == (
        "order-7",
        "unknown_action",
        "it died of unknown_action",
    )
    assert (letter.type, letter.original_routing_key) == ("execution.requested", "execution.requested")
    assert (letter.headers["team"], letter.body, letter.body_bytes) == ("green", b'{"a": 1}', 8)
    assert letter.died_at is not None
    assert await desk.letters.read("order-7") == letter
    assert await desk.letters.read(letter.fingerprint) == letter
    assert await desk.letters.read("order-8") is None


async def test_what_the_broker_itself_put_here_says_why(desk: Desk) -> None:
    requests = desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10)
    await desk.publisher.publish([replace(asked(b"refused"), exchange=EXECUTIONS)])
    requests.reject(await take(requests, 1), requeue=False)
    await until_ready(desk.amqp_url, DEAD_LETTERS, 1)
    await desk.publisher.publish([message("anything", b"by hand", exchange=DEAD_LETTER_EXCHANGE)])
    refused, by_hand = sorted(await desk.all(), key=lambda letter: letter.code)
    assert (refused.code, refused.original_routing_key) == ("rejected", "execution.requested")
    assert EXECUTOR_REQUESTS in refused.error
    assert refused.died_at is not None
    assert by_hand.code == "unexplained"


async def test_letters_of_one_message_id_have_names_of_their_own(desk: Desk) -> None:
    await desk.bury(*(asked(body, message_id="same") for body in (b"first", b"second")))
    await desk.bury(asked(b"a path", message_id="a/b c"))
    first, second, path = await desk.all()
    assert (first.id, second.id, path.id) == ("same", second.fingerprint, path.fingerprint)
    dealt = await desk.letters.purge(Selection(names=("same",)), limit=10)
    assert (dealt.done, dealt.missing) == (1, [])
    assert names(await desk.all()) == [b"second", b"a path"]
    # What it was called before still names it.
    dealt = await desk.letters.purge(Selection(names=(second.id, "gone")), limit=10)
    assert (dealt.done, dealt.missing) == (1, ["gone"])


async def test_a_letter_sent_again_is_the_message_that_first_came(desk: Desk) -> None:
    whole = asked(
        b"\x00\xff", message_id="m", correlation_id="c", reply_to="r", headers={"team": "green", "n": 1}
    )
    await desk.bury(replace(whole, timestamp=1_700_000_000))
    dealt = await desk.letters.replay(ALL, limit=10)
    assert (dealt.done, dealt.refused, dealt.left, await desk.ready()) == (1, [], 0, 0)
    (again,) = await take(desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10), 1)
    assert (again.body, again.routing_key, again.exchange) == (b"\x00\xff", "execution.requested", EXECUTIONS)
    assert (again.message_id, again.correlation_id, again.reply_to) == ("m", "c", "r")
    assert again.timestamp is not None
    assert {name: value for name, value in again.headers.items() if name != "x-delivery-count"} == {
        "team": "green",
        "n": 1,
    }


async def test_only_the_letters_that_are_meant_are_sent_again_and_in_order(desk: Desk) -> None:
    await desk.bury(*(asked(f"a{n}".encode()) for n in range(5)))
    await desk.bury(*(asked(f"b{n}".encode()) for n in range(5)), code=Code.TOO_LARGE)
    dealt = await desk.letters.replay(Selection(code="too_large"), limit=3)
    assert (dealt.done, dealt.left) == (3, 2)
    requests = desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10)
    assert bodies(await take(requests, 3)) == [b"b0", b"b1", b"b2"]
    assert names(await desk.all()) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"b3", b"b4"]
    page = await desk.letters.page(code="too_large", after=None, limit=1)
    assert page is not None
    assert (names(page.letters), page.rest, page.total) == ([b"b3"], True, 7)
    page = await desk.letters.page(code="too_large", after=page.letters[0].fingerprint, limit=1)
    assert page is not None
    assert (names(page.letters), page.rest) == ([b"b4"], False)


async def test_what_no_queue_takes_stays_and_says_so(desk: Desk) -> None:
    lost = dead_letter_under("execution.scheduled.nobody", b"lost")
    await desk.publisher.publish([lost])
    await desk.bury(asked(b"good"))
    dealt = await desk.letters.replay(ALL, limit=10)
    assert dealt.done == 1
    ((letter, reason),) = dealt.refused
    assert letter.body == b"lost"
    assert "no queue takes 'execution.scheduled.nobody'" in reason
    assert names(await desk.all()) == [b"lost"]


async def test_a_replay_that_is_cut_off_before_its_acknowledgement_loses_nothing(desk: Desk) -> None:
    await desk.bury(asked(b"once", message_id="m"))

    class Cut(Publisher):
        async def publish(self, messages: Sequence[Outgoing]) -> list[Publication]:
            await desk.publisher.publish(messages)
            raise asyncio.CancelledError

    cut = DeadLetters(desk.amqp_url, Cut(desk.amqp_url, name="cut"))
    with pytest.raises(asyncio.CancelledError):
        await cut.replay(ALL, limit=10)
    assert (await desk.letters.replay(ALL, limit=10)).done == 1
    copies = await take(desk.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=10), 2)
    assert {copy.message_id for copy in copies} == {"m"}


async def test_a_message_without_an_id_is_given_the_same_one_each_time(desk: Desk) -> None:
    await desk.publisher.publish([dead_letter_under("execution.requested", b"nameless", message_id="")])
    (letter,) = await desk.all()
    assert (letter.message_id, letter.id) == (None, letter.fingerprint)
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
    assert (await desk.letters.replay(ALL, limit=10)).done == 1
    back = await take(desk.consumer.subscribe(EXECUTOR_COMPLETIONS, prefetch=10), 2)
    assert bodies(back) == [told.body] * 2


async def test_thousands_of_letters_are_held_at_once(desk: Desk) -> None:
    dead = [dead_letter_under("execution.requested", str(n).encode()) for n in range(1500)]
    await desk.publisher.publish(dead)
    assert names(await desk.all())[:3] == [b"0", b"1", b"2"]
    dealt = await desk.letters.purge(ALL, limit=1499)
    assert (dealt.done, dealt.left) == (1499, 1)
    assert len(await desk.all()) == 1


async def test_where_there_is_no_queue_there_is_no_letter(amqp_url: str) -> None:
    letters = DeadLetters(amqp_url, Publisher(amqp_url, name="test"))
    page = await letters.page(code=None, after=None, limit=10)
    assert page is not None
    assert (page.letters, page.total) == ([], 0)
    assert (await letters.purge(ALL, limit=10)).done == 0


async def test_without_a_broker_it_says_that_it_is_unavailable_and_why(database_url: str) -> None:
    async with serve(database_url) as api:
        for method, path in [("GET", ""), ("GET", "/some"), ("POST", "/replay"), ("POST", "/purge")]:
            answer = await api.http.request(method, f"/api/v1/dead-letters{path}", json={"all": True})
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.json()["detail"].startswith("broker: ")


@pytest.mark.parametrize(
    "body", [{}, {"ids": []}, {"ids": ["a"], "all": True}, {"all": False}, {"code": "a", "limit": 0}, []]
)
async def test_a_selection_that_is_none_or_two_is_refused(database_url: str, body: object) -> None:
    async with serve(database_url) as api:
        for verb in ("replay", "purge"):
            answer = await api.http.post(f"/api/v1/dead-letters/{verb}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
