"""Both clients on a real broker, with an executor that the test controls."""

import asyncio
import inspect
import json
import threading
from dataclasses import replace

import pytest
from aiormq.exceptions import PublishError

from tests.integration.client.fake_executor import Background, Reply, accept, run_fake_executor
from tests.support.brokers import bare_channel
from tests.support.proxy import proxy_to
from tests.support.traffic import until
from turnstile.client import (
    AsyncClient,
    AsyncHandle,
    Client,
    Rejected,
    Request,
    Status,
    Submitted,
    Unavailable,
    completions,
)
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTIONS
from turnstile.common.domain.errors import Code
from turnstile.common.messages import ExecutionRejected


def _numbered(count: int) -> list[Request]:
    return [Request(action_ref="noop", parameters={"number": number}) for number in range(count)]


def _number(delivery: Delivery) -> int:
    return int(json.loads(delivery.body)["parameters"]["number"])


async def test_a_list_is_published_and_answered_in_order(amqp_url: str) -> None:
    def refuse_every_seventh(delivery: Delivery, execution_id: int, duplicate: bool) -> Reply | None:
        if _number(delivery) % 7 == 0:
            return ExecutionRejected(code=Code.QUEUE_FULL, message=f"{_number(delivery)}")
        return accept(delivery, execution_id, duplicate)

    async with (
        run_fake_executor(amqp_url, refuse_every_seventh) as executor,
        AsyncClient(amqp_url=amqp_url) as client,
    ):
        requests = _numbered(2600)
        requests[3] = replace(requests[3], action_ref="no such name")
        answers = await client.submit_many(iter(requests))

    assert [_number(each) for each in executor.deliveries] == [n for n in range(2600) if n != 3]
    for number, answer in enumerate(answers):
        if number == 3:
            assert isinstance(answer, Rejected)
            assert answer.code == "invalid_message"
        elif number % 7 == 0:
            assert isinstance(answer, Rejected)
            assert (answer.code, answer.message) == ("queue_full", f"{number}")
        else:
            assert isinstance(answer, AsyncHandle)
            assert _number(executor.deliveries[answer.execution_id - 1]) == number


async def test_a_publish_cut_in_the_middle_is_repeated_in_order_under_the_same_ids(amqp_url: str) -> None:
    async with (
        run_fake_executor(amqp_url) as executor,
        proxy_to(amqp_url) as proxy,
        AsyncClient(amqp_url=proxy.url) as client,
    ):
        await client.submit("noop", {"number": -1})
        proxy.cut_after(40_000)
        answers = await client.submit_many(_numbered(300))

    first_seen = dict.fromkeys(_number(each) for each in executor.deliveries)
    assert list(first_seen) == list(range(-1, 300))
    assert len(executor.admitted) == 301
    assert all(isinstance(each, AsyncHandle) and not each.duplicate for each in answers)


