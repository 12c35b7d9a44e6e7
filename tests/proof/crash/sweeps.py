"""What a watchdog finds: for each of its sweeps, a way to give it something to do.

In: a ground. Out: rows as a lost message or a dead worker leaves them. Each is made again and again until the
armed executor has died at the sweep; what is left of them afterwards is ended, so that all can drain.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from tests.proof.crash.ground import Ground
from tests.proof.crash.puppet import Puppet

Find: TypeAlias = Callable[[Ground], Awaitable[None]]

_LONG_SECONDS: Final = 600.0
_SHORT_SECONDS: Final = 0.5


async def something_due(ground: Ground) -> None:
    """For `wake_due`: its time has come."""
    run_at = datetime.now(UTC) + timedelta(milliseconds=100)
    await ground.client.publish({"action_ref": "crash.free", "run_at": run_at.isoformat()})


async def something_expired(ground: Ground) -> None:
    """For `expire_due`: nobody serves it, and its time to live is short."""
    await ground.client.publish_to_cancel("crash.puppet", ttl="100ms")


async def something_not_claimed(ground: Ground) -> None:
    """For `repeat_offers`: its pool has a live worker, and its offer was lost."""
    puppet = Puppet(ground=ground)
    await puppet.register(lease_seconds=_LONG_SECONDS)
    await puppet.lose_offer(await ground.client.publish_to_cancel("crash.puppet"))


async def something_not_told(ground: Ground) -> None:
    """For `repeat_completions`: its end was reported and not told."""
    puppet = Puppet(ground=ground)
    await puppet.register(lease_seconds=_LONG_SECONDS)
    claimed = await puppet.claim(await ground.client.publish_to_cancel("crash.puppet"))
    if claimed is not None:
        await puppet.finish(*claimed)


async def somebody_lost(ground: Ground) -> None:
    """For `reclaim_lost`: a worker fell silent with two attempts, of which one may not be run again."""
    puppet = Puppet(ground=ground)
    await puppet.register(lease_seconds=_SHORT_SECONDS)
    for ref in ("crash.puppet", "crash.abandoned"):
        await puppet.claim(await ground.client.publish_to_cancel(ref))


async def something_overdue(ground: Ground) -> None:
    """For `stop_overdue`: its worker does not stop it."""
    puppet = Puppet(ground=ground)
    await puppet.register(lease_seconds=_LONG_SECONDS)
    await puppet.claim(await ground.client.publish_to_cancel("crash.puppet", timeout="100ms"))


async def something_cancelled_early(ground: Ground) -> None:
    """For `cancel_early`: its cancel came before it."""
    key = f"to cancel {len(ground.client.submitted)}"
    await ground.client.publish_cancels(key)

    async def is_kept() -> bool:
        kept = "SELECT count(*) FROM early_cancel WHERE idempotency_key = $1"
        return bool(await ground.connection.fetchval(kept, key))

    await ground.while_armed(is_kept)
    await ground.client.publish_to_cancel("crash.puppet")


async def somebody_waiting(ground: Ground) -> None:
    """For `grant_idle_slots`: a slot became free and nobody said so."""
    await ground.pause(paused=True)
    await ground.client.publish({"action_ref": "crash.one"})
    await ground.while_armed(ground.has_taken_all)
    await ground.pause(paused=False)


async def something_miscounted(ground: Ground) -> None:
    """For `repair_counters`: a counter is off."""
    await ground.client.publish({"action_ref": "crash.one"})
    await ground.while_armed(ground.has_taken_all)
    # Of one queue: the services lock several in the order of their ids, and we would not.
    await ground.connection.execute(
        "UPDATE action_queue q SET depth = q.depth + 1"
        " FROM action a WHERE a.id = q.action_id AND a.ref = 'crash.one'"
    )


SWEEPS: Final[Mapping[str, Find]] = {
    "grant_idle_slots": somebody_waiting,
    "wake_due": something_due,
    "expire_due": something_expired,
    "repeat_offers": something_not_claimed,
    "repeat_completions": something_not_told,
    "reclaim_lost": somebody_lost,
    "stop_overdue": something_overdue,
    "cancel_early": something_cancelled_early,
    "repair_counters": something_miscounted,
}


def armed_for(sweep: str) -> dict[str, str]:
    """Return settings under which no other sweep soon finds what earlier trials left behind."""
    slow = {"repeat_offers": "DISPATCH", "repeat_completions": "SETTLE", "stop_overdue": "STOP"}
    return {f"TURNSTILE_{word}_TIMEOUT": "60s" for other, word in slow.items() if other != sweep}
