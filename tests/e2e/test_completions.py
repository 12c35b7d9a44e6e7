"""P4 with real processes: each end frees exactly one slot and is published, whatever process ended it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.proof.history.event_log import SlotLog, slots_logged
from tests.proof.history.recording import Step
from tests.support.environment import Environment, StartEnvironment, pids_in, until_gone
from tests.support.traffic import publishing
from turnstile.common.crash_points import VARIABLE, CrashPoint
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import slot_message

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """One way in which an execution ends, and what must be seen of it."""

    ref: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    is_second: bool = False
    """Whether another execution holds the only slot of its queue."""
    is_cancelled: bool = False
    status: str
    publisher: str = "executor"
    slots: int = 1


SEEN: dict[str, Ending] = {
    "complete": Ending(ref="one", status="completed", publisher="worker"),
    "fail": Ending(
        ref="scripted", fields={"parameters": {"steps": ["PERMANENT"]}}, status="failed", publisher="worker"
    ),
    "time out": Ending(ref="hold", fields={"timeout": SOON}, status="timeout", publisher="worker"),
    "cancel running": Ending(ref="hold", is_cancelled=True, status="cancelled", publisher="worker"),
}
"""Ends that a worker sees."""
UNSEEN: dict[str, Ending] = {
    "cancel scheduled": Ending(ref="unserved", is_cancelled=True, status="cancelled"),
    "cancel queued": Ending(ref="unserved", is_second=True, is_cancelled=True, status="cancelled", slots=0),
    "cancel delayed": Ending(
        ref="unserved", fields={"run_at": LATER}, is_cancelled=True, status="cancelled", slots=0
    ),
    "expire scheduled": Ending(ref="unserved", fields={"ttl": SOON}, status="expired"),
    "expire queued": Ending(ref="unserved", is_second=True, fields={"ttl": SOON}, status="expired", slots=0),
    "expire delayed": Ending(
        ref="unserved", fields={"run_at": LATER, "ttl": SOON}, status="expired", slots=0
    ),
}


async def bring_about(env: Environment, endings: Mapping[str, Ending]) -> list[int]:
    """Bring about each end, in a queue of its own, and wait until all have ended; return the ids."""
    ids = await asyncio.gather(*(_bring_about(env, name, ending) for name, ending in endings.items()))
    await env.ended(*ids)
    return list(ids)


async def _bring_about(env: Environment, key: str, ending: Ending) -> int:
    head = await env.submit(ending.ref, concurrency_key=key) if ending.is_second else None
    execution_id = await env.submit(ending.ref, concurrency_key=key, **ending.fields)
    if ending.is_cancelled:
        if ending.ref == "hold":
            await env.until_status(execution_id, "running")
        await env.cancel(execution_id)
    if head is not None:
        await env.ended(execution_id)
        await env.cancel(head)
        await env.ended(head)
    return execution_id


@asynccontextmanager
async def logged(env: Environment) -> AsyncIterator[SlotLog]:
    await env.put("hold", max_concurrent=1, submitter_keys=True)
    await env.register_silent_worker("unserved")
    await env.put("unserved", max_concurrent=1, pool="unserved", submitter_keys=True)
    await env.put("scripted", max_concurrent=1, submitter_keys=True)
    async with slots_logged(env.system.database_url) as log:
        yield log


async def assert_ended_once(env: Environment, log: SlotLog, execution_id: int, end: Ending) -> None:
    completions = await env.completions(execution_id)
    assert {(c.body["status"], c.app_id) for c in completions} == {(end.status, end.publisher)}, end
    assert await log.steps_of(execution_id) == [Step.INSERT, Step.DELETE] * end.slots, end
    shown = await env.get(execution_id)
    assert shown["status"] == end.status, end
    for completion in completions:
        assert (completion.body["error"] or {}).get("type") == (shown["error"] or {}).get("type"), end


async def assert_each_ends_once(env: Environment, endings: Mapping[str, Ending]) -> None:
    async with logged(env) as log:
        ids = await bring_about(env, endings)
        for execution_id, end in zip(ids, endings.values(), strict=True):
            await assert_ended_once(env, log, execution_id, end)


async def test_every_outcome_beside_a_live_worker_frees_its_slot_once_and_is_published(
    env: Environment,
) -> None:
    worker = await env.start_worker()
    await assert_each_ends_once(env, SEEN | UNSEEN)
    await worker.stop()


async def test_every_outcome_that_a_killed_worker_did_not_publish_is_published_by_the_executor(
    env: Environment,
) -> None:
    """Each worker is killed right after the commit of the first end that it saw."""
    settings = {VARIABLE: f"{CrashPoint.ATTEMPT_FINISHED}:1", "TURNSTILE_WORKER_CONCURRENCY": "1"}
    workers = await asyncio.gather(*(env.start_worker(**settings) for _ in SEEN))
    async with logged(env) as log:
        ids = await bring_about(env, SEEN)
        for worker in workers:
            assert await asyncio.wait_for(worker.process.wait(), 20) == -signal.SIGKILL
        for execution_id, end in zip(ids, SEEN.values(), strict=True):
            await assert_ended_once(env, log, execution_id, replace(end, publisher="executor"))
        rows = await env.history.rows("SELECT id, completed_at FROM execution WHERE id = ANY ($1)", ids)
        freed_at = await log.freed_at()
        late = max((freed_at[row["id"]] - row["completed_at"]).total_seconds() for row in rows)
    # The settle timeout and two ticks, twice: only the watchdog published these outcomes.
    assert 1 <= late < 3


async def test_an_execution_whose_worker_is_lost_for_good_frees_its_slot_once_and_is_published(
    env: Environment,
) -> None:
    worker = await env.start_worker()
    async with logged(env) as log:
        await env.put(
            "hold.once", max_concurrent=1, on_worker_lost="abandon", entrypoint="tests.e2e.actions:hold"
        )
        execution_id, behind = [await env.submit("hold.once") for _ in range(2)]
        await env.until_status(execution_id, "running")
        await worker.kill()
        assert await env.ended(execution_id) == ["abandoned"]
        # It may be granted in the quarter of a second before an executor notices that no worker is left.
        assert await env.status(behind) in ("queued", "scheduled")
        await env.cancel(behind)
        await env.ended(behind)
        await assert_ended_once(env, log, execution_id, Ending(ref="hold.once", status="abandoned"))


async def test_a_timeout_ends_an_async_function_a_blocking_one_and_a_command_with_its_children(
    env: Environment, tmp_path: Path
) -> None:
    worker = await env.start_worker()
    blocked, family = tmp_path / "blocked", tmp_path / "family"
    ids = [
        await env.submit("hold", timeout=SOON),
        await env.submit("insists", parameters={"file": str(blocked)}, timeout="1500ms"),
        await env.submit("family", parameters={"file": str(family)}, timeout="1500ms"),
    ]
    assert await env.ended(*ids) == ["timeout"] * 3
    rows = await env.history.rows(
        "SELECT extract(epoch FROM completed_at - started_at)::float8 AS seconds, timeout_seconds AS timeout,"
        " error_type FROM turnstile.current_execution WHERE id = ANY ($1)",
        ids,
    )
    for row in rows:
        assert row["timeout"] <= row["seconds"] < row["timeout"] + 3, dict(row)
    pids = [*pids_in(blocked), *pids_in(family)]
    assert len(pids) == 3
    await until_gone(pids)
    await worker.stop()


UNPUBLISHED = {
    VARIABLE: str(CrashPoint.CANCELLATION_DECIDED),
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    "TURNSTILE_SETTLE_TIMEOUT": "3s",
}
"""The executor dies between its decision and the publication: only the row remembers."""


async def test_a_late_message_of_an_attempt_does_not_hide_that_the_outcome_after_it_was_never_published(
    start_env: StartEnvironment,
) -> None:
    async with start_env(settings=UNPUBLISHED) as env:
        await env.put("scripted", retry={"max_attempts": 2, "delay": "1h"})
        execution_id = await env.submit("scripted", parameters={"steps": ["FAIL"]})
        await env.until_status(execution_id, "delayed")
        with pytest.raises(httpx.TransportError):
            await env.cancel(execution_id)
        assert await env.executor.process.wait() == -signal.SIGKILL
        assert await env.status(execution_id) == "cancelled"
        # The broker redelivers it, as it may.
        async with publishing(env.amqp_url) as publisher:
            await publisher.publish([slot_message(execution_id, 1, "scripted", Status.DELAYED)])
        await env.system.start_executor(wait=True, **{VARIABLE: ""})
        (published,) = await env.completions(execution_id)
        assert (published.body["status"], published.body["attempt"], published.app_id) == (
            "cancelled",
            1,
            "executor",
        )
        assert await env.ended(execution_id) == ["cancelled"]
        total = await env.history.value("SELECT sum(total_completed) FROM turnstile.current_queue")
        assert (total, await env.history.faults()) == (1, [])
