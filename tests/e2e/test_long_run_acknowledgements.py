"""Runs longer than the broker waits for an acknowledgement: each runs once, and can be drained (P5, P8)."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from tests.support.history import physical
from tests.support.scene import EARLY, ONE_PLACE, playing, until_logged
from turnstile.localservers import LocalServers
from turnstile.migrations import migrate


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
