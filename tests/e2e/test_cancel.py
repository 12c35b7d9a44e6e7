"""Cancelling, wherever the execution stands, whoever asks, and however the asking goes (P3, P6)."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.stage import Stage, numbers_in, still_there
from tests.support.traffic import ask, cancel_request, publishing, request, until
from turnstile.client import AsyncClient

pytestmark = pytest.mark.asyncio(loop_scope="module")
GRACE_SECONDS = 1.0
STAGE = {
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
        "TURNSTILE_LEASE_DURATION": "2s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
        "TURNSTILE_STOP_GRACE": f"{GRACE_SECONDS}s",
    },
}


async def by_http(stage: Stage, execution_id: int) -> None:
    await stage.cancel(execution_id, reason="enough")


async def by_message(stage: Stage, execution_id: int) -> None:
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": execution_id, "reason": "enough"})])


async def by_client(stage: Stage, execution_id: int) -> None:
    async with AsyncClient(amqp_url=stage.amqp_url, http_url=stage.system.http_url) as client:
        await client.cancel(execution_id, reason="enough")


async def by_command_line(stage: Stage, execution_id: int) -> None:
    command = ["-m", "turnstile.executor.cli", "cancel", str(execution_id), "--reason", "enough"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--api-url", stage.system.http_url, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0


Way = Callable[[Stage, int], Awaitable[None]]
WAYS: list[Way] = [by_http, by_message, by_client, by_command_line]


async def seconds_until_ended(stage: Stage, execution_id: int, since: datetime) -> float:
    await stage.ended(execution_id)
    seconds: float = await stage.history.value(
        "SELECT extract(epoch FROM completed_at - $2)::float8 FROM execution WHERE id = $1",
        execution_id,
        since,
    )
    return seconds


async def now(stage: Stage) -> datetime:
    instant: datetime = await stage.history.value("SELECT clock_timestamp()")
    return instant


@pytest.mark.parametrize("way", WAYS)
async def test_what_waits_ends_within_a_second_and_never_starts(stage: Stage, way: Way) -> None:
    key = way.__name__
    head, waiting = [
        await stage.submit("retried", concurrency_key=key, parameters={"steps": ["HANG"]}) for _ in "ab"
    ]
    await stage.stands(head, "running")
    asked_at = await now(stage)
    await way(stage, waiting)
    # A command line needs a second to begin with.
    assert await seconds_until_ended(stage, waiting, asked_at) < (10 if way is by_command_line else 2)
    await stage.cancel(head)
    assert await stage.ended(head, waiting) == ["cancelled"] * 2
    shown = await stage.get(waiting)
    assert shown["error"] == {"type": "Cancelled", "message": "enough"}
    assert (shown["attempt"], shown["attempts"], stage.changes(waiting)) == (0, [], ["queued", "cancelled"])


@pytest.mark.parametrize("way", WAYS)
async def test_what_runs_ends_within_the_grace_and_is_not_retried(stage: Stage, way: Way) -> None:
    execution_id = await stage.submit("retried", parameters={"steps": ["HANG"]})
    await stage.stands(execution_id, "running")
    asked_at = await now(stage)
    await way(stage, execution_id)
    allowed_seconds = 10 if way is by_command_line else 2 * (GRACE_SECONDS + 1)
    assert await seconds_until_ended(stage, execution_id, asked_at) < allowed_seconds
    assert await stage.attempts(execution_id) == [(1, "cancelled")]


async def test_what_runs_as_a_process_ends_with_its_children(stage: Stage, tmp_path: Path) -> None:
    files = {ref: tmp_path / ref for ref in ("insists", "family")}
    ids = [await stage.submit(ref, parameters={"file": str(file)}) for ref, file in files.items()]

    async def all_run() -> bool:
        return [len(numbers_in(file)) for file in files.values()] == [1, 2]

    await until(all_run, "both have written their numbers")
    asked_at = await now(stage)
    await stage.cancel(*ids)
    for execution_id in ids:
        assert await seconds_until_ended(stage, execution_id, asked_at) < 2 * (GRACE_SECONDS + 1)
    assert await stage.ended(*ids) == ["cancelled"] * 2
    pids = [pid for file in files.values() for pid in numbers_in(file)]

    async def all_gone() -> bool:
        return still_there(pids) == []

    # What was killed is there until its parent, or init, has asked for it.
    await until(all_gone, f"the end of {pids}", deadline_seconds=5)


async def test_what_is_not_due_ends_at_once(stage: Stage) -> None:
    execution_id = await stage.submit("noop", run_at="2100-01-01T00:00:00Z")
    asked_at = await now(stage)
    await stage.cancel(execution_id)
    assert await seconds_until_ended(stage, execution_id, asked_at) < 2
    assert stage.changes(execution_id) == ["delayed", "cancelled"]


async def test_what_waits_for_its_retry_ends_and_is_not_tried_again(stage: Stage) -> None:
    execution_id = await stage.submit("retried", parameters={"steps": ["FAIL"]})
    await stage.stands(execution_id, "delayed")
    asked_at = await now(stage)
    await stage.cancel(execution_id)
    assert await seconds_until_ended(stage, execution_id, asked_at) < 2
    assert await stage.attempts(execution_id) == [(1, "retried")]
    assert await stage.status(execution_id) == "cancelled"


async def test_what_no_worker_serves_ends_at_once_and_hands_its_slot_on(stage: Stage) -> None:
    await stage.put("unserved", max_concurrent=1, pool="nobody", submitter_keys=True)
    first, second = [await stage.submit("unserved") for _ in range(2)]
    asked_at = await now(stage)
    await stage.cancel(first)
    assert await seconds_until_ended(stage, first, asked_at) < 2
    await stage.stands(second, "scheduled")
    await stage.cancel(second)
    assert await stage.ended(first, second) == ["cancelled"] * 2


async def test_what_is_offered_to_workers_that_are_full_ends_at_once_and_is_never_run(stage: Stage) -> None:
    concurrency = 10
    busy = [await stage.submit("hold", concurrency_key=f"full-{n}") for n in range(concurrency)]
    for execution_id in busy:
        await stage.stands(execution_id, "running")
    offered = await stage.submit("noop")
    asked_at = await now(stage)
    await stage.cancel(offered)
    assert await seconds_until_ended(stage, offered, asked_at) < 2
    await stage.cancel(*busy)
    assert await stage.ended(*busy) == ["cancelled"] * concurrency
    assert await stage.attempts(offered) == []
    assert await stage.status(offered) == "cancelled"


async def test_a_cancel_that_no_record_could_hold_is_refused_and_stops_nobody_else(stage: Stage) -> None:
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": 2**63})])
        await publisher.publish([request({"action_ref": "noop", "idempotency_key": "behind"})])
        (letter,) = await stage.history.dead_letters(1)
    assert letter["code"] == "invalid_message"
    query = "SELECT count(*) = 1 FROM execution WHERE idempotency_key = 'behind' AND completed_at IS NOT NULL"

    async def is_done() -> bool:
        return bool(await stage.history.value(query))

    await until(is_done, "the request behind it", deadline_seconds=10)


async def test_a_second_cancel_of_what_runs_changes_nothing_and_one_of_what_has_ended_is_refused(
    stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "stubborn"
    execution_id = await stage.submit("stubborn", parameters={"file": str(file)})

    async def runs() -> bool:
        return file.exists()

    await until(runs, "it ignores the word to stop")
    answers = [await stage.http.post(f"/executions/{execution_id}/cancel") for _ in range(2)]
    assert [(a.status_code, a.json()["status"]) for a in answers] == [(202, "running")] * 2
    assert await stage.ended(execution_id) == ["cancelled"]
    before = await stage.get(execution_id)
    refused = await stage.http.post(f"/executions/{execution_id}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "already_terminal")
    await by_message(stage, execution_id)
    # Requests are taken in order: this one's answer comes after the cancel was judged.
    await ask(stage.amqp_url, lambda to: [request({"action_ref": "noop"}, reply_to=to)])
    assert await stage.get(execution_id) == before
    assert before["attempts"][0]["outcome"] == "cancelled"


async def test_what_a_dead_worker_ran_ends_cancelled_and_is_not_run_again(stage: Stage) -> None:
    worker = stage.system.workers[-1]
    execution_id = await stage.submit("hold", concurrency_key="dead")
    await stage.stands(execution_id, "running")
    await worker.kill()
    await stage.cancel(execution_id, reason="enough")
    assert await stage.ended(execution_id) == ["cancelled"]
    assert await stage.attempts(execution_id) == [(1, "cancelled")]
    assert (await stage.get(execution_id))["error"] == {"type": "Cancelled", "message": "enough"}
    await stage.start_worker()
