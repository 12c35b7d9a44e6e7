"""One executor sweeps while the others receive its notices, and another one does when these end (P7)."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.integration.telemetry.test_healing import Silent
from tests.support.protocol import Protocol
from tests.support.traffic import until
from turnstile.common.broker.publisher import Publisher
from turnstile.common.database import Database
from turnstile.executor.protocol import SWEEPS_CHANNEL
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.slot_grants import QueueManager
from turnstile.executor.submission_listener import SubmissionListener
from turnstile.executor.sweep_turns import SweepTurns
from turnstile.executor.watchdog import Watchdog

_INTERVAL_SECONDS = 0.5
_ROUNDS = 4
_BOUND_SECONDS = 60.0


class Reaching(Silent):
    """Publishes nothing, over a connection that a test opens and closes."""

    connected = True
    sees_pools = True

    async def ready_offers(self, pools: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(pools, 100) if self.sees_pools else {}


@dataclass
class Executor:
    """What of an executor takes part in the turns."""

    turns: SweepTurns
    watchdog: Watchdog
    dispatcher: Reaching
    tasks: list[asyncio.Task[None]]
    heard: list[str]

    def kill(self) -> None:
        for task in self.tasks:
            task.cancel()


@asynccontextmanager
async def executor(database_url: str) -> AsyncIterator[Executor]:
    database = Database(database_url, application_name="test", connections_max=6)
    await database.open()
    queue_manager = QueueManager(database)
    publisher = Publisher("amqp://127.0.0.1:1/", name="test")
    dispatcher = Reaching(publisher, queue_manager, "quorum", publisher)
    turns = SweepTurns(_INTERVAL_SECONDS)
    settings = ExecutorSettings(watchdog_interval=_INTERVAL_SECONDS)
    watchdog = Watchdog(settings, database, queue_manager, dispatcher, turns)
    heard: list[str] = []

    def hear(name: str) -> None:
        heard.append(name)
        turns.received(name)

    listener = SubmissionListener(
        database_url, queue_manager, dispatcher, batch_max=1, parameters_bytes_max=1, on_round=hear
    )
    tasks = [
        asyncio.create_task(listener.run(asyncio.Event())),
        asyncio.create_task(watchdog.run()),
    ]
    one = Executor(turns, watchdog, dispatcher, tasks, heard)
    try:
        yield one
    finally:
        one.kill()
        await asyncio.gather(*tasks, return_exceptions=True)
        await database.close()


@pytest.fixture
async def executors(protocol: Protocol, database_url: str) -> AsyncIterator[list[Executor]]:
    async with AsyncExitStack() as stack:
        several = [await stack.enter_async_context(executor(database_url)) for _ in range(3)]
        await until(lambda: _stand_by(several) == 2)
        yield several


def _stand_by(executors: list[Executor]) -> int:
    return sum(each.turns.stands_by for each in executors)


def _rounds(executors: list[Executor]) -> int:
    return sum(each.turns.number for each in executors)


def _sweeping(executors: list[Executor]) -> Executor:
    return next(each for each in executors if not each.turns.stands_by)


async def test_one_of_several_executors_sweeps_and_the_others_do_not(executors: list[Executor]) -> None:
    async with asyncio.timeout(_BOUND_SECONDS):
        # A notice that is late on a busy machine lets the others sweep too, once.
        while sorted(await _next_rounds(executors))[:2] != [0, 0]:
            pass


async def _next_rounds(executors: list[Executor]) -> list[int]:
    """Wait for a few rounds; return how many of them were each executor's."""
    before = [each.turns.number for each in executors]
    await until(lambda: _rounds(executors) >= sum(before) + _ROUNDS)
    return [each.turns.number - number for each, number in zip(executors, before, strict=True)]


async def test_another_executor_sweeps_when_the_sweeping_one_falls_silent(executors: list[Executor]) -> None:
    silent = _sweeping(executors)
    silent.dispatcher.connected = False
    others = [each for each in executors if each is not silent]
    await _sweep(others)
    silent.dispatcher.connected = True
    killed = _sweeping(others)
    killed.kill()
    await _sweep([each for each in executors if each is not killed])


async def test_an_executor_that_may_not_reach_the_workers_sends_no_notice(
    protocol: Protocol, executors: list[Executor]
) -> None:
    sweeping = _sweeping(executors)
    silent = next(each for each in executors if each is not sweeping)
    silent.kill()
    await asyncio.gather(*silent.tasks, return_exceptions=True)
    before = await _notices(protocol, of=silent, heard_by=sweeping)
    silent.dispatcher.connected = False
    await silent.watchdog.announce_round()
    silent.dispatcher.connected = True

    # Offers are due in a pool for which the broker does not answer.
    silent.dispatcher.sees_pools = False
    await protocol.put("a")
    await protocol.submit("a")
    await protocol.connection.execute("UPDATE slot SET offered_at = offered_at - interval '1 h'")
    await silent.watchdog.redelivery.repeat_offers()
    await silent.watchdog.announce_round()

    silent.dispatcher.sees_pools = True
    await silent.watchdog.redelivery.repeat_offers()
    await silent.watchdog.announce_round()
    assert await _notices(protocol, of=silent, heard_by=sweeping) == before + 1


async def _notices(protocol: Protocol, *, of: Executor, heard_by: Executor) -> int:
    """Return how many notices of an executor another one has heard of those that were sent until now."""
    # Notices arrive in their order.
    last = f"notice {len(heard_by.heard)}"
    await protocol.connection.execute("SELECT pg_notify($1, $2)", SWEEPS_CHANNEL, last)
    await until(lambda: last in heard_by.heard)
    return heard_by.heard.count(of.turns.name)


async def _sweep(executors: list[Executor]) -> None:
    """Wait until one of these has swept several times, and the others receive its notices."""
    enough = _rounds(executors) + _ROUNDS
    await until(lambda: _rounds(executors) >= enough and _stand_by(executors) == len(executors) - 1)
