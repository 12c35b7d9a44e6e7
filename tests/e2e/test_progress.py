"""What an action reports of its progress, and what it knows about its attempt, with real workers.

Whole services: a report goes from the process of an action to a client.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.actions import Attempted, reports, reports_plain
from tests.support.environment import Environment
from tests.support.traffic import until
from turnstile.client import AsyncClient, StatusEvent, use_client

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("action", [reports, reports_plain])
async def test_progress_is_shown_while_it_runs_and_kept_with_the_attempt(
    env: Environment, tmp_path: Path, action: Any
) -> None:
    file = tmp_path / "file"
    seen: list[StatusEvent] = []
    async with asyncio.timeout(60), AsyncClient(http_url=env.system.http_url) as client:
        with use_client(client):
            submitted = action.with_options(metadata={"order": "A-17"}, idempotency_key=f"{file}")
            handle = await submitted.submit(file=str(file), total=100)

            async def follow() -> None:
                async for event in handle.events():
                    seen.append(event)  # noqa: PERF401  (read while it grows)

            following = asyncio.create_task(follow())
            # The last report of the first half arrives, although reports came faster than they are stored.
            await until(
                lambda: any(event.progress and event.progress.done == 50 for event in seen), "an event"
            )
            shown = await handle.get()
            assert shown.progress is not None
            assert (shown.progress.done, shown.progress.total, shown.progress.message) == (50, 100, "page 50")
            file.touch()
            result: Attempted = await handle.result()
            await following

            async def is_stored() -> bool:
                progress = (await handle.get()).progress
                return progress is not None and progress.done == 100

            # It is no part of the end, and may be stored after it.
            await until(is_stored, "the last progress")
        assert result.seconds_left is not None
        assert 0 < result.seconds_left <= 60
        assert result == Attempted({"order": "A-17"}, str(file), str(file), result.seconds_left)
        ended = await handle.get()
        assert ended.progress is not None
        assert ended.progress.message == "page 100"
        assert [attempt.progress for attempt in ended.attempts] == [ended.progress]
    assert seen[-1].progress is not None
