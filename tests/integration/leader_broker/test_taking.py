"""What the leader takes from its queues, and what becomes of it when a connection ends."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import UUID

from tests.support.brokers import publishing, ready_messages, until_ready
from tests.support.leader_broker import (
    SENDER,
    end,
    heartbeat,
    leader_broker,
    leading,
    of_worker,
    opened,
    reports,
    taken,
    until_empty,
)
from tests.support.proxy import proxy_to
from tests.support.traffic import drain_queue, request, until
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import (
    DEAD_LETTERS,
    EXECUTION_CANCEL_REQUESTED,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REQUESTS,
    declare_executor,
)
from turnstile.common.domain.errors import Code
from turnstile.common.worker_protocol import Heartbeat
from turnstile.common.worker_wire import WORKER_REPORTS
from turnstile.executor.leader.amqp import AmqpBroker
from turnstile.executor.leader.ports import (
    CancelRequest,
    Delivery,
    Probe,
    Publication,
    RefusedRequest,
    Request,
)


def numbered(number: int) -> Outgoing:
    return request({"action_ref": "a", "parameters": {"number": number}})


def numbers(deliveries: list[Delivery]) -> list[bytes]:
    return [each.body.parameters for each in deliveries if isinstance(each.body, Request)]


def letter(delivery: Delivery) -> Publication:
    body = {"x-error-code": Code.INVALID_MESSAGE, "x-error": "is wrong", "request": delivery.body}
    return Publication(to="dead letters", body=body, of=delivery)


async def test_requests_arrive_in_order_as_values_with_the_key_of_their_message(amqp_url: str) -> None:
    copy = numbered(7)
    cancel = replace(
        request({"execution_id": 3}), routing_key=EXECUTION_CANCEL_REQUESTED, type=EXECUTION_CANCEL_REQUESTED
    )
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as client:
        await client.publish([*map(numbered, range(7)), copy, copy, cancel])
        found = await taken(broker, EXECUTOR_REQUESTS, 10)
        assert numbers(found) == [b'{"number":%d}' % min(n, 7) for n in range(9)]
        body = found[-1].body
        assert isinstance(body, CancelRequest)
        assert (body.execution_id, body.idempotency_key, body.reason) == (3, None, "")
        assert json.loads(body.properties or "")["message_id"] == cancel.message_id
        assert len({each.delivery_key for each in found}) == 9
        assert found[7].delivery_key == found[8].delivery_key
        assert all(each.key_identifies for each in found[:9])
        broker.acknowledge(found)
    await until_empty(amqp_url, EXECUTOR_REQUESTS)


async def test_a_message_of_several_reports_is_acknowledged_when_all_of_them_are(amqp_url: str) -> None:
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as worker:
        await worker.publish([reports([end(1), end(2), end(3)]), reports([end(4)])])
        first = await taken(broker, EXECUTOR_COMPLETIONS, 2)
        rest = await taken(broker, EXECUTOR_COMPLETIONS, 2)
        broker.acknowledge([*first, rest[1]])
        await broker.close()
        await opened(broker)
        again = await taken(broker, EXECUTOR_COMPLETIONS, 3)
        assert [each.delivery_key for each in again] == [each.delivery_key for each in [*first, rest[0]]]
        assert all(each.is_redelivered for each in again)
        broker.acknowledge(again)
    await until_empty(amqp_url, EXECUTOR_COMPLETIONS)


async def test_what_an_earlier_connection_delivered_cannot_be_acknowledged(amqp_url: str) -> None:
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as client:
        await client.publish(list(map(numbered, range(3))))
        before = await taken(broker, EXECUTOR_REQUESTS, 3)
        await broker.close()
        await opened(broker)
        broker.acknowledge(before)
        again = await taken(broker, EXECUTOR_REQUESTS, 3)
        broker.acknowledge(before)
        assert numbers(again) == numbers(before)
        await broker.close()
        await until_ready(amqp_url, EXECUTOR_REQUESTS, 3)


async def test_the_next_leader_gets_what_the_closed_one_held_in_order_and_nothing_before(
    amqp_url: str,
) -> None:
    async with (
        publishing(amqp_url, declare=declare_executor) as client,
        AsyncExitStack() as exits,
        leader_broker(amqp_url) as following,
    ):
        old = await exits.enter_async_context(leading(amqp_url))
        await client.publish(list(map(numbered, range(100))))
        held = await taken(old, EXECUTOR_REQUESTS, 100)
        await opened(following)
        old.acknowledge(held[:40])
        # Both consume now: without a single active consumer each would get half of these.
        await client.publish(list(map(numbered, range(100, 200))))
        held += await taken(old, EXECUTOR_REQUESTS, 100)
        assert not following.take(EXECUTOR_REQUESTS, 100)
        await exits.aclose()
        assert numbers(await taken(following, EXECUTOR_REQUESTS, 160)) == numbers(held[40:])


async def test_a_lost_connection_stays_closed_until_it_is_opened_again(amqp_url: str) -> None:
    async with (
        proxy_to(amqp_url) as proxy,
        leading(proxy.url) as broker,
        publishing(amqp_url, declare=declare_executor) as client,
    ):
        await client.publish([numbered(1)])
        await taken(broker, EXECUTOR_REQUESTS, 1)
        proxy.cut()
        await until(lambda: not broker.is_open)
        assert broker.take(EXECUTOR_REQUESTS, 1) == []
        await until(lambda: broker.connected)
        assert not broker.is_open
        await opened(broker)
        (again,) = await taken(broker, EXECUTOR_REQUESTS, 1)
        assert again.is_redelivered


async def test_a_frozen_connection_is_given_up_within_five_seconds(amqp_url: str) -> None:
    async with proxy_to(amqp_url) as proxy, leading(proxy.url) as broker:
        proxy.freeze()
        await until(lambda: not broker.is_open, "a closed connection", deadline_seconds=5.0)
        # The end of the connection passes the proxy only then.
        proxy.thaw()


async def test_large_requests_are_stored_one_by_one_in_order_and_no_other_queue_waits_for_them(
    amqp_url: str,
) -> None:
    stored: list[bytes] = []
    release = asyncio.Semaphore(0)

    async def store(parameters: bytes, metadata: bytes | None) -> UUID | None:
        stored.append(parameters)
        await release.acquire()
        return None if len(stored) == 2 else UUID(int=len(stored))

    large = [request({"action_ref": "a", "parameters": {"n": n, "x": [0] * 50_000}}) for n in range(20)]
    async with (
        leading(amqp_url, store_body=store) as broker,
        publishing(amqp_url, declare=declare_executor) as client,
    ):
        await client.publish([numbered(1), *large, numbered(2), reports([end(1)])])
        assert numbers(await taken(broker, EXECUTOR_REQUESTS, 1)) == [b'{"number":1}']
        await taken(broker, EXECUTOR_COMPLETIONS, 1)
        await until(lambda: not broker.take(EXECUTOR_REQUESTS, 100) and stored, "a large request")
        assert len(stored) == 1
        for _ in large:
            release.release()
        found = await taken(broker, EXECUTOR_REQUESTS, 21)
        assert [each.body.body_id for each in found if isinstance(each.body, Request)] == [
            UUID(int=1), None, *(UUID(int=number) for number in range(3, 21)), None,
        ]  # fmt: skip
        assert numbers(found) == [*stored, b'{"number":2}']
        broker.acknowledge(found)


async def test_a_large_request_that_is_being_stored_comes_again_after_the_connection(amqp_url: str) -> None:
    held, release = asyncio.Event(), asyncio.Event()

    async def store(parameters: bytes, metadata: bytes | None) -> UUID:
        held.set()
        await release.wait()
        return UUID(int=1)

    async with (
        leading(amqp_url, store_body=store) as broker,
        publishing(amqp_url, declare=declare_executor) as client,
    ):
        await client.publish([request({"action_ref": "a", "parameters": {"x": [0] * 50_000}}), numbered(1)])
        await until(lambda: not broker.take(EXECUTOR_REQUESTS, 100) and held.is_set(), "a large request")
        await broker.close()
        release.set()
        await opened(broker)
        first, _ = await taken(broker, EXECUTOR_REQUESTS, 2)
        assert first.is_redelivered


async def test_a_refused_message_is_acknowledged_when_its_dead_letter_is_confirmed(amqp_url: str) -> None:
    invalid = request(b"not JSON")
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as client:
        await client.publish([invalid])
        (found,) = await taken(broker, EXECUTOR_REQUESTS, 1)
        await broker.publish([letter(found)])
        broker.acknowledge([found])
        (dead,) = await drain_queue(amqp_url, DEAD_LETTERS, 1)
        assert dead.body == b"not JSON"
        assert dead.message_id == invalid.message_id
        assert (dead.headers["x-error-code"], dead.headers["x-error"]) == ("invalid_message", "is wrong")
        assert dead.headers["x-original-routing-key"] == "execution.requested"
        await until(lambda: not broker._waits)
    await until_empty(amqp_url, EXECUTOR_REQUESTS)


async def test_before_its_dead_letter_is_confirmed_a_refused_message_is_delivered_again(
    amqp_url: str,
) -> None:
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as client:
        posted = _answers_later(broker)
        await client.publish([request(b"not JSON")])
        (found,) = await taken(broker, EXECUTOR_REQUESTS, 1)
        await broker.publish([letter(found)])
        broker.acknowledge([found])
        await broker.close()
        await opened(broker)
        (again,) = await taken(broker, EXECUTOR_REQUESTS, 1)
        await broker.publish([letter(again)])
        broker.acknowledge([again])
        # It could not be published: the broker, which has it, moves it itself.
        posted[-1].set_result(False)
        (dead,) = await drain_queue(amqp_url, DEAD_LETTERS, 1)
        assert dead.body == b"not JSON"
        assert "'rejected'" in str(dead.headers["x-death"])


async def test_a_request_is_acknowledged_behind_its_reply_and_at_once_if_the_leader_closes(
    amqp_url: str,
) -> None:
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as client:
        _answers_later(broker)
        await client.publish([request({"action_ref": "a"}, reply_to="client")])
        (found,) = await taken(broker, EXECUTOR_REQUESTS, 1)
        body = {"type": "execution.accepted", "execution_id": 1, "correlation_id": None}
        await broker.publish([Publication(to="reply client", body=body, of=found)])
        broker.acknowledge([found])
        assert broker._waiting
        await broker.close()
        await until_empty(amqp_url, EXECUTOR_REQUESTS)


def _answers_later(broker: AmqpBroker) -> list[asyncio.Future[bool]]:
    """Let replies and dead letters be confirmed when the test says so."""
    posted: list[asyncio.Future[bool]] = []

    def post(messages: list[Outgoing]) -> list[asyncio.Future[bool]]:
        posted.extend(asyncio.get_running_loop().create_future() for _ in messages)
        return posted[-len(messages) :]

    broker._best_effort.post = post  # type: ignore[assignment, method-assign]
    return posted


async def test_a_message_that_is_too_large_to_be_kept_is_refused_and_moved_by_the_broker(
    amqp_url: str,
) -> None:
    large = request(bytes((16 << 20) + 1))
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as client:
        await client.publish([large, numbered(1)])
        found = await taken(broker, EXECUTOR_REQUESTS, 2)
        refused = found[0].body
        assert isinstance(refused, RefusedRequest)
        assert refused.code is Code.TOO_LARGE
        await broker.publish([letter(found[0])])
        broker.acknowledge(found)
        await until_ready(amqp_url, DEAD_LETTERS, 1)
    await until_empty(amqp_url, EXECUTOR_REQUESTS)


async def test_a_message_that_is_too_large_to_be_kept_and_is_answered_is_no_dead_letter(
    amqp_url: str,
) -> None:
    answered, other = (request(bytes((16 << 20) + 1), reply_to=to) for to in ("client", None))
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as client:
        await client.publish([answered, other])
        found = await taken(broker, EXECUTOR_REQUESTS, 2)
        body = {"type": "execution.rejected", "code": Code.TOO_LARGE, "correlation_id": None}
        await broker.publish([Publication(to="reply client", body=body, of=found[0]), letter(found[1])])
        broker.acknowledge(found)
        await until(lambda: not broker._waits)
        await until_ready(amqp_url, DEAD_LETTERS, 1)
        (dead,) = await drain_queue(amqp_url, DEAD_LETTERS, 1)
        assert dead.message_id == other.message_id
    await until_empty(amqp_url, EXECUTOR_REQUESTS)


async def test_a_dead_letter_of_a_worker_shows_no_secret(amqp_url: str) -> None:
    unknown = of_worker(b'{"worker_id": "w1", "secret" : "a \\" secret", "reports": 1}', WORKER_REPORTS)
    async with leading(amqp_url) as broker, publishing(amqp_url, declare=declare_executor) as worker:
        await worker.publish([unknown, reports([end(1), end(2)])])
        invalid, _, stale = found = await taken(broker, EXECUTOR_COMPLETIONS, 3)
        assert isinstance(invalid.body, RefusedRequest)
        await broker.publish([letter(invalid), letter(stale)])
        broker.acknowledge(found)
        first, second = await drain_queue(amqp_url, DEAD_LETTERS, 2)
        assert first.body == b'{"worker_id": "w1", "secret" : "", "reports": 1}'
        assert b'"number":2' in second.body
        assert b'"number":1' not in second.body
        assert SENDER.secret.encode() not in second.body


async def test_a_probe_comes_back_behind_what_was_sent_before_and_that_of_another_matches_nothing(
    amqp_url: str,
) -> None:
    probe = Probe(epoch=5, number=2)
    async with leading(amqp_url) as broker, leader_broker(amqp_url) as other:
        async with publishing(amqp_url, declare=declare_executor) as worker:
            await worker.publish([heartbeat(1)])
        for each in (broker, other):
            to_both = [
                Publication(to=queue, body=probe) for queue in (EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS)
            ]
            assert await each.publish(to_both) == [True, True]
        found = await taken(broker, EXECUTOR_HEARTBEATS, 3)
        assert isinstance(found[0].body, Heartbeat)
        assert [each.body for each in found[1:]] == [probe, Probe(epoch=0, number=0)]
        first, _ = await taken(broker, EXECUTOR_COMPLETIONS, 2)
        assert first.body == probe
        broker.acknowledge(found)
    assert await ready_messages(amqp_url, EXECUTOR_HEARTBEATS) == 0
