"""P4 with real processes: each end, whoever saw it, frees exactly one slot and is told."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.ledger import Ledger, ledger_kept, read_ledger
from tests.support.stage import Stage, numbers_in, still_there
from tests.support.traffic import until
from turnstile.common.crash_points import VARIABLE, CrashPoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGE = {
    "workers": 0,
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
        "TURNSTILE_SETTLE_TIMEOUT": "1s",
        "TURNSTILE_LEASE_DURATION": "2s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
        "TURNSTILE_STOP_GRACE": "500ms",
    },
}
SOON, LATER = "300ms", "2100-01-01T00:00:00Z"


async def holding(stage: Stage, key: str, **fields: object) -> int:
    """Submit what runs, or waits, until somebody ends it, in a line of its own."""
    return await stage.submit("hold", concurrency_key=key, **fields)


async def complete(stage: Stage) -> int:
    return await stage.submit("one", concurrency_key="complete")


async def fail(stage: Stage) -> int:
    return await stage.submit("scripted", concurrency_key="fail", parameters={"steps": ["PERMANENT"]})


async def time_out(stage: Stage) -> int:
    return await holding(stage, "time_out", timeout=SOON)


async def cancel_running(stage: Stage) -> int:
    execution_id = await holding(stage, "cancel_running")
    await stage.stands(execution_id, "running")
    await stage.cancel(execution_id)
    return execution_id


async def cancel_scheduled(stage: Stage) -> int:
    execution_id = await stage.submit("unserved", concurrency_key="cancel_scheduled")
    await stage.cancel(execution_id)
    return execution_id


async def cancel_queued(stage: Stage) -> int:
    head, execution_id = [await stage.submit("unserved", concurrency_key="cancel_queued") for _ in range(2)]
    await stage.cancel(execution_id, head)
    await stage.ended(head)
    return execution_id


async def cancel_delayed(stage: Stage) -> int:
    execution_id = await stage.submit("unserved", concurrency_key="cancel_delayed", run_at=LATER)
    await stage.cancel(execution_id)
    return execution_id


async def expire_scheduled(stage: Stage) -> int:
    return await stage.submit("unserved", concurrency_key="expire_scheduled", ttl=SOON)


async def expire_queued(stage: Stage) -> int:
    head = await stage.submit("unserved", concurrency_key="expire_queued")
    execution_id = await stage.submit("unserved", concurrency_key="expire_queued", ttl=SOON)
    await stage.ended(execution_id)
    await stage.cancel(head)
    await stage.ended(head)
    return execution_id


async def expire_delayed(stage: Stage) -> int:
    return await stage.submit("unserved", concurrency_key="expire_delayed", run_at=LATER, ttl=SOON)


Ending = Callable[[Stage], Awaitable[int]]
SEEN: dict[Ending, tuple[str, str, int]] = {
    complete: ("completed", "worker", 1),
    fail: ("failed", "worker", 1),
    time_out: ("timeout", "worker", 1),
    cancel_running: ("cancelled", "worker", 1),
}
"""What a worker sees: the status, who tells it, how many slots it held."""
UNSEEN: dict[Ending, tuple[str, str, int]] = {
    cancel_scheduled: ("cancelled", "executor", 1),
    cancel_queued: ("cancelled", "executor", 0),
    cancel_delayed: ("cancelled", "executor", 0),
    expire_scheduled: ("expired", "executor", 1),
    expire_queued: ("expired", "executor", 0),
    expire_delayed: ("expired", "executor", 0),
}


@asynccontextmanager
async def written_down(stage: Stage) -> AsyncIterator[None]:
    await stage.put("hold", max_concurrent=1, submitter_keys=True)
    await stage.put("unserved", max_concurrent=1, pool="nobody", submitter_keys=True)
    await stage.put("scripted", max_concurrent=1, submitter_keys=True)
    async with ledger_kept(stage.system.database_url):
        yield


async def assert_ended_once(
    stage: Stage, ledger: Ledger, execution_id: int, end: tuple[str, str, int]
) -> None:
    status, teller, slots = end
    completions = await stage.told(execution_id)
    assert {(c.body["status"], c.app_id) for c in completions} == {(status, teller)}, end
    assert ledger.slots_of(execution_id) == [1, -1] * slots, end
    shown = await stage.get(execution_id)
    assert shown["status"] == status, end
    for completion in completions:
        assert (completion.body["error"] or {}).get("type") == (shown["error"] or {}).get("type"), end


async def test_every_end_without_any_worker_frees_exactly_one_slot_and_is_told(stage: Stage) -> None:
    async with written_down(stage):
        ids = await asyncio.gather(*(bring_about(stage) for bring_about in UNSEEN))
        await stage.ended(*ids)
        ledger = await read_ledger(stage.history)
        for execution_id, end in zip(ids, UNSEEN.values(), strict=True):
            await assert_ended_once(stage, ledger, execution_id, end)


async def test_every_end_beside_a_living_worker_frees_exactly_one_slot_and_is_told(stage: Stage) -> None:
    every = SEEN | UNSEEN
    worker = await stage.start_worker()
    async with written_down(stage):
        ids = await asyncio.gather(*(bring_about(stage) for bring_about in every))
        await stage.ended(*ids)
        ledger = await read_ledger(stage.history)
        for execution_id, end in zip(ids, every.values(), strict=True):
            await assert_ended_once(stage, ledger, execution_id, end)
    await worker.stop()


async def test_every_end_that_its_worker_could_not_tell_is_kept_and_told_for_it(stage: Stage) -> None:
    """Each worker is killed right after the commit of the first end that it saw."""
    settings = {VARIABLE: f"{CrashPoint.ATTEMPT_FINISHED}:1", "TURNSTILE_WORKER_CONCURRENCY": "1"}
    workers = await asyncio.gather(*(stage.start_worker(**settings) for _ in SEEN))
    async with written_down(stage):
        ids = await asyncio.gather(*(bring_about(stage) for bring_about in SEEN))
        for worker in workers:
            assert await asyncio.wait_for(worker.process.wait(), 20) == -signal.SIGKILL
        await stage.ended(*ids)
        ledger = await read_ledger(stage.history)
        for execution_id, (status, _, slots) in zip(ids, SEEN.values(), strict=True):
            await assert_ended_once(stage, ledger, execution_id, (status, "executor", slots))
        late = await stage.history.value(
            "SELECT max(extract(epoch FROM l.at - e.completed_at)) FROM ledger l"
            " JOIN execution e ON e.id = l.execution_id WHERE l.place = 'slot' AND l.step = -1"
        )
    # The settle timeout and two ticks, twice: nobody but the watchdog told these ends.
    assert 1 <= late < 3


async def test_an_execution_whose_worker_is_lost_for_good_frees_exactly_one_slot_and_is_told(
    stage: Stage,
) -> None:
    worker = await stage.start_worker()
    async with written_down(stage):
        await stage.put(
            "hold.once", max_concurrent=1, on_worker_lost="abandon", entrypoint="tests.e2e.actions:hold"
        )
        execution_id, behind = [await stage.submit("hold.once") for _ in range(2)]
        await stage.stands(execution_id, "running")
        await worker.kill()
        assert await stage.ended(execution_id) == ["abandoned"]
        await stage.stands(behind, "scheduled")
        await stage.cancel(behind)
        await stage.ended(behind)
        ledger = await read_ledger(stage.history)
        await assert_ended_once(stage, ledger, execution_id, ("abandoned", "executor", 1))


async def test_a_timeout_ends_an_async_function_a_blocking_one_and_a_command_with_its_children(
    stage: Stage, tmp_path: Path
) -> None:
    worker = await stage.start_worker()
    blocked, family = tmp_path / "blocked", tmp_path / "family"
    ids = [
        await stage.submit("hold", timeout=SOON),
        await stage.submit("insists", parameters={"file": str(blocked)}, timeout="1500ms"),
        await stage.submit("family", parameters={"file": str(family)}, timeout="1500ms"),
    ]
    assert await stage.ended(*ids) == ["timeout"] * 3
    rows = await stage.history.rows(
        "SELECT extract(epoch FROM completed_at - started_at)::float8 AS seconds, timeout_seconds AS timeout,"
        " error_type FROM execution WHERE id = ANY ($1)",
        ids,
    )
    for row in rows:
        assert row["timeout"] <= row["seconds"] < row["timeout"] + 3, dict(row)
    pids = [*numbers_in(blocked), *numbers_in(family)]
    assert len(pids) == 3

    async def all_gone() -> bool:
        return still_there(pids) == []

    await until(all_gone, f"the end of {pids}", deadline_seconds=5)
    await worker.stop()
