"""P4 with real processes: each end frees exactly one slot and is published, whatever process ended it.

Whole services: some ends are seen by a worker's process, others by the leader alone.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS = {
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


ENDINGS: dict[str, Ending] = {
    # Seen by a worker.
    "complete": Ending(ref="one", status="completed"),
    "fail": Ending(ref="scripted", fields={"parameters": {"steps": ["PERMANENT"]}}, status="failed"),
    "time out": Ending(ref="hold", fields={"timeout": SOON}, status="timeout"),
    "cancel running": Ending(ref="hold", is_cancelled=True, status="cancelled"),
    # Seen by the leader alone.
    "cancel scheduled": Ending(ref="unserved", is_cancelled=True, status="cancelled"),
    "cancel queued": Ending(ref="unserved", is_second=True, is_cancelled=True, status="cancelled"),
    "cancel delayed": Ending(ref="unserved", fields={"run_at": LATER}, is_cancelled=True, status="cancelled"),
    "expire scheduled": Ending(ref="unserved", fields={"ttl": SOON}, status="expired"),
    "expire queued": Ending(ref="unserved", is_second=True, fields={"ttl": SOON}, status="expired"),
}


async def bring_about(env: Environment, key: str, ending: Ending) -> int:
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
    for ref in ("hold", "scripted"):
        await env.put(ref, max_concurrent=1, submitter_keys=True)
    await env.put("unserved", max_concurrent=1, pool="unserved", submitter_keys=True)
    await env.start_silent_worker("unserved")
    ids = await asyncio.gather(*(bring_about(env, name, end) for name, end in ENDINGS.items()))
    await env.ended(*ids)
    for execution_id, end in zip(ids, ENDINGS.values(), strict=True):
        await assert_ended_once(env, execution_id, end)
