"""What people are told under load equals a recount of the rows (P10)."""

import asyncio
from pathlib import Path

import httpx

from tests.support.history import history_of
from tests.support.processes import running
from tests.support.traffic import submit


async def test_queue_stats_sum_up_at_every_sample_under_load(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    async with (
        running(database_url, amqp_url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=system.http_url) as http,
    ):
        await submit(amqp_url, [{"action_ref": "record.seven", "parameters": {"file": str(file)}}] * 1000)
        samples = 0
        ended = asyncio.create_task(history.ended(1000))
        while not ended.done():
            stats = (await http.get("/actions/record.seven/queue-stats")).json()
            assert stats["queue_length"] == sum(stats["waiting"].values())
            assert 0 <= stats["active_count"] <= stats["max_concurrent"] == 7
            assert (
                stats["total_completed"] + stats["active_count"] + stats["queue_length"]
                == stats["total_enqueued"]
            )
            samples += 1
            await asyncio.sleep(0.02)
        await ended
        final = (await http.get("/api/v1/actions/record.seven/queue-stats")).json()
    assert samples > 10
    assert final["total_completed"] == 1000
    assert final["queue_length"] == final["active_count"] == 0