async def test_a_reply_lost_with_the_connection_is_requested_again(amqp_url: str) -> None:
    async with (
        run_fake_executor(amqp_url, lambda *_: None) as executor,
        proxy_to(amqp_url) as proxy,
        AsyncClient(amqp_url=proxy.url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        submitted = tasks.create_task(client.submit("noop", {"number": 1}))
        await executor.has_received(1)
        executor.decide = accept
        proxy.cut()
        await submitted

    assert submitted.result().submitted == Submitted(
        execution_id=1, status=Status.QUEUED, position=1, duplicate=False
    )
    assert len(executor.admitted) == 1


async def test_no_reply_in_time_is_an_unknown_outcome(amqp_url: str) -> None:
    async with (
        run_fake_executor(amqp_url, lambda *_: None) as executor,
        AsyncClient(amqp_url=amqp_url, answer_timeout="1s") as client,
    ):
        await executor.has_received(0)
        with pytest.raises(Unavailable, match="no executor replied"):
            await client.submit("noop")


async def test_without_an_executor_the_error_names_the_missing_exchange(amqp_url: str) -> None:
    async with AsyncClient(amqp_url=amqp_url, answer_timeout="3s") as client:
        with pytest.raises(Unavailable, match="no exchange 'executions'"):
            await client.submit("noop")


async def test_without_a_broker_calls_fail_in_time(unused_tcp_port: int) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{unused_tcp_port}/"
    async with AsyncClient(amqp_url=url, answer_timeout=0.5) as client:
        with pytest.raises(Unavailable, match="no usable connection"):
            await client.submit("noop")
        with pytest.raises(Unavailable, match="no usable connection"):
            await client.cancel(1)


async def test_a_client_that_waits_no_longer_receives_no_completions(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "_IDLE_SECONDS", 0.05)

    async def is_bound() -> bool:
        try:
            await channel.basic_publish(
                b"{}", exchange=EXECUTIONS, routing_key=EXECUTION_COMPLETED, mandatory=True
            )
        except PublishError:
            return False
        return True

    async def is_unbound() -> bool:
        return not await is_bound()

    async with bare_channel(amqp_url) as channel, AsyncClient(amqp_url=amqp_url) as client:
        # Without other queues: an event that the client does not receive comes back.
        await channel.exchange_declare(EXECUTIONS, exchange_type="topic", durable=True)
        for _ in range(2):
            waiting = asyncio.create_task(client.wait(1))
            await until(is_bound, "the queue of completions is bound")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await until(is_unbound, "it is unbound")


async def test_a_late_reply_is_ignored(amqp_url: str) -> None:
    kept: list[Delivery] = []

    def keep_the_first(delivery: Delivery, execution_id: int, duplicate: bool) -> Reply | None:
        if _number(delivery) == 0:
            kept.append(delivery)
            return None
        return accept(delivery, execution_id, duplicate)

    async with (
        run_fake_executor(amqp_url, keep_the_first) as executor,
        AsyncClient(amqp_url=amqp_url, answer_timeout=1.0) as client,
    ):
        with pytest.raises(Unavailable):
            await client.submit("noop", {"number": 0})
        await until(lambda: bool(kept))
        await executor.answer(kept[0], accept(kept[0], 1, False))
        assert (await client.submit("noop", {"number": 1})).execution_id == 2


async def test_a_client_can_be_closed_at_any_moment_of_connecting(amqp_url: str) -> None:
    for moment in range(40):
        async with asyncio.timeout(10), AsyncClient(amqp_url=amqp_url):
            await asyncio.sleep(moment * 0.00125)


def test_the_blocking_client_has_every_method_with_the_same_arguments() -> None:
    client = Client()
    coroutines = inspect.getmembers(AsyncClient, inspect.iscoroutinefunction)
    for name in (name for name, _ in coroutines if not name.startswith("_")):
        renamed = {"aopen": "open", "aclose": "close"}.get(name, name)
        blocking, coroutine = getattr(client, renamed), getattr(AsyncClient(), name)
        assert (
            inspect.signature(blocking).parameters.keys() - {"self"}
            == inspect.signature(coroutine).parameters.keys()
        )
        written_twice = renamed != name or name in ("submit", "submit_many", "retry", "admitted")
        assert written_twice or blocking.__doc__ == coroutine.__doc__


def test_closing_ends_the_calls_of_other_threads(amqp_url: str) -> None:
    raised: list[Unavailable] = []

    def submit(client: Client) -> None:
        try:
            client.submit("noop")
        except Unavailable as error:
            raised.append(error)

    with Background(amqp_url, answering=False) as background:
        with Client(amqp_url=amqp_url) as client:
            thread = threading.Thread(target=submit, args=(client,))
            thread.start()
            deadline = threading.Event()
            while not (background.executor and background.executor.deliveries):
                deadline.wait(0.01)
        thread.join()
    assert ["closed" in str(error) for error in raised] == [True]
