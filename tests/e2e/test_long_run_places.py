"""The places of a worker that long runs take: it takes no offer beyond them, and uses them again (P5, P8)."""

from pathlib import Path

from tests.support.history import most_running_at_once, physical
from tests.support.scene import EARLY, LATE, ONE_PLACE, playing, until_logged


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
