"""Injects the planned faults of a scenario, and changes limits.

Limits are changed over HTTP, as any operator does; `local` injects every other fault into a private
installation.
"""

import asyncio
from collections.abc import Sequence

from turnstile.stress.drive.pacing import Clock, Pacing
from turnstile.stress.installation import Api, action_path
from turnstile.stress.local.faults import LocalSystem
from turnstile.stress.recording import InjectedFault, LimitChange
from turnstile.stress.scenario import FaultKind, PlannedFault, Scenario
from turnstile.stress.trace import action_ref


class Limits:
    """Changes limits and records each change."""

    def __init__(self, api: Api, scenario: Scenario, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._actions = scenario.load.actions
        self._normal = scenario.limit
        self._changes: list[LimitChange] = []

    @property
    def changes(self) -> Sequence[LimitChange]:
        """All changes in the order of their requests."""
        return sorted(self._changes, key=lambda change: change.asked_at)

    async def change(self, action: int, limit: int | None) -> LimitChange:
        """Change the limit of an action."""
        asked_at = self._clock.now()
        await self._api.change(action_path(action_ref(action)), {"max_concurrent": limit})
        change = LimitChange(action=action, limit=limit, asked_at=asked_at, answered_at=self._clock.now())
        self._changes.append(change)
        return change

    async def restore(self, action: int) -> LimitChange:
        """Give an action the limit of the scenario again."""
        return await self.change(action, self._normal)

    async def lift(self) -> None:
        """Remove the limits of all actions."""
        self._normal = None
        async with asyncio.TaskGroup() as tasks:
            for action in range(self._actions):
                tasks.create_task(self.change(action, None), name=f"lift-{action_ref(action)}")


class Faults:
    """Injects the faults of one scenario, concurrently where their times overlap."""

    def __init__(
        self,
        planned: Sequence[PlannedFault],
        injector: LocalSystem | None,
        limits: Limits,
        pacing: Pacing,
        clock: Clock,
    ) -> None:
        for fault in planned:
            if injector is None and fault.kind is not FaultKind.CHANGE_LIMIT:
                raise ValueError(f"{fault.kind}: only for a private installation")
        self._left = len(planned)
        self._injector = injector
        self._limits = limits
        self._pacing = pacing
        self._clock = clock
        self._injected: list[InjectedFault] = []
        self._current: list[FaultKind] = []

    @property
    def over(self) -> bool:
        """Whether all faults are over and repaired."""
        return not self._left

    @property
    def note(self) -> str:
        """The current faults, for display."""
        return ", ".join(self._current)

    @property
    def injected(self) -> Sequence[InjectedFault]:
        """The finished faults in order."""
        return sorted(self._injected, key=lambda fault: fault.began_at)

    async def inject(self, fault: PlannedFault) -> None:
        """Wait until a fault is due, inject it, and return when it is repaired."""
        await self._pacing.wait_until(fault.at_seconds)
        self._current.append(fault.kind)
        if fault.kind is FaultKind.CHANGE_LIMIT:
            injected = await self._change_limit(fault)
        else:
            assert self._injector is not None
            injected = await self._injector.inject(fault)
        self._current.remove(fault.kind)
        self._injected.append(injected)
        self._left -= 1

    async def _change_limit(self, fault: PlannedFault) -> InjectedFault:
        changed = await self._limits.change(fault.target, fault.limit)
        await asyncio.sleep(fault.lasting_seconds)
        restored = await self._limits.restore(fault.target)
        return InjectedFault(
            kind=fault.kind,
            target=action_ref(fault.target),
            began_at=changed.asked_at,
            healed_at=restored.answered_at,
        )
