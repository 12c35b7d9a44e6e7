"""P4 with real processes: each end frees exactly one slot and is published, whatever process ended it.

Whole services: workers are killed between an end and its report.
"""

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.environment import Environment
from turnstile.common.crash_points import VARIABLE, CrashPoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS = {
    "workers": 0,
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
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


SEEN: dict[str, Ending] = {
    "complete": Ending(ref="one", status="completed"),
    "fail": Ending(ref="scripted", fields={"parameters": {"steps": ["PERMANENT"]}}, status="failed"),
    "time out": Ending(ref="hold", fields={"timeout": SOON}, status="timeout"),
    "cancel running": Ending(ref="hold", is_cancelled=True, status="cancelled"),
}
"""Ends that a worker sees."""
UNSEEN: dict[str, Ending] = {
    "cancel scheduled": Ending(ref="unserved", is_cancelled=True, status="cancelled"),
    "cancel queued": Ending(ref="unserved", is_second=True, is_cancelled=True, status="cancelled"),
    "cancel delayed": Ending(ref="unserved", fields={"run_at": LATER}, is_cancelled=True, status="cancelled"),
    "expire scheduled": Ending(ref="unserved", fields={"ttl": SOON}, status="expired"),
    "expire queued": Ending(ref="unserved", is_second=True, fields={"ttl": SOON}, status="expired"),
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


async def define(env: Environment) -> None:
    for ref in ("hold", "scripted"):
        await env.put(ref, max_concurrent=1, submitter_keys=True)
    await env.put("unserved", max_concurrent=1, pool="unserved", submitter_keys=True)


async def assert_ended_once(env: Environment, execution_id: int, end: Ending) -> None:
    """It was published, and its queue has a free slot again."""
    completions = await env.completions(execution_id)
    assert {each.body["status"] for each in completions} == {end.status}, end
    shown = await env.get(execution_id)
    assert shown["status"] == end.status, end
    for completion in completions:
        assert (completion.body["error"] or {}).get("type") == (shown["error"] or {}).get("type"), end
    assert (await env.stats(end.ref))["active_count"] == 0


async def test_every_outcome_frees_its_slot_once_and_is_published(env: Environment) -> None:
    await define(env)
    worker = await env.start_worker()
    await env.start_silent_worker("unserved")
    ids = await bring_about(env, SEEN | UNSEEN)
    for execution_id, end in zip(ids, (SEEN | UNSEEN).values(), strict=True):
        await assert_ended_once(env, execution_id, end)
    await worker.stop()


async def test_every_outcome_that_a_killed_worker_did_not_report_is_that_of_the_next_attempt(
    env: Environment,
) -> None:
    """Each worker is killed when an end was decided and not reported yet."""
    await define(env)
    settings = {VARIABLE: f"{CrashPoint.ATTEMPT_ENDED}:1", "TURNSTILE_WORKER_CONCURRENCY": "1"}
    workers = await asyncio.gather(*(env.start_worker(**settings) for _ in SEEN))
    ids = [await _bring_about(env, name, replace(each, is_cancelled=False)) for name, each in SEEN.items()]
    ends = list(SEEN.values())
    await env.cancel(ids[-1])
    for worker in workers:
        assert await asyncio.wait_for(worker.process.wait(), 20) == -signal.SIGKILL
    last = await env.start_worker()
    await env.ended(*ids)
    for execution_id, end in zip(ids, ends, strict=True):
        await assert_ended_once(env, execution_id, end)
    await last.stop()
