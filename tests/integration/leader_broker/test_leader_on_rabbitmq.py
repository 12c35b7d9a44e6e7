"""A whole leader on PostgreSQL and RabbitMQ, and one worker session played by the test."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiormq.abc import DeliveredMessage

from tests.support.brokers import publishing
from tests.support.leader_broker import (
    SENDER,
    Listener,
    hello,
    leader_broker,
    listener,
    of_worker,
    reports,
)
from tests.support.proxy import LinkState, proxy_to
from tests.support.traffic import cancel_request, drain_queue, in_background, request, until
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import DEAD_LETTERS, declare_executor, session_queue
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    Heard,
    Heartbeat,
    Held,
    Offer,
    Offers,
    Report,
    ReportBody,
    ToSession,
    Welcome,
)
from turnstile.common.worker_wire import WORKER_HEARTBEAT, decode_to_session, encode_heartbeat
from turnstile.executor.leader.clock import LeaderClock
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.parameter_schemas import refusal_of_parameters
from turnstile.executor.leader.turns import Leader
from turnstile.executor.parameter_check import SchemaChecker

COUNT = 50


class Worker:
    """One session: it answers welcomes, and ends what it is offered."""

    def __init__(self, publisher: Publisher, heard: Listener) -> None:
        self._publisher, self._heard = publisher, heard
        self._sent = 0

    @property
    def received(self) -> list[ToSession]:
        return [each for body in self._heard.bodies for each in decode_to_session(body)]

    @property
    def offers(self) -> list[Offer]:
        return [o for each in self.received if isinstance(each.body, Offers) for o in each.body.offers]

    @property
    def epoch(self) -> int:
        return self.received[-1].epoch

    async def begin(self) -> None:
        await self._publisher.publish([hello(definitions=({"ref": "a"}, {"ref": "b"}))])
        await until(lambda: any(isinstance(each.body, Welcome) for each in self.received), "a welcome")
        await self.report(Held(epoch=self.epoch, grants=()))

    async def report(self, *bodies: ReportBody) -> None:
        numbered = []
        for body in bodies:
            self._sent += 1
            numbered.append(
                Report(sender=SENDER, number=self._sent, kept_from=1, epoch_seen=self.epoch, body=body)
            )
        await self._publisher.publish([reports(numbered)])

    async def heartbeat(self, number: int) -> None:
        received = self.received
        body = Heartbeat(sender=SENDER, number=number, epoch_seen=self.epoch, received=received[-1].number)
        await self._publisher.publish([of_worker(encode_heartbeat(body), WORKER_HEARTBEAT)])

    async def end(self, offers: list[Offer], result: bytes = b'{"ok": true}') -> None:
        await self.report(*[
            AttemptEnded(
                execution_id=each.execution_id, grant=each.grant, status=Status.COMPLETED, result=result
            )
            for each in offers
        ])  # fmt: skip


@asynccontextmanager
async def installation(
    amqp_url: str, ledger: Ledger, **options: Any
) -> AsyncIterator[tuple[Worker, Publisher]]:
    """A leader that leads, and a worker with a session."""
    clock = LeaderClock()
    async with (
        leader_broker(amqp_url, wake=clock.wake, **options) as broker,
        publishing(amqp_url, declare=declare_executor) as client,
        listener(amqp_url, session_queue(SENDER.worker_id, SENDER.session)) as heard,
    ):
        leader = Leader("executor", ledger, broker, clock)
        async with in_background(leader.run(), name="leader") as leading:
            worker = Worker(client, heard)
            await worker.begin()
            yield worker, client
            leader.stop()
            async with asyncio.timeout(10):
                await leading


def bodies(heard: Listener) -> list[Any]:
    return [json.loads(body) for body in heard.bodies]


async def test_requests_are_answered_offered_ended_and_announced_in_order(
    amqp_url: str, ledger: Ledger
) -> None:
    async with (
        listener(amqp_url, "client") as replies,
        installation(amqp_url, ledger) as (worker, client),
        listener(amqp_url, "listener", keys=["execution.completed.#"]) as events,
    ):
        sent = [request({"action_ref": "a", "parameters": {"n": n}}, reply_to="client") for n in range(COUNT)]
        await client.publish(sent)
        await replies.until(COUNT)
        assert [each["duplicate"] for each in bodies(replies)] == [False] * COUNT
        accepted = [each["execution_id"] for each in bodies(replies)]
        assert accepted == sorted(accepted)
        correlations = [each.header.properties.correlation_id for each in replies.messages]
        assert correlations == [each.message_id for each in sent]
        ended: list[Offer] = []
        while len(ended) < COUNT:
            await until(lambda: len(worker.offers) > len(ended), "offers")  # noqa: B023
            new = worker.offers[len(ended) :]
            ended += new
            await worker.end(new)
        assert [each.execution_id for each in ended] == accepted
        assert [json.loads(each.parameters) for each in ended] == [{"n": n} for n in range(COUNT)]
        await events.until(COUNT)
        assert [each["execution_id"] for each in bodies(events)] == accepted
        assert bodies(events)[0]["result"] == {"ok": True}
        # A copy is answered and not run again.
        await client.publish(sent[:1])
        await replies.until(COUNT + 1)
        last = bodies(replies)[-1]
        assert (last["execution_id"], last["status"], last["duplicate"]) == (accepted[0], "completed", True)
        await worker.heartbeat(1)
        await until(lambda: any(isinstance(each.body, Heard) for each in worker.received), "an answer")
        (heard,) = [each.body for each in worker.received if isinstance(each.body, Heard)]
        assert heard.committed == 1 + COUNT


async def test_what_is_refused_is_answered_and_a_dead_letter_and_the_others_run(
    amqp_url: str, ledger: Ledger
) -> None:
    async with listener(amqp_url, "client") as replies, installation(amqp_url, ledger) as (worker, client):
        refused = {
            "invalid_message": request(b"{", reply_to="client"),
            "unknown_field": request({"action_ref": "a", "x": 1}, reply_to="client"),
            "unknown_action": request({"action_ref": "nowhere"}, reply_to="client"),
            "invalid_parameters": request({"action_ref": "a", "concurrency_key": "k"}, reply_to="client"),
            "unsupported_schema_version": request(
                {"action_ref": "a"}, reply_to="client", headers={"schema_version": 9}
            ),
        }
        await client.publish([*refused.values(), request({"action_ref": "a"}, reply_to="client")])
        await replies.until(len(refused) + 1)
        by_id = {each.header.properties.correlation_id: json.loads(each.body) for each in replies.messages}
        assert {code: by_id[each.message_id]["code"] for code, each in refused.items()} == {
            code: code for code in refused
        }
        letters = await drain_queue(amqp_url, DEAD_LETTERS, len(refused))
        assert {each.message_id: each.headers["x-error-code"] for each in letters} == {
            each.message_id: code for code, each in refused.items()
        }
        assert {each.message_id: each.body for each in letters} == {
            each.message_id: each.body for each in refused.values()
        }
        await until(lambda: len(worker.offers) == 1, "the offer of the valid one")


async def test_a_cancel_reaches_the_worker_and_is_answered(amqp_url: str, ledger: Ledger) -> None:
    async with listener(amqp_url, "client") as replies, installation(amqp_url, ledger) as (worker, client):
        await client.publish([request({"action_ref": "a", "idempotency_key": "k"}, reply_to="client")])
        await until(lambda: worker.offers, "an offer")
        await client.publish([cancel_request({"idempotency_key": "k"}, reply_to="client")])
        await replies.until(2)
        kinds = [each.header.properties.message_type for each in replies.messages]
        assert kinds == ["execution.accepted", "execution.cancel_accepted"]
        execution_id = bodies(replies)[0]["execution_id"]
        await until(
            lambda: getattr(worker.received[-1].body, "execution_id", None) == execution_id, "a cancel"
        )


async def test_equal_messages_without_an_id_are_two_executions(amqp_url: str, ledger: Ledger) -> None:
    async with listener(amqp_url, "client") as replies, installation(amqp_url, ledger) as (worker, client):
        anonymous = request({"action_ref": "a"}, reply_to="client", message_id="")
        await client.publish([anonymous, anonymous])
        await replies.until(2)
        assert [each["duplicate"] for each in bodies(replies)] == [False, False]
        await until(lambda: len(worker.offers) == 2, "two offers")


async def test_parameters_that_do_not_fit_are_refused_and_a_copy_of_an_admitted_request_is_not(
    amqp_url: str, ledger: Ledger
) -> None:
    checkers: list[SchemaChecker] = []
    async with (
        listener(amqp_url, "client") as replies,
        installation(
            amqp_url, ledger, refusal_of=lambda ref, given: refusal_of_parameters(given, checkers, ref)
        ) as (_, client),
    ):
        admitted = request({"action_ref": "a", "parameters": {"n": "text"}}, reply_to="client")
        await client.publish([admitted])
        await replies.until(1)
        checkers.append(
            SchemaChecker({"type": "object", "properties": {"n": {"type": "integer"}}}, is_converted=False)
        )
        again = request({"action_ref": "a", "parameters": {"n": "text"}}, reply_to="client")
        await client.publish([admitted, again])
        await replies.until(3)
        copy, refused = bodies(replies)[1:]
        assert (copy["execution_id"], copy["duplicate"]) == (bodies(replies)[0]["execution_id"], True)
        assert refused["code"] == "invalid_parameters"


async def test_the_next_leader_goes_on_with_the_requests_of_one_that_stops(
    amqp_url: str, ledger: Ledger, other: Ledger
) -> None:
    clock = LeaderClock()
    sent = [request({"action_ref": "a", "parameters": {"n": n}}, reply_to="client") for n in range(300)]
    async with (
        listener(amqp_url, "client") as replies,
        leader_broker(amqp_url, wake=clock.wake) as broker,
        AsyncExitStack() as first,
    ):
        _, client = await first.enter_async_context(installation(amqp_url, ledger))
        following = Leader("following", other, broker, clock)
        async with in_background(following.run(), name="following"):
            await client.publish(sent[:100])
            await replies.until(50)
            # Its publisher and its leader end; the session of the worker, too.
            await first.aclose()
            async with publishing(amqp_url, declare=declare_executor) as again:
                await again.publish(sent[100:])
                await until(lambda: len({_correlation(each) for each in replies.messages}) == 300, "answers")
    answers = {_correlation(each): json.loads(each.body)["execution_id"] for each in replies.messages}
    ids = [answers[each.message_id] for each in sent]
    assert ids == sorted(set(ids))


async def test_an_outage_of_the_broker_ends_with_every_request_answered(
    amqp_url: str, ledger: Ledger
) -> None:
    clock = LeaderClock()
    sent = [request({"action_ref": "a", "parameters": {"n": n}}, reply_to="client") for n in range(200)]
    async with (
        proxy_to(amqp_url) as proxy,
        listener(amqp_url, "client") as replies,
        listener(amqp_url, session_queue(SENDER.worker_id, SENDER.session)) as worker,
        publishing(amqp_url, declare=declare_executor) as client,
        leader_broker(proxy.url, wake=clock.wake) as broker,
    ):
        leader = Leader("executor", ledger, broker, clock)
        async with in_background(leader.run(), name="leader"):
            await client.publish([hello(definitions=({"ref": "a"},))])
            await worker.until(1)
            await client.publish(sent[:100])
            await replies.until(10)
            proxy.state = LinkState(refuses=True)
            await client.publish(sent[100:])
            await until(lambda: not broker.is_open and not broker.connected)
            proxy.state = LinkState()
            await until(lambda: len({_correlation(each) for each in replies.messages}) == 200, "answers")
    answers = {_correlation(each): json.loads(each.body)["execution_id"] for each in replies.messages}
    ids = [answers[each.message_id] for each in sent]
    assert ids == sorted(set(ids))


def _correlation(message: DeliveredMessage) -> str:
    return str(message.header.properties.correlation_id)
