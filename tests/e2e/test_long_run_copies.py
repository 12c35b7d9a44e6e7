"""Long runs whose offer comes again after a loss: no second start, and no place more or less (P5, P8)."""

from tests.support.cable import Cable, cable_to
from tests.support.processes import Service
from tests.support.scene import LATE, ONE_PLACE, playing
from tests.support.traffic import until


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
