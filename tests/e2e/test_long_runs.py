"""Runs longer than the broker waits for an acknowledgement, and what it counts while they run (P5, P8)."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from localservers import LocalServers
from migrations import migrate
from tests.contract.brokers import ready_messages
from tests.contract.cable import Cable, cable_to
from tests.e2e.history import History, history_of, most_running_at_once, physical
from tests.e2e.processes import Service, System, running
from tests.e2e.traffic import until

POOL_QUEUE = "worker.default"
EARLY = "acknowledged_early"
LATE = "given_back_late"
ONE_PLACE = {
    "TURNSTILE_WORKER_CONCURRENCY": "1",
    "TURNSTILE_ACKNOWLEDGE_AFTER": "500ms",
    # What is not taken stays where it is: no second offer hides a first one that a worker sits on.
    "TURNSTILE_DISPATCH_TIMEOUT": "1h",
}


class Scene:
    """A running system with its record and its API."""

    def __init__(self, system: System, history: History, http: httpx.AsyncClient) -> None:
        self.system = system
        self.history = history
        self._http = http

    async def submit(self, ref: str, **parameters: Any) -> int:
        """Submit one execution and return its id."""
        answer = await self._http.post("/executions", json={"action_ref": ref, "parameters": parameters})
        execution_id: int = answer.json()["id"]
        return execution_id

    async def change(self, ref: str, **fields: Any) -> None:
        """Change the definition of an action."""
        assert (await self._http.patch(f"/actions/{ref}", json=fields)).status_code == 200

    async def cancel(self, execution_id: int) -> None:
        """Cancel it, and wait until it is over."""
        assert (await self._http.post(f"/executions/{execution_id}/cancel")).status_code == 202
        await self.until_status(execution_id, "cancelled")

    async def until_status(self, execution_id: int, status: str) -> None:
        """Wait until it has come to that state."""

        async def is_there() -> bool:
            found = await self.history.value("SELECT status FROM execution WHERE id = $1", execution_id)
            return bool(found == status)

        await until(is_there, f"execution {execution_id} is {status}", deadline_seconds=20)

    async def worker_of(self, execution_id: int) -> str:
        """Return the name of the worker that ran its last attempt."""
        query = "SELECT w.name FROM execution e JOIN worker w ON w.id = e.worker_id WHERE e.id = $1"
        name: str = await self.history.value(query, execution_id)
        return name

    async def attempts(self, execution_id: int) -> int:
        """Return how many attempts of it have been claimed."""
        query = "SELECT count(*) FROM attempt WHERE execution_id = $1"
        count: int = await self.history.value(query, execution_id)
        return count

    async def until_ready(self, count: int, queue: str = POOL_QUEUE) -> None:
        """Wait until so many offers wait in the queue of the pool, taken by nobody."""

        async def is_so() -> bool:
            return await ready_messages(self.system.amqp_url, queue) == count

        await until(is_so, f"{count} offers wait in {queue}", deadline_seconds=20)


@asynccontextmanager
async def playing(
    database_url: str, amqp_url: str, settings: dict[str, str], **first_worker: str
) -> AsyncIterator[Scene]:
    """Run one executor and one worker, which may have settings of its own."""
    async with (
        running(database_url, amqp_url, workers=0, settings=settings) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=20) as http,
    ):
        await system.start_worker("tests.e2e.actions", **first_worker)
        yield Scene(system, history, http)


async def until_logged(service: Service, event: str) -> None:
    async def is_logged() -> bool:
        return event in service.log.read_text()

    await until(is_logged, f"{event} in the log of {service.name}", deadline_seconds=20)


async def test_a_run_of_several_acknowledgement_timeouts_runs_once_and_so_do_its_neighbours(
    own_servers: Callable[..., LocalServers], tmp_path: Path
) -> None:
    servers = await asyncio.to_thread(own_servers, consumer_timeout_seconds=3)
    database_url = servers.postgresql.create_database("turnstile")
    amqp_url = servers.rabbitmq.create_vhost("turnstile")
    await migrate(database_url)
    file = tmp_path / "record.jsonl"
    settings = {"TURNSTILE_WORKER_CONCURRENCY": "3", "TURNSTILE_ACKNOWLEDGE_AFTER": "800ms"}
    async with playing(database_url, amqp_url, settings) as scene:
        await scene.change("record", max_concurrent=None)
        await scene.submit("record", file=str(file), number=0)
        long_run = await scene.submit("record", file=str(file), number=1, seconds=10)
        number = 1
        while (await scene.history.value("SELECT status FROM execution WHERE id = $1", long_run)) != (
            "completed"
        ):
            number += 1
            await scene.until_status(
                await scene.submit("record", file=str(file), number=number, seconds=0.3), "completed"
            )
        await scene.submit("record", file=str(file), number=number + 1)
        await scene.history.ended(number + 2)
        log = scene.system.workers[0].log.read_text()
    started = [line.number for line in physical(file) if line.event == "start"]
    assert sorted(started) == list(range(number + 2))
    assert number > 10
    assert "subscription_lost" not in log
    assert "Timeout value used" not in (servers.rabbitmq.folder / "rabbitmq-node.log").read_text()


async def test_a_worker_full_of_long_runs_takes_nothing_and_another_gets_the_next_offers(
    database_url: str, amqp_url: str
) -> None:
    async with playing(database_url, amqp_url, ONE_PLACE) as scene:
        first = scene.system.workers[0]
        long_run = await scene.submit("hold")
        await until_logged(first, EARLY)
        waiting = await scene.submit("noop")
        await scene.until_ready(1)
        second = await scene.system.start_worker("tests.e2e.actions")
        await scene.until_status(waiting, "completed")
        assert await scene.worker_of(waiting) == second.name
        assert LATE not in first.log.read_text()
        await second.stop()
        waiting = await scene.submit("noop")
        await scene.until_ready(1)
        await scene.cancel(long_run)
        await scene.until_status(waiting, "completed")
        assert await scene.worker_of(waiting) == first.name
        assert await scene.attempts(long_run) == 1


async def test_places_freed_by_long_runs_are_all_used_again(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    settings = ONE_PLACE | {"TURNSTILE_WORKER_CONCURRENCY": "3"}
    async with playing(database_url, amqp_url, settings) as scene:
        await scene.change("hold", max_concurrent=None)
        await scene.change("record", max_concurrent=None)
        for number in range(2):
            long_runs = [await scene.submit("hold") for _ in range(3)]
            for long_run in long_runs:
                await scene.until_status(long_run, "running")
            waiting = [await scene.submit("record", file=str(file), seconds=1.5) for _ in range(4)]
            # Not before the bound is 0: then all three are acknowledged, and nothing is sent for them.
            await scene.until_ready(4)
            for long_run in long_runs:
                await scene.cancel(long_run)
            for execution_id in waiting:
                await scene.until_status(execution_id, "completed")
            lines = physical(file)[number * 8 :]
            assert len(lines) == 8
            assert most_running_at_once(lines) == 3


async def test_a_run_that_lost_its_channel_is_not_started_again_and_keeps_its_place(
    database_url: str, amqp_url: str
) -> None:
    settings = ONE_PLACE | {"TURNSTILE_ACKNOWLEDGE_AFTER": "1h"}
    async with (
        cable_to(amqp_url) as cable,
        playing(database_url, amqp_url, settings, TURNSTILE_AMQP_URL=cable.url) as scene,
    ):
        first = scene.system.workers[0]
        long_run = await scene.submit("hold")
        await scene.until_status(long_run, "running")
        waiting = await scene.submit("noop")
        await scene.until_ready(1)
        await cut_off(cable, first)
        # The copy of the long run and the one that waits: the worker is full, so it takes neither.
        await scene.until_ready(2)
        second = await scene.system.start_worker("tests.e2e.actions")
        await scene.until_status(waiting, "completed")
        assert await scene.worker_of(waiting) == second.name
        assert await scene.worker_of(long_run) == first.name
        await scene.cancel(long_run)
        assert await scene.attempts(long_run) == 1
        assert LATE not in first.log.read_text()


async def test_a_copy_that_comes_back_to_its_runner_is_held_until_the_run_ends(
    database_url: str, amqp_url: str
) -> None:
    settings = ONE_PLACE | {"TURNSTILE_ACKNOWLEDGE_AFTER": "1h", "TURNSTILE_WORKER_CONCURRENCY": "2"}
    async with (
        cable_to(amqp_url) as cable,
        playing(database_url, amqp_url, settings, TURNSTILE_AMQP_URL=cable.url) as scene,
    ):
        await scene.change("hold", max_concurrent=None)
        worker = scene.system.workers[0]
        long_run = await scene.submit("hold")
        await scene.until_status(long_run, "running")
        for _ in range(3):
            await cut_off(cable, worker)
            await scene.until_ready(0)
        other = await scene.submit("hold")
        await scene.until_status(other, "running")
        waiting = await scene.submit("noop")
        await scene.until_ready(1)
        await scene.cancel(long_run)
        await scene.until_status(waiting, "completed")
        await scene.cancel(other)
        await worker.stop()
        await scene.until_ready(0)
        assert [await scene.attempts(each) for each in (long_run, other, waiting)] == [1, 1, 1]


async def test_what_another_pool_leaves_no_place_for_is_given_back_once_and_asked_for_again(
    database_url: str, amqp_url: str
) -> None:
    settings = ONE_PLACE | {"TURNSTILE_ACKNOWLEDGE_AFTER": "1h", "TURNSTILE_WORKER_POOLS": "default,side"}
    async with playing(database_url, amqp_url, settings) as scene:
        first = scene.system.workers[0]
        await scene.change("noop", pool="side")
        long_run = await scene.submit("hold")
        await scene.until_status(long_run, "running")
        waiting = await scene.submit("noop")
        await until_logged(first, LATE)
        await scene.until_ready(1, "worker.side")
        second = await scene.system.start_worker("tests.e2e.actions", TURNSTILE_WORKER_POOLS="side")
        await scene.until_status(waiting, "completed")
        assert await scene.worker_of(waiting) == second.name
        assert first.log.read_text().count(LATE) == 1
        await second.stop()
        waiting = await scene.submit("noop")
        await scene.until_ready(1, "worker.side")
        await scene.cancel(long_run)
        await scene.until_status(waiting, "completed")
        assert await scene.worker_of(waiting) == first.name


async def test_a_drain_hands_back_a_run_that_was_acknowledged_early(database_url: str, amqp_url: str) -> None:
    settings = ONE_PLACE | {"TURNSTILE_DRAIN_TIMEOUT": "500ms", "TURNSTILE_STOP_GRACE": "500ms"}
    async with playing(database_url, amqp_url, settings) as scene:
        first = scene.system.workers[0]
        long_run = await scene.submit("hold")
        await until_logged(first, EARLY)
        first.signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.process.wait(), 20) == 0
        second = await scene.system.start_worker("tests.e2e.actions")
        await scene.until_status(long_run, "running")
        assert await scene.worker_of(long_run) == second.name
        await scene.cancel(long_run)
        assert await scene.attempts(long_run) == 2


async def cut_off(cable: Cable, worker: Service) -> None:
    """Break the worker's connections to the broker, and wait until it has new ones."""
    before = _times_connected(worker)
    cable.cut()

    async def is_back() -> bool:
        return _times_connected(worker) > before

    await until(is_back, f"{worker.name} has connected again", deadline_seconds=20)
    await worker.ready()


def _times_connected(worker: Service) -> int:
    lines = worker.log.read_text().splitlines()
    return sum("broker_connected" in line and f"{worker.name} consumer" in line for line in lines)
