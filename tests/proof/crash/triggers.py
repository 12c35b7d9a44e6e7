"""What brings an armed executor to its crash point: requests of operators, and work for each sweep.

In: an environment with an armed executor. Out: requests that it may not survive, and rows as a lost message
or a dead worker leaves them. Each is repeated until the executor has died. The rest is done afterwards: keys
are cancelled once more, a pause ends in any case, and the executor that stays replays the dead letters.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from uuid import uuid4

import httpx

from tests.proof.crash.actions import DEFAULT, DESKS, LICENCES, LONELY, UNSERVED
from tests.proof.crash.environment import Environment, purge
from turnstile.common.broker.topology import pool_queue
from turnstile.common.crash_points import CrashPoint

Trigger: TypeAlias = Callable[[Environment], Awaitable[None]]
Request: TypeAlias = Callable[[Environment, str], Awaitable[None]]
"""Takes the address of the armed executor."""

_LONG_SECONDS: Final = 600.0
_SHORT_SECONDS: Final = 0.5
_GRANTED: Final = """
FROM slot WHERE claimed_at IS NULL AND finished_at IS NULL
  AND execution_id = (SELECT id FROM execution WHERE metadata ->> 'tag' = $1)
"""


async def cancel_something(env: Environment, url: str) -> None:
    """Submit what is not due for long, and cancel it."""
    run_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    execution_id = await env.client.post_to_cancel(url, {"action_ref": "crash.free", "run_at": run_at})
    if execution_id is not None:
        with suppress(httpx.HTTPError):
            await env.client.http.post(f"{url}/api/v1/executions/{execution_id}/cancel")


async def call_back_something(env: Environment) -> None:
    """Submit with the URL of a receiver that does not exist."""
    await env.client.publish({"action_ref": "crash.free", "callback_url": "http://127.0.0.1:1/hook"})


async def resume_something(env: Environment, url: str) -> None:
    """Submit for a paused action, and resume it."""
    await env.pause(paused=True)
    try:
        await env.client.publish({"action_ref": "crash.one"})
        await env.until_all_admitted()
        with suppress(httpx.HTTPError):
            await env.client.http.post(f"{url}/api/v1/actions/crash.one/resume")
    finally:
        await env.pause(paused=False)


async def reroute_something(env: Environment, url: str) -> None:
    """Let an action use one resource less, or again, while its executions wait at both."""
    await env.client.publish(*[{"action_ref": ref} for ref in ("crash.licensed", "crash.seated")] * 4)
    licences, desks = {"resource": LICENCES, "units": 2}, {"resource": DESKS}
    for uses in ([licences], [desks, licences]):
        with suppress(httpx.HTTPError):
            await env.client.http.patch(f"{url}/api/v1/actions/crash.licensed", json={"uses": uses})


async def resize_something(env: Environment, url: str) -> None:
    """Lower the capacity of a resource while executions wait for it, and raise it again."""
    await env.client.publish(*[{"action_ref": "crash.licensed"}] * 6)
    for capacity in (2, 4):
        with suppress(httpx.HTTPError):
            await env.client.http.patch(f"{url}/api/v1/resources/{LICENCES}", json={"capacity": capacity})


async def resume_a_pool(env: Environment, url: str) -> None:
    """Submit to a paused pool, and resume it."""
    await env.pause_pool(paused=True)
    try:
        await env.client.publish(*[{"action_ref": ref} for ref in ("crash.one", "crash.licensed")] * 2)
        await env.until_all_admitted()
        with suppress(httpx.HTTPError):
            await env.client.http.post(f"{url}/api/v1/pools/{DEFAULT}/resume")
    finally:
        await env.pause_pool(paused=False)


async def change_a_key(env: Environment, url: str) -> None:
    """Give a key a limit of its own while its executions wait, and take it away."""
    await env.client.publish(*[{"action_ref": "crash.keyed", "parameters": {"customer": "first"}}] * 4)
    key = f"{url}/api/v1/actions/crash.keyed/keys/first"
    with suppress(httpx.HTTPError):
        await env.client.http.put(key, json={"max_concurrent": 2})
        await env.client.http.delete(key)


async def submit_something_urgent(env: Environment) -> None:
    """Submit with a priority: the statement that admits it leaves the grant to the next one."""
    await env.client.publish({"action_ref": "crash.free", "priority": 1})


async def talk(env: Environment) -> None:
    """Submit what logs and reports its progress."""
    await env.client.publish(*[{"action_ref": "crash.talking"}] * 2)


async def send_a_worker(env: Environment) -> None:
    """Submit to a pool without workers, and let a worker join it for a moment."""
    await env.until_while_armed("SELECT NOT served FROM action WHERE ref = 'crash.lonely'")
    await env.client.publish_to_cancel("crash.lonely")
    await env.until_all_admitted()
    worker = FakeWorker(env=env)
    await worker.register(lease_seconds=_LONG_SECONDS, pool=LONELY)
    await env.until_while_armed("SELECT served FROM action WHERE ref = 'crash.lonely'")
    await env.history.rows("SELECT turnstile.sign_off($1)", worker.worker_id)


async def use_up_a_rate(env: Environment) -> None:
    """Submit more than a rate allows to start."""
    await env.client.publish(*[{"action_ref": "crash.rated"}] * 7)


async def submit_in_transactions(env: Environment) -> None:
    """Submit in a session of the database."""
    for _ in range(5):
        await env.client.submit_in_transaction(env.history, {"action_ref": "crash.one"})


async def replay_something(env: Environment, url: str) -> None:
    """Publish a dead letter, and replay it."""
    await env.client.publish_dead_letter({"action_ref": "crash.one"})
    with suppress(httpx.HTTPError):
        await env.client.replay_dead_letters(url)


@dataclass(slots=True, kw_only=True)
class FakeWorker:
    """A worker that misbehaves: claims and stops its heartbeats, ends without publishing, does not stop.

    It uses the statements that every worker may call, for as long as the armed process lives.
    """

    env: Environment
    worker_id: str = field(default_factory=lambda: f"fake {uuid4()}")

    async def register(self, *, lease_seconds: float, pool: str = UNSERVED) -> None:
        """Register with a lease."""
        await self.env.history.rows(
            "SELECT turnstile.register_worker($1, 'fake', 'localhost', 1, ARRAY[$3], 1, $2)",
            self.worker_id,
            lease_seconds,
            pool,
        )

    async def claim(self, tag: str) -> tuple[int, int] | None:
        """Claim the execution with this tag once it was granted; return id and attempt, None if too late."""
        history = self.env.history
        if not await self.env.until_while_armed(f"SELECT true {_GRANTED}", tag):
            return None
        (row,) = await history.rows(f"SELECT execution_id, attempt {_GRANTED}", tag)
        execution_id, attempt = row["execution_id"], row["attempt"]
        verdict = await history.value(
            "SELECT verdict FROM turnstile.claim($1, $2, $3)", self.worker_id, [execution_id], [attempt]
        )
        assert verdict in ("claimed", "lease_over")
        return (execution_id, attempt) if verdict == "claimed" else None

    async def lose_offer(self, tag: str) -> None:
        """Purge the offers of its pool, among them that of the execution with this tag."""
        if await self.env.until_while_armed(f"SELECT true {_GRANTED}", tag):
            while not await purge(self.env.system.amqp_url, pool_queue(UNSERVED)) and self._is_armed():
                await asyncio.sleep(0.02)

    async def fail(self, execution_id: int, attempt: int) -> None:
        """Report a failure that is retried at once, and publish nothing."""
        verdict = await self.env.history.value(
            "SELECT verdict FROM turnstile.finish($1, $2, $3, '{failed}', '{null}', '{Broken}', '{it broke}',"
            " '{null}', '{0.1}')",
            self.worker_id,
            [execution_id],
            [attempt],
        )
        assert verdict == "applied"

    async def finish(self, execution_id: int, attempt: int) -> None:
        """Report the end, and publish nothing."""
        verdict = await self.env.history.value(
            "SELECT verdict FROM turnstile.finish($1, $2, $3, '{completed}', '{null}', '{null}', '{null}',"
            " '{null}', '{null}')",
            self.worker_id,
            [execution_id],
            [attempt],
        )
        assert verdict == "applied"

    def _is_armed(self) -> bool:
        return any(armed.process.returncode is None for armed in self.env.armed)


async def _fake_worker(env: Environment, lease_seconds: float = _LONG_SECONDS) -> FakeWorker:
    worker = FakeWorker(env=env)
    await worker.register(lease_seconds=lease_seconds)
    return worker


async def _due(env: Environment) -> None:
    run_at = datetime.now(UTC) + timedelta(milliseconds=100)
    await env.client.publish({"action_ref": "crash.free", "run_at": run_at.isoformat()})


async def _expired(env: Environment) -> None:
    await env.client.publish_to_cancel("crash.unserved", ttl="100ms")


async def _not_claimed(env: Environment) -> None:
    """Its pool has a live worker, and its offer was lost."""
    worker = FakeWorker(env=env)
    await worker.lose_offer(await env.client.publish_to_cancel("crash.unserved"))


async def _not_published(env: Environment) -> None:
    """Its end was reported and not published."""
    worker = await _fake_worker(env)
    claimed = await worker.claim(await env.client.publish_to_cancel("crash.unserved"))
    if claimed is not None:
        await worker.finish(*claimed)


async def _lost(env: Environment) -> None:
    """A worker lost its lease with two attempts, of which one must not run again."""
    worker = await _fake_worker(env, _SHORT_SECONDS)
    for ref in ("crash.unserved", "crash.abandoned"):
        await worker.claim(await env.client.publish_to_cancel(ref))


async def _overdue(env: Environment) -> None:
    """Its worker does not stop it."""
    worker = await _fake_worker(env)
    await worker.claim(await env.client.publish_to_cancel("crash.unserved", timeout="100ms"))


async def _cancelled_early(env: Environment) -> None:
    """Its cancel came before it."""
    key = f"to cancel {len(env.client.submitted)}"
    await env.client.publish_cancels(key)
    await env.until_while_armed("SELECT count(*) > 0 FROM early_cancel WHERE idempotency_key = $1", key)
    await env.client.publish_to_cancel("crash.unserved")


async def _idle_slot(env: Environment) -> None:
    """A slot is free, and no message about it was published."""
    await env.pause(paused=True)
    await env.client.publish({"action_ref": "crash.one"})
    await env.until_all_admitted()
    await env.pause(paused=False)


async def _idle_units(env: Environment) -> None:
    """A resource has got more units, and what waits for them does not know."""
    for _ in range(2):
        await env.client.publish_to_cancel("crash.holding")
    await env.client.publish({"action_ref": "crash.seated"})
    waits = "SELECT depth > 0 FROM turnstile.current_gate WHERE kind = 'resource' AND name = $1"
    if await env.until_while_armed(waits, DESKS):
        held = await env.history.value(
            "SELECT held FROM turnstile.current_gate WHERE kind = 'resource' AND name = $1", DESKS
        )
        await env.put_desks(held + 1)
        # Something else may have let it pass, and it has ended.
        await env.until_while_armed(
            "SELECT depth = 0 OR held >= capacity FROM turnstile.current_gate"
            " WHERE kind = 'resource' AND name = $1",
            DESKS,
        )
        await env.put_desks()


async def _not_rolled_out(env: Environment) -> None:
    """The pause of an action has ended, and its queue does not have that yet."""
    await env.pause(paused=True)
    await env.client.publish({"action_ref": "crash.one"})
    await env.until_all_admitted()
    await env.history.rows(
        "UPDATE action SET paused = false, rollout_from_key = '' WHERE ref = 'crash.one' AND paused"
    )


async def _old_slot(env: Environment) -> None:
    """A slot is held for longer than the bound of the slots rests."""
    worker = await _fake_worker(env)
    await worker.claim(await env.client.publish_to_cancel("crash.unserved"))
    # The first move puts its ticket behind the next bound, the second one renews it.
    for _ in range(2):
        await _let_move(env, "slot_window")


async def _let_move(env: Environment, window: str) -> None:
    """Let the bounds in this table be old enough for their next move."""
    await env.until_while_armed(
        f"WITH aged AS (UPDATE {window} SET moved_at = moved_at - interval '1 minute'"
        " WHERE moved_at > clock_timestamp() - interval '30 s' RETURNING version)"
        " SELECT EXISTS (SELECT FROM aged)"
    )


async def _old_delay(env: Environment) -> None:
    """A retry is due and cannot start, because the attempt before it is not settled."""
    worker = await _fake_worker(env)
    claimed = await worker.claim(await env.client.publish_to_cancel("crash.unserved"))
    if claimed is None:
        return
    await worker.fail(*claimed)
    # Three moves: the first announces an instant, the third finds what was left before it.
    for _ in range(4):
        await _let_move(env, "due_window")


async def _miscounted_pool(env: Environment) -> None:
    """The held worker slots of a pool are wrong."""
    await env.history.rows(
        "UPDATE pool_state s SET held = s.held + 1, granted_capacity = NULL"
        " FROM worker_pool p WHERE p.id = s.pool_id AND p.name = $1",
        UNSERVED,
    )


async def _miscounted_units(env: Environment) -> None:
    """The held units of a resource are wrong."""
    await env.history.rows(
        "UPDATE gate_state s SET held = s.held + 1, granted_capacity = NULL"
        " FROM gate g WHERE g.id = s.gate_id AND g.name = $1",
        LICENCES,
    )


async def _miscounted(env: Environment) -> None:
    """A counter is wrong."""
    await env.client.publish({"action_ref": "crash.one"})
    await env.until_all_admitted()
    # Of one queue: the services lock several in the order of their ids, this statement would not.
    await env.history.rows(
        "UPDATE queue_state s SET depth = s.depth + 1"
        " FROM action_queue q JOIN action a ON a.id = q.action_id"
        " WHERE q.id = s.queue_id AND a.ref = 'crash.one'"
    )


SWEEPS: Final[Mapping[str, Trigger]] = {
    "grant_idle_slots": _idle_slot,
    "advance_gates": _idle_units,
    "roll_out_limits": _not_rolled_out,
    "wake_due": _due,
    "expire_due": _expired,
    "repeat_offers": _not_claimed,
    "repeat_completions": _not_published,
    "reclaim_lost": _lost,
    "stop_overdue": _overdue,
    "cancel_early": _cancelled_early,
    "repair_counters": _miscounted,
    "refresh_pools": _miscounted_pool,
    "repair_gates": _miscounted_units,
    "move_slot_window": _old_slot,
    "move_due_window": _old_delay,
}


REQUESTS: Final[Mapping[CrashPoint, Request]] = {
    CrashPoint.CANCELLATION_DECIDED: cancel_something,
    CrashPoint.ACTIONS_PUT: resume_something,
    CrashPoint.ACTIONS_STORED: reroute_something,
    CrashPoint.KEY_PUT: change_a_key,
    CrashPoint.RESOURCE_STORED: resize_something,
    CrashPoint.RESOURCE_PUT: resize_something,
    CrashPoint.POOL_STORED: resume_a_pool,
    CrashPoint.POOL_PUT: resume_a_pool,
    CrashPoint.DEAD_LETTERS_PUBLISHED: replay_something,
    CrashPoint.DEAD_LETTERS_STORED: replay_something,
}
STEPS: Final[Mapping[CrashPoint, Trigger]] = {
    CrashPoint.WEBHOOKS_CLAIMED: call_back_something,
    CrashPoint.WEBHOOK_POSTED: call_back_something,
    CrashPoint.SUBMISSIONS_ADMITTED: submit_in_transactions,
    CrashPoint.POOLS_REFRESHED: send_a_worker,
    CrashPoint.MORE_GRANTED: submit_something_urgent,
    CrashPoint.RATE_DUE: use_up_a_rate,
    CrashPoint.RATE_GRANTED: use_up_a_rate,
    CrashPoint.PROGRESS_WRITTEN: talk,
    CrashPoint.LOG_WRITTEN: talk,
}
"""What is not here is reached by the mixed load."""


def settings_for(sweep: str) -> dict[str, str]:
    """Return settings under which no other sweep soon finds what earlier trials left behind."""
    slow = {"repeat_offers": "DISPATCH", "repeat_completions": "SETTLE", "stop_overdue": "STOP"}
    return {f"TURNSTILE_{word}_TIMEOUT": "60s" for other, word in slow.items() if other != sweep}
