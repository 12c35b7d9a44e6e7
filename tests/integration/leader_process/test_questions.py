"""Questions to real leader processes, over both carriers."""

import asyncio
import signal

from tests.integration.leader_process.support import (
    Executor,
    Store,
    executor,
    has_action,
    led_by_the_first,
    resumed_at_the_end,
)
from tests.support.brokers import bare_channel
from tests.support.traffic import until
from turnstile.executor.asking.asker import Asker, LocalAsker
from turnstile.executor.asking.broker_rpc import EXCHANGE, BrokerAsker
from turnstile.executor.questions.protocol import Answered, Leading, Unanswered


async def test_the_leader_of_this_host_is_asked_directly(
    database_url: str, amqp_url: str, store: Store
) -> None:
    async with executor("one", database_url, amqp_url) as one:
        await one.until_leading()
        only_local = Asker(one.leader.local, BrokerAsker(amqp_url))
        found = await only_local.ask(Leading())
        assert isinstance(found, Answered)
        assert (found.epoch, found.body.epoch) == (one.epoch, one.epoch)
        assert await store.leader() == (found.epoch, found.body.executor_id)


async def test_a_command_is_decided_and_its_outcome_is_shown(
    database_url: str, amqp_url: str, store: Store
) -> None:
    async with executor("one", database_url, amqp_url) as one:
        await one.until_leading()
        await store.define("a")
        await until(lambda: has_action(one.asker, "a"), "the action is there", deadline_seconds=5)


async def test_the_leader_of_another_host_is_asked_over_the_broker(database_url: str, amqp_url: str) -> None:
    async with led_by_the_first(database_url, amqp_url) as (one, two):
        await until_it_can_ask(two)
        found = await two.asker.ask(Leading())
        assert isinstance(found, Answered), found
        assert found.epoch == one.epoch


async def test_the_leader_of_another_host_is_found_again_after_the_exchange_of_questions_was_deleted(
    database_url: str, amqp_url: str
) -> None:
    async with led_by_the_first(database_url, amqp_url) as (_, two):
        await until_it_can_ask(two)
        async with bare_channel(amqp_url) as channel:
            await channel.exchange_delete(EXCHANGE)

        async def is_answered() -> bool:
            return isinstance(await two.asker.ask(Leading(), 0.5), Answered)

        await until(is_answered, "an answer over the new exchange", deadline_seconds=15)


async def until_it_can_ask(one: Executor) -> None:
    await until(lambda: one.broker.is_connected, "it is connected to the broker", deadline_seconds=10)


async def test_questions_of_many_askers_are_all_answered(database_url: str, amqp_url: str) -> None:
    async with executor("one", database_url, amqp_url) as one:
        await one.until_leading()
        await until_it_can_ask(one)
        only_broker = Asker(LocalAsker(), one.broker)
        async with asyncio.timeout(20):
            found = await asyncio.gather(
                *(asker.ask(Leading(), 10) for asker in (one.asker, only_broker) for _ in range(200))
            )
        assert all(isinstance(each, Answered) for each in found)


async def test_without_a_leader_the_asker_hears_so_in_time(database_url: str, amqp_url: str) -> None:
    async with executor("one", database_url, amqp_url) as one:
        await one.until_leading()
        await until_it_can_ask(one)
        pid = one.signal(signal.SIGSTOP)
        with resumed_at_the_end(pid):
            began_at = asyncio.get_running_loop().time()
            found = await one.asker.ask(Leading(), 0.5)
            assert isinstance(found, Unanswered)
            assert found.why == "no_answer"
            assert asyncio.get_running_loop().time() - began_at < 1.0


async def test_a_leader_that_was_stopped_and_deposed_answers_nothing_that_it_was_asked_before(
    database_url: str, amqp_url: str
) -> None:
    async with led_by_the_first(database_url, amqp_url) as (one, two):
        await until_it_can_ask(two)
        pid = one.signal(signal.SIGSTOP)
        with resumed_at_the_end(pid):
            asked = asyncio.create_task(Asker(one.leader.local, BrokerAsker(amqp_url)).ask(Leading(), 20))
            everybody = asyncio.create_task(Asker(LocalAsker(), two.broker).ask(Leading(), 8))
            await two.until_leading()
            one.signal(signal.SIGCONT)
            found = await asked
            assert isinstance(found, Unanswered)
            # Asked while no executor led: the one that leads now may have it or not, the old one never.
            found = await everybody
            assert isinstance(found, Unanswered) or found.epoch == two.epoch
