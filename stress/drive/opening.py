"""The actions of a stage as it needs them, and what may be changed about them while it runs.

In: a stage. Out: its actions, stored under its limit; a record of every change of a limit. Next: `faults` and
`watcher` change limits.
"""

import asyncio
from collections.abc import Sequence

from turnstile.stress.api import Api
from turnstile.stress.drive.clock import Clock
from turnstile.stress.names import POOL, action_ref
from turnstile.stress.recording import LimitChange
from turnstile.stress.stage import Stage

_RECLAIMS_MAX = 1000
"""As many as are allowed: however often its worker is killed, an execution must end as it should."""


async def store_actions(api: Api, stage: Stage) -> None:
    """Store the definitions of all its actions, paused where everything is to wait first."""
    fields = {
        "max_concurrent": stage.limit,
        "pool": POOL,
        "max_reclaims": _RECLAIMS_MAX,
        "paused": stage.all_wait_first,
    }
    if stage.load.keys:
        fields["submitter_keys"] = True
    async with asyncio.TaskGroup() as tasks:
        for number in range(stage.load.actions):
            ref = action_ref(number)
            tasks.create_task(api.put_action(ref, fields), name=f"put-{ref}")


async def resume_actions(api: Api, stage: Stage) -> None:
    """Let go what was held back."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(stage.load.actions):
            ref = action_ref(number)
            tasks.create_task(api.resume(ref), name=f"resume-{ref}")


class Limits:
    """Changes limits, and remembers each change."""

    def __init__(self, api: Api, stage: Stage, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._actions = stage.load.actions
        self._normal = stage.limit
        self._changes: list[LimitChange] = []

    @property
    def changes(self) -> Sequence[LimitChange]:
        """All of them, in the order in which they were asked for."""
        return sorted(self._changes, key=lambda change: change.asked_at)

    async def change(self, action: int, limit: int | None) -> LimitChange:
        """Change the limit of an action."""
        asked_at = self._clock.now()
        await self._api.change_action(action_ref(action), {"max_concurrent": limit})
        change = LimitChange(action=action, limit=limit, asked_at=asked_at, answered_at=self._clock.now())
        self._changes.append(change)
        return change

    async def restore(self, action: int) -> LimitChange:
        """Give an action the limit that all have."""
        return await self.change(action, self._normal)

    async def lift(self) -> None:
        """Leave no action with a limit."""
        self._normal = None
        async with asyncio.TaskGroup() as tasks:
            for action in range(self._actions):
                tasks.create_task(self.change(action, None), name=f"lift-{action_ref(action)}")
